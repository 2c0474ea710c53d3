"""Answers of the APIs that agents speak, put together from their streams as clients do it."""

from __future__ import annotations

import json
from typing import Any, Protocol

import httpx


class Poster(Protocol):
    """A server to which bodies can be sent."""

    async def post(self, path: str, **body: Any) -> httpx.Response: ...


async def events_of(server: Poster, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each of which must bear its type as its name."""
    answer = await server.post(path, stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of Anthropic's API add up to."""
    first, *others = [event for event in events if event["type"] != "ping"]
    assert first["type"] == "message_start"
    message: dict[str, Any] = first["message"]
    content, open_block, inputs = message["content"], None, ""
    for event in others:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                assert event["index"] == len(content)
                open_block, inputs = event["content_block"], ""
                content.append(open_block)
            case "content_block_delta":
                assert open_block is not None
                assert event["index"] == len(content) - 1
                delta = event["delta"]
                for name in {"text", "thinking"} & delta.keys():
                    open_block[name] += delta[name]
                inputs += delta.get("partial_json", "")
            case "content_block_stop":
                assert open_block is not None
                if open_block["type"] == "tool_use":
                    open_block["input"] = _input_of(inputs)
                open_block = None
            case "message_delta":
                assert open_block is None
                message |= event["delta"]
                message["usage"] = event["usage"]
    assert events[-1]["type"] == "message_stop"
    return message


def _input_of(text: str) -> Any:
    """The input of a call; an empty one, if it was cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that the events of the Responses API add up to, which its last event must have too."""
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    output: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind, place = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert place == len(output)
            output.append(event["item"])
            continue
        assert place == len(output) - 1
        item = output[-1]
        part = item["content"][0] if item.get("content") else None
        match kind:
            case "response.content_part.added":
                assert (event["item_id"], event["content_index"]) == (item["id"], 0)
                item["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                assert part is not None
                part["text"] += event["delta"]
                if "logprobs" in event:
                    part["logprobs"] += event["logprobs"]
            case "response.output_text.done" | "response.reasoning_text.done":
                assert part is not None
                assert event["text"] == part["text"]
            case "response.content_part.done":
                assert event["part"] == part
            case "response.function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "response.function_call_arguments.done":
                assert event["arguments"] == item["arguments"]
            case "response.custom_tool_call_input.delta":
                item["input"] += event["delta"]
            case "response.custom_tool_call_input.done":
                assert event["input"] == item["input"]
            case "response.output_item.done":
                item["status"] = event["item"]["status"]
                assert event["item"] == item
            case _:
                raise AssertionError(f"an event {kind}")
    response: dict[str, Any] = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    assert response["output"] == output
    return response
