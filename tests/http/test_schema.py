"""Requests made up from the published schema, good ones and bad: nothing that a client sends is the server's fault.

`scripts/fuzz_api.py` sends thousands, over a socket.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_cases import OPERATIONS, Described, Sent, case_of, complaint
from serving import PATIENCE, Server, expected_text, serving
from slow import examples
from sluice.http.apis.sglang import NativeSampling
from sluice.http.call.generate_call import SamplingFields
from sluice.types import SamplingParams

DESCRIBED = Described()
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def served() -> Iterator[tuple[Server, Run]]:
    """A server in a loop of its own thread, and a way to run something in it: an example is a call, not a server."""
    entered: Future[tuple[Server, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        leave = asyncio.Event()
        async with serving(max_queued_requests=4) as server:
            entered.set_result((server, asyncio.get_running_loop(), leave))
            await leave.wait()

    ended: Future[None] = Future()

    def work() -> None:
        try:
            asyncio.run(live())
            ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - the future raises it
            (ended if entered.done() else entered).set_exception(error)

    thread = threading.Thread(target=work, name="server")
    thread.start()
    server, loop, leave = entered.result(PATIENCE)
    try:
        yield server, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(PATIENCE)
    ended.result(PATIENCE)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, Run]]:
    with served() as running:
        yield running


def test_a_field_is_written_once_for_all_routes() -> None:
    """A sampling parameter without a field could not be asked for; a field without one would be ignored. What keeps an
    answer to a form has fields of its own in each API."""
    own = {"logprobs", "prompt_logprobs", "logprob_token_ids", "schema", "regex", "choice", "grammar"}
    own.add("whitespace_pattern")
    named = {field.name for field in fields(SamplingParams)} - own
    assert set(SamplingFields.__struct_fields__) == set(NativeSampling.__struct_fields__) == named


async def send(server: Server, sent: Sent) -> tuple[int, dict[str, str], bytes]:
    answer = await server.http.request(sent.method, sent.path, content=sent.body, headers=sent.headers)
    return answer.status_code, dict(answer.headers), answer.content


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: " ".join(operation))
@settings(examples(12), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_is_the_servers_fault(
    operation: tuple[str, str], data: st.DataObject, server: tuple[Server, Run]
) -> None:
    """A traceback caused by an unforeseen value; a 503 that does not say when to come back."""
    running, run = server
    sent = data.draw(case_of(*operation))
    assert complaint(operation, *run(send(running, sent)), DESCRIBED) is None, sent


def test_and_the_server_is_as_good_as_new(server: tuple[Server, Run]) -> None:
    running, run = server
    answer = run(running.complete(prompt="ab", seed=0))
    assert answer["choices"][0]["text"] == expected_text("ab", 16)
