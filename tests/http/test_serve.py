"""`sluice serve` as a process: start, use by the stock client, end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import processes
from any_checkpoint import any_checkpoint
from collecting import collector
from processes import free_port
from serve_process import PATIENCE, announced, errors_of, server, shadow
from serving import expected_text, parse_events
from sluice.cli import main


def statuses_until_ready(process: subprocess.Popen[str], url: str) -> list[int]:
    """What /health said, from the first answer until something is printed."""
    seen: list[int] = []
    with selectors.DefaultSelector() as selector, httpx.Client() as http:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        while not selector.select(timeout=0.05):
            try:
                seen.append(http.get(f"{url}/health").status_code)
            except httpx.ConnectError:
                assert not seen, "the server stopped listening while it was loading"
    return seen


def stops(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> int:
    process.send_signal(number)
    return process.wait(timeout=PATIENCE)


def test_a_server_does_not_stand_still_for_its_garbage(tmp_path: Path) -> None:
    """A full collection looks at all that was imported: a tenth of a second and more without a token."""
    with server(*shadow(free_port(), tmp_path)) as process:
        announced(process)
        assert stops(process) == 0
        assert process.stdout is not None
        count, *_ = process.stdout.read().splitlines()[-1].split()
        assert int(count) > 10_000


def test_serve_a_model() -> None:
    """The whole way: command line, processes, torch, the printed curl, the stock client, Ctrl-C."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = (
        "-m",
        "sluice",
        "serve",
        str(any_checkpoint()),
        "--port",
        str(port),
        "--max-total-tokens",
        "4096",
        "--served-model-name",
        "tiny",
    )
    with server(*command) as process:
        before = statuses_until_ready(process, url)
        assert before[0] == 503
        assert before == sorted(before, reverse=True), "once served, /health must stay at 200"
        curl = shlex.split(announced(process))
        assert httpx.get(f"{url}/health").status_code == 200
        (engine,) = processes.children(process.pid)

        assert curl[:3] == ["curl", "-N", f"{url}/v1/chat/completions"]
        answer = httpx.post(
            curl[2], content=curl[curl.index("-d") + 1], headers=dict([curl[4].split(": ")]), timeout=30
        )
        *events, done = parse_events(answer.text)
        assert done == "[DONE]"
        assert 2 <= len(events) <= 65

        use_the_stock_client(url)
        asyncio.run(use_the_stock_async_client(url))

        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"prompt": "on", "max_tokens": 4000, "ignore_eos": True, "stream": True},
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            assert stops(process) == 0
            rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
            assert "shutting down" in rest[-1]["error"]["message"]
        assert processes.ends(engine, PATIENCE), "the engine outlived the server"
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def use_the_stock_client(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.completions.create(model="tiny", prompt="The water", max_tokens=12, temperature=0)
        stream = client.completions.create(model="tiny", prompt="The water", max_tokens=12, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 12
        with pytest.raises(openai.NotFoundError, match="'other'"):
            client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="tiny", prompt="a", max_tokens=10_000)
        assert refused.value.code == "context_length_exceeded"


async def use_the_stock_async_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        said = [{"role": "user", "content": "What is a sluice?"}]
        request = {"model": "tiny", "messages": said, "max_completion_tokens": 12, "temperature": 0}
        whole, stream = await asyncio.gather(
            client.chat.completions.create(**request),
            client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}),
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_end_of_the_last_engine(tmp_path: Path) -> None:
    """A server that gives its engine up says why, and ends with a status other than 0: a server that lives on, or ends
    with 0, is not restarted."""
    with server(*shadow(0, tmp_path, max_engine_restarts=0)) as process:
        announced(process)
        (engine,) = processes.children(process.pid)
        os.kill(engine, signal.SIGKILL)
        errors = errors_of(process)
        assert errors == "sluice: error: the engine was killed by signal 9\n"
        assert process.returncode == 1


@pytest.mark.slow
def test_a_server_gives_up_if_no_engine_can_be_started(tmp_path: Path) -> None:
    """After the stated time, with a status other than 0: otherwise it would refuse requests forever."""
    with server(*shadow(0, tmp_path, "shadow_engine:short_of_memory", restart_timeout=0.2)) as process:
        announced(process)
        (engine,) = processes.children(process.pid)
        os.kill(engine, signal.SIGKILL)
        errors = errors_of(process)
        *_, last = errors.splitlines()
        lacking = "the engine was killed by signal 9, and no other one can be started at the moment: no memory left"
        assert last == f"sluice: error: {lacking}; given up after 0.2 s (--restart-timeout)"
        assert process.returncode == 1


@contextmanager
def streaming(port: int, max_tokens: int) -> Iterator[Iterator[str]]:
    """The data of a stream's events, as they come."""
    body = {"prompt": "ab", "max_tokens": max_tokens, "seed": 0, "stream": True}
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        yield (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))


def text_of(events: list[str]) -> str:
    """Of the events of a stream that must end well."""
    *events, done = events
    assert done == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_a_killed_engine_is_replaced_and_its_stream_goes_on(tmp_path: Path) -> None:
    """Over the whole way: a client does not notice, and `/server_info` can."""
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("slow@20=60"))) as process:
        announced(process)
        (engine,) = processes.children(process.pid)
        with streaming(port, 150) as events:
            begun = [next(events), next(events)]
            os.kill(engine, signal.SIGKILL)
            assert text_of(begun + list(events)) == expected_text("ab", 150)
        info = httpx.get(f"http://127.0.0.1:{port}/server_info").json()
        assert info["engine_restarts"] == 1
        assert [info["engine_pid"]] == processes.children(process.pid) != [engine]
        assert stops(process) == 0
        assert process.stderr is not None
        assert "the engine was killed by signal 9; starting another one" in process.stderr.read()


def faulty(faults: str) -> dict[str, object]:
    return {"enable_fault_injection": True, "inject_fault": faults, "heartbeat_timeout": 2.0}


def test_a_hung_engine_is_replaced_while_its_server_says_so(tmp_path: Path) -> None:
    """Health checks that say 200 while the engine is stuck are what one is woken up for."""
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("hang@5"))) as process, httpx.Client() as http:
        announced(process)
        with streaming(port, 150) as events:
            begun, seen = [next(events)], []
            while 503 not in seen:
                seen.append(http.get(f"http://127.0.0.1:{port}/health").status_code)
            assert text_of(begun + list(events)) == expected_text("ab", 150)
        assert http.get(f"http://127.0.0.1:{port}/health").status_code == 200
        assert stops(process) == 0


@pytest.mark.slow
def test_an_engine_that_hangs_while_it_loads_is_replaced(tmp_path: Path) -> None:
    """Within the time that it may be without progress, and not when the time for loading a model is over."""
    port = free_port()
    options = faulty("slow@5=60")  # The stream must not end before its engine is killed.
    with server(*shadow(port, tmp_path, "shadow_engine:hangs_once", progress_timeout=1.0, **options)) as process:
        announced(process)
        (engine,) = processes.children(process.pid)
        with streaming(port, 150) as events, httpx.Client() as http:
            os.kill(engine, signal.SIGKILL)
            seen: dict[str, Any] = {"engine": {}}
            while "loading" not in seen["engine"]:
                seen = http.get(f"http://127.0.0.1:{port}/health").json()
            assert seen["status"].startswith("the engine was killed by signal 9; another one is started: starting, ")
            assert seen["engine"]["loading"]["part"] == "starting"
            assert text_of(list(events)) == expected_text("ab", 150)
        assert stops(process) == 0
        assert process.stderr is not None
        assert re.search(r"the engine made no progress for \d\.\d s while it loaded", process.stderr.read())


@pytest.mark.slow
def test_a_device_that_hangs(tmp_path: Path) -> None:
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("slow@5=60"), step_timeout=1.0)) as process:
        announced(process)
        with streaming(port, 50) as events:
            assert text_of(list(events)) == expected_text("ab", 50)
        assert stops(process) == 0
        assert process.stderr is not None
        assert "(--step-timeout)" in process.stderr.read()


def test_a_drain_finishes_what_runs(tmp_path: Path) -> None:
    """A rolling update that cuts streams off, or one that never ends because new requests keep coming."""
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("slow@5=3"))) as process, httpx.Client() as http:
        announced(process)
        with streaming(port, 150) as events:
            begun = [next(events)]
            process.send_signal(signal.SIGTERM)
            while (answer := http.get(f"http://127.0.0.1:{port}/ready")).status_code == 200:
                pass
            assert answer.json()["status"] == "the server is shutting down"
            refused = http.post(f"http://127.0.0.1:{port}/v1/completions", json={"prompt": "a", "stream": True})
            assert refused.status_code == 503
            assert text_of(begun + list(events)) == expected_text("ab", 150)
        assert process.wait(timeout=PATIENCE) == 0


def test_a_drain_is_bounded(tmp_path: Path) -> None:
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("slow@5=60"), drain_timeout=0.2)) as process:
        announced(process)
        with streaming(port, 150) as events:
            next(events)
            process.send_signal(signal.SIGTERM)
            assert "shutting down" in json.loads(list(events)[-1])["error"]["message"]
        assert process.wait(timeout=PATIENCE) == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, first: signal.Signals) -> None:
    port = free_port()
    with server(*shadow(port, tmp_path, **faulty("slow@5=60"), drain_timeout=60.0)) as process:
        announced(process)
        (engine,) = processes.children(process.pid)
        with streaming(port, 150) as events:
            next(events)
            process.send_signal(first)
            process.send_signal(signal.SIGINT if first is signal.SIGTERM else signal.SIGTERM)
            assert process.wait(timeout=PATIENCE) == 0
        assert processes.ends(engine, PATIENCE)


@pytest.mark.slow
def test_a_model_that_loads_too_long_ends_the_server(tmp_path: Path) -> None:
    with server(*shadow(0, tmp_path, "shadow_engine:hang", start_timeout=0.5)) as process:
        errors = errors_of(process)
        assert errors == "sluice: error: the engine was not ready within 0.5 s (--start-timeout)\n"
        assert process.returncode == 1


@pytest.mark.slow
def test_a_killed_server_leaves_no_engine_that_hangs(tmp_path: Path) -> None:
    """One that is stuck reads no message and no end of a pipe; it would hold the GPU for ever."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,  # a killed server cannot remove its sockets
        server(*shadow(port, tmp_path, **faulty("hang@5")), TMPDIR=folder) as process,
    ):
        announced(process)
        (engine,) = processes.children(process.pid)
        with streaming(port, 150) as events:
            for _ in range(5):
                next(events)
            process.kill()
            assert processes.ends(engine, 10)


def test_stopping_while_the_model_loads(tmp_path: Path) -> None:
    port = free_port()
    with server(*shadow(port, tmp_path, "shadow_engine:hang")) as process, httpx.Client() as http:
        while True:
            try:
                assert http.get(f"http://127.0.0.1:{port}/health").status_code == 503
                break
            except httpx.ConnectError:
                assert process.poll() is None
        assert stops(process, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("shadow_engine:refuse", "sluice: error: the checkpoint {folder} is bad\n"),
        ("shadow_engine:crash", "sluice: error: the engine ended with status 7 before it was ready\n"),
    ],
)
def test_an_engine_that_does_not_start_ends_the_server(tmp_path: Path, factory: str, said: str) -> None:
    with server(*shadow(0, tmp_path, factory)) as process:
        errors = errors_of(process)
        assert errors == said.format(folder=tmp_path)
        assert process.returncode == 1


def test_a_checkpoint_without_a_tokenizer_ends_the_server(tmp_path: Path) -> None:
    command = shadow(0, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with server(*command) as process:
        errors = errors_of(process)
        assert errors.startswith(f"sluice: error: {tmp_path} has no tokenizer.json")
        assert errors.count("\n") == 1
        assert process.returncode == 1


def test_what_is_seen_of_a_call(tmp_path: Path) -> None:
    """From outside: metrics, a line of JSON with the id that the client sent, and a span at the collector."""
    port = free_port()
    with collector() as (endpoint, posted):
        options = {"log_level": "info", "log_format": "json", "otlp_traces_endpoint": endpoint}
        with server(*shadow(port, tmp_path, **options)) as process:
            announced(process)
            url, headers = f"http://127.0.0.1:{port}", {"x-request-id": "mine"}
            body = {"prompt": "a" * 70, "max_tokens": 5, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
            assert (answer.status_code, answer.headers["x-request-id"]) == (200, "mine")
            page = httpx.get(f"{url}/metrics").text
            assert 'vllm:generation_tokens_total{engine="0",model_name="shadow"} 5.0' in page
            assert 'sluice:prefill_chunks_total{engine="0",model_name="shadow"} 3.0' in page
            assert stops(process) == 0
            assert process.stderr is not None
            lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert [line["logger"] for line in lines] == ["sluice.engine"] * 3 + ["sluice.requests"] * 2
    assert (lines[3]["request_id"], lines[3]["engine_requests"], lines[3]["output_tokens"]) == ("mine", [1], 5)
    ((path, span),) = posted
    assert path == "/v1/traces"
    assert b"text_completion shadow" in span


def test_traces_that_cannot_be_sent_end_the_server_at_once(tmp_path: Path) -> None:
    with server(*shadow(0, tmp_path, otlp_traces_endpoint="localhost:4318")) as process:
        errors = errors_of(process)
        assert errors.startswith("sluice: error: --otlp-traces-endpoint must be a URL")
        assert errors.count("\n") == 1
        assert process.returncode == 2


def test_keys_and_bounds_of_a_server(tmp_path: Path) -> None:
    """Options that end in the command line's parser protect no server."""
    port, keys = free_port(), tmp_path / "keys"
    url = f"http://127.0.0.1:{port}"
    keys.write_text("from-file\n\n  another \n")
    options = ["--port", str(port), "--max-total-tokens", "4096", "--max-request-bytes", "3000", "--api-key", "given"]
    options += ["--max-stored-responses", "1", "--max-stored-response-bytes", "3000", "--api-key-file", str(keys)]
    with server("-m", "sluice", "serve", str(any_checkpoint()), *options) as process:
        announced(process)
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        for key in ("given", "from-file", "another"):
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                assert client.models.list().data
        headers = {"Authorization": "Bearer given"}
        shown = httpx.get(f"{url}/server_info", headers=headers)
        assert shown.json()["config"]["api_key"]["value"] == "(hidden)"
        assert shown.json()["memory"]["device_kv_bytes"] > 1 << 20
        assert "given" not in shown.text
        large = httpx.post(f"{url}/v1/completions", json={"prompt": "a" * 3000}, headers=headers)
        assert large.status_code == 413
        check_stored_responses(url, headers)
        assert stops(process) == 0


def check_stored_responses(url: str, headers: dict[str, str]) -> None:
    """Of a server that keeps one response, of 3000 bytes at most."""

    def created(instructions: str) -> str:
        body = {"input": "hi", "max_output_tokens": 1, "instructions": instructions}
        answer = httpx.post(f"{url}/v1/responses", json=body, headers=headers, timeout=60)
        return str(answer.json()["id"])

    def status(response_id: str) -> int:
        return httpx.get(f"{url}/v1/responses/{response_id}", headers=headers).status_code

    first, second = created("a"), created("b")
    assert (status(first), status(second)) == (404, 200)
    third = created("a" * 2000)
    assert (status(second), status(third)) == (200, 404)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\n \n", "holds no key"), (b"two words\n", "printable"), (b"\xff", "read")],
)
def test_keys_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    """A server that starts without the key that it was given is open to every client."""
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    assert main(["serve", "--port", "0", "--api-key-file", str(keys)]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "two words" not in errors


def completion(url: str, prompt: list[int]) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.slow
def test_an_engine_that_is_killed_leaves_its_prefixes_to_the_next_one(tmp_path: Path) -> None:
    """A file that stays locked by a dead engine, or that the next engine begins anew; other answers than before. And a
    file that cannot be used at a restart, once or for good: one crash would be the end of the server."""
    asked, *others = ([5 + first + number * 7 % 400 for number in range(130)] for first in range(4))
    pages, away = tmp_path / "pages", tmp_path / "away"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["-m", "sluice", "serve", str(any_checkpoint()), "--port", str(port), "--max-total-tokens", "512"]
    command += ["--kv-disk", str(pages), "--kv-disk-bytes", "30000000"]
    with server(*command) as process:
        announced(process)
        first = completion(url, asked)
        for prompt in others:  # their steps carry what is left to store
            completion(url, prompt)
        kill_engine(process)
        again = completion(url, asked)
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
        page = httpx.get(f"{url}/metrics").text
        assert any("sluice:cached_tokens_total" in line and 'tier="disk"' in line for line in page.splitlines())
        pages.rename(away)
        os.mkfifo(pages)
        long = {"prompt": [5, *asked] * 5, "max_tokens": 2000, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=long | {"stream": True}, timeout=300) as answer:
            events = answer.iter_lines()
            assert next(events).startswith("data: {")
            kill_engine(process)
            assert '"code":"tier_unavailable"' in [line for line in events if line][-1]
        without = completion(url, asked)
        assert without["choices"][0]["text"] == first["choices"][0]["text"]
        assert without["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        refused = httpx.post(f"{url}/v1/completions", json=long, timeout=300)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "tier_unavailable")
        info = httpx.get(f"{url}/server_info").json()
        assert info["disabled_tiers"] == {"disk": f"--kv-disk {pages} must be a file, it is something else"}
        assert is_disabled(url) == 1
        os.replace(away, pages)
        kill_engine(process)
        back = completion(url, asked)
        assert back["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
        assert is_disabled(url) == 0
        assert stops(process) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert said.count("must be a file, it is something else; this engine serves without the disk tier") == 1
        assert "Traceback" not in said


def kill_engine(process: subprocess.Popen[str]) -> None:
    (engine,) = processes.children(process.pid)
    os.kill(engine, signal.SIGKILL)
    assert processes.ends(engine, 30)


def is_disabled(url: str) -> float:
    """The gauge of a disk tier that could not be opened again."""
    page = httpx.get(f"{url}/metrics").text
    (line,) = (each for each in page.splitlines() if each.startswith("sluice:tier_disabled") and 'tier="disk"' in each)
    return float(line.rpartition(" ")[2])
