"""OpenAI's Responses API: what its clients send, and what they read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_apis import events_of, response_of
from serving import MODEL, Caller, Server, expected_text, run, serving
from sluice.engine.messages import Submit
from sluice.http.apis.responses.store import OVERHEAD, ResponseStore
from sluice.testing import Faults

RESPONSES = "/v1/responses"
PROMPT = "user: hi\n"
"""What the test's chat template makes of the input "hi"."""


def served(test: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    """Run a test with a server."""

    async def whole() -> None:
        async with serving(**options) as server:
            await test(server)

    run(whole)


async def created(server: Server, **body: Any) -> dict[str, Any]:
    """A response that must succeed."""
    answer = await server.post(RESPONSES, **{"input": "hi", "max_output_tokens": 12, "seed": 0, **body})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def prompt_of(server: Server) -> str:
    """The prompt of the last request at the engine."""
    return bytes([message for message in server.sent if isinstance(message, Submit)][-1].prompt).decode()


def test_a_response() -> None:
    async def test(server: Server) -> None:
        response = await created(server, model=MODEL, metadata={"a": "b"}, top_p=0.9)
        (item,) = response["output"]
        assert (item["type"], item["role"]) == ("message", "assistant")
        assert item["content"] == [
            {"type": "output_text", "text": expected_text(PROMPT, 12), "annotations": [], "logprobs": []}
        ]
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (response["metadata"], response["top_p"], response["model"]) == ({"a": "b"}, 0.9, MODEL)
        usage = response["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (
            len(PROMPT),
            12,
            len(PROMPT) + 12,
        )
        ended = await created(server, stop_token_ids=[ord(expected_text(PROMPT, 12)[3])])
        assert (ended["status"], ended["incomplete_details"]) == ("completed", None)
        assert ended["completed_at"] >= ended["created_at"]

    served(test)


def test_a_stream_adds_up_to_the_same_response() -> None:
    async def test(server: Server) -> None:
        body: dict[str, Any] = {"input": "hi", "max_output_tokens": 12, "seed": 0, "top_logprobs": 2}
        events = await events_of(server, RESPONSES, **body)
        streamed, whole = response_of(events), await created(server, **body)
        for response in (streamed, whole):
            assert (await server.http.get(f"{RESPONSES}/{response['id']}")).json() == response
            del response["id"], response["output"][0]["id"], response["usage"]
        assert streamed == whole
        assert sum(event["type"] == "response.output_text.delta" for event in events) == 12
        (part,) = whole["output"][0]["content"]
        assert "".join(token["token"] for token in part["logprobs"]) == part["text"]
        assert {len(token["top_logprobs"]) for token in part["logprobs"]} == {2}

    served(test)


def test_an_answer_without_text_is_an_empty_text() -> None:
    async def test(server: Server) -> None:
        body: dict[str, Any] = {"input": "hi", "stop": expected_text(PROMPT, 1), "seed": 0}
        streamed, whole = response_of(await events_of(server, RESPONSES, **body)), await created(server, **body)
        assert text(streamed) == text(whole) == ""
        assert len(streamed["output"]) == len(whole["output"]) == 1

    served(test)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"instructions": "be"}, f"system: be\n{PROMPT}"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "message", "role": "developer", "content": "b"}]}, None),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                    {
                        "type": "message",
                        "id": "msg_1",
                        "status": "completed",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "see", "annotations": [], "logprobs": []}],
                    },
                    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
                    {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}", "id": "fc_1"},
                    {"type": "function_call_output", "call_id": "c1", "output": "4"},
                    {
                        "type": "function_call_output",
                        "call_id": "c2",
                        "output": [{"type": "input_text", "text": "5"}],
                    },
                ]
            },
            "user: a\nassistant: see\ntool: 4\ntool: 5\n",
        ),
    ],
)
def test_items_become_a_chat(body: dict[str, Any], prompt: str | None) -> None:
    """A lost item, or one in the wrong order, is another conversation."""

    async def test(server: Server) -> None:
        await created(server, max_output_tokens=1, **body)
        assert prompt_of(server) == (prompt or "user: a\nsystem: b\n")

    served(test)


def test_a_conversation_goes_on_from_what_is_stored() -> None:
    async def test(server: Server) -> None:
        first = await created(server, instructions="be", max_output_tokens=3)
        second = await created(server, previous_response_id=first["id"], input="so?", max_output_tokens=3)
        assert prompt_of(server) == f"{PROMPT}assistant: {text(first)}\nuser: so?\n", "instructions are not kept"
        assert second["previous_response_id"] == first["id"]
        await created(server, previous_response_id=second["id"], input="why?", max_output_tokens=1)
        assert prompt_of(server).endswith(f"user: so?\nassistant: {text(second)}\nuser: why?\n")

    served(test)


def test_a_stored_response_can_be_seen_and_forgotten() -> None:
    async def test(server: Server) -> None:
        response = response_of(await events_of(server, RESPONSES, input="hi", max_output_tokens=3))
        path = f"{RESPONSES}/{response['id']}"
        assert (await server.http.get(path)).json() == response
        again = response_of(await events_of(server, RESPONSES, previous_response_id=response["id"], input="so?"))
        url = f"{RESPONSES}/{again['id']}/input_items"
        listed = (await server.http.get(url, params={"order": "asc"})).json()
        roles = [item["role"] for item in listed["data"]]
        assert roles == ["user", "assistant", "user"]
        assert (listed["first_id"], listed["has_more"]) == (listed["data"][0]["id"], False)
        page = (await server.http.get(url, params={"limit": 1, "after": listed["data"][2]["id"]})).json()
        assert (page["data"], page["has_more"]) == ([listed["data"][1]], True)
        refused = await server.post(f"{path}/cancel")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")
        assert (await server.http.delete(path)).json() == {
            "id": response["id"],
            "object": "response.deleted",
            "deleted": True,
        }
        for gone in (
            await server.http.get(path),
            await server.http.get(f"{path}/input_items"),
            await server.http.delete(path),
            await server.post(f"{path}/cancel"),
            await server.post(RESPONSES, input="hi", previous_response_id=response["id"]),
        ):
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")

    served(test)


def test_a_response_is_its_owners() -> None:
    """Ids leak into logs: one must not show another client's conversation."""

    async def test(server: Server) -> None:
        headers = server.http.headers
        headers["Authorization"] = "Bearer alice"
        plain = (await created(server))["id"]
        salted = (await created(server, cache_salt="s"))["id"]

        async def statuses(response_id: str, salt: str | None) -> set[int]:
            params = {} if salt is None else {"cache_salt": salt}
            path = f"{RESPONSES}/{response_id}"
            body = {"input": "so?", "previous_response_id": response_id, "max_output_tokens": 1, **params}
            return {
                (await server.http.get(path, params=params)).status_code,
                (await server.http.get(f"{path}/input_items", params=params)).status_code,
                (await server.post(RESPONSES, **body)).status_code,
            }

        assert await statuses(plain, None) == await statuses(salted, "s") == {200}
        assert await statuses(plain, "s") == await statuses(salted, None) == {404}
        headers["Authorization"] = "Bearer bob"
        assert await statuses(plain, None) == await statuses(salted, "s") == {404}
        assert (await server.http.delete(f"{RESPONSES}/{plain}")).status_code == 404
        headers["Authorization"] = "Bearer alice"
        assert await statuses(plain, None) == {200}

    served(test, api_keys=["alice", "bob"])


def test_what_is_not_stored() -> None:
    async def test(server: Server) -> None:
        thoughts = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a" * 3000}]}
        for body in ({"store": False}, {"input": [{"role": "user", "content": "hi"}, thoughts]}):
            response = await created(server, **body)
            assert response["store"] is False
            assert (await server.http.get(f"{RESPONSES}/{response['id']}")).status_code == 404
        assert (await created(server))["store"] is True

    served(test, responses=ResponseStore(4, OVERHEAD + 3000))


def test_a_cut_off_stream_stores_nothing() -> None:
    async def test(server: Server) -> None:
        server.hold()
        caller = Caller(server, RESPONSES, {"input": "hi", "stream": True})
        await server.arrived(1)
        caller.leave()
        await caller.call
        server.let_go()
        assert len(server.aborts()) == 1

    store = ResponseStore(4, 1 << 20)
    served(test, responses=store)
    assert len(store) == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input must be a non-empty text, or a list of items"),
    ({"input": ""}, "input must be a non-empty text"),
    ({"input": []}, "input must be a non-empty text"),
    ({"input": 5}, "input must be a non-empty text, or a list of items, got the number 5"),
    ({"input": ["hi"]}, "input[0] must be an object"),
    ({"input": [{"role": "owl", "content": "hi"}]}, "input[0].role must be one of user"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type 'input_image'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input has no item that can be shown to the model"),
    ({"input": [{"type": "owl"}]}, "input[0].type 'owl' is not supported; accepted: message, function_call"),
    ({"background": True}, "background is not supported"),
    ({"truncation": "auto"}, "truncation is not supported; leave it out, or send null or 'disabled'"),
    ({"conversation": "c"}, "conversation is not supported"),
    ({"include": ["all"]}, "include holds 'all'"),
    ({"top_logprobs": 21}, "top_logprobs must be an integer from 0 to 20"),
    ({"max_output_tokens": 0}, "max_output_tokens must be an integer of at least 1, got 0"),
    ({"max_output_tokens": 10_000}, "max_output_tokens 10000"),
    ({"max_tokens": 5}, "send max_output_tokens"),
    ({"messages": [1]}, "send input"),
    ({"metadata": {"a" * 65: "b"}}, "metadata may hold at most 16 texts"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"n": 2}, "n: invalid enum value 2; accepted: 1"),
    ({"temprature": 1}, "did you mean temperature"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
def test_refused(body: dict[str, Any], said: str) -> None:
    async def test(server: Server) -> None:
        answer = await server.post(RESPONSES, **{"input": "hi", **body})
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]
        assert server.sent == []

    served(test)


def test_a_failure_within_a_stream_is_an_event() -> None:
    """A client that sees the stream end takes half an answer for the whole."""

    async def test(server: Server) -> None:
        answer = await server.post(RESPONSES, input="hi", max_output_tokens=50, stream=True)
        *_, last, rest = answer.text.split("\n\n")
        assert rest == ""
        assert last.startswith('event: response.failed\ndata: {"type":"response.failed","sequence_number":')
        assert '"status":"failed","error":{"code":"request_failed","message":' in last.replace(
            last[last.index('"background"') : last.index('"error"')], ""
        )

    served(test, faults=Faults(wait_raises=frozenset({5})))
