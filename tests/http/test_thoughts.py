"""The border of thought and answer: stop strings, calls in thoughts that never end, prompts that begin or end one."""

from __future__ import annotations

from typing import Any

import pytest

from agent_apis import events_of, message_of, response_of
from scripted import Scripted, scripted
from serving import run
from sluice.text.parsers.events import whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.formats.deepseek import ALL_BEGIN, BEGIN, END, SEPARATOR
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.thoughts import Thoughts
from sluice.text.parsers.tools import Tool, ToolUse
from sluice.types import FinishReason

SAID = [{"role": "user", "content": "Ask me."}]
THOUGHT = "the Question: asks what?"
REPLY = f"<think>{THOUGHT}</think>42 Question: no more"
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USE = ToolUse((Tool("f"),))


def answers(reply: str, **options: Any) -> Any:
    """Return what a chat answers, whole and streamed, which must be equal: content, reasoning, calls and the reason."""
    found: list[Any] = []

    async def test() -> None:
        async with scripted(reply, **options.pop("server", {})) as server:
            whole = await server.chat(messages=SAID, **options)
            (choice,) = whole["choices"]
            message = choice["message"]
            calls = [call["function"] for call in message.get("tool_calls", [])]
            found.append((message["content"] or "", message.get("reasoning", ""), calls, choice["finish_reason"]))
            assert found[0] == await streamed(server, options)
            found.append(whole["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0))

    run(test)
    return found


async def streamed(server: Scripted, options: dict[str, Any]) -> Any:
    content, reasoning, calls, reason = "", "", list[dict[str, str]](), None
    for event in await server.stream(messages=SAID, **options):
        (choice,) = event["choices"]
        delta = choice["delta"]
        content, reasoning = content + delta.get("content", ""), reasoning + delta.get("reasoning", "")
        for call in delta.get("tool_calls", []):
            if "name" in call["function"]:
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[-1]["arguments"] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return content, reasoning, calls, reason


@pytest.mark.parametrize(
    ("reply", "stop", "expected"),
    [
        (REPLY, ["Question:"], ("42 ", THOUGHT)),
        ("<think>k>4</think>42", ["k>4"], ("42", "k>4")),
        ("<think>a</think>42", ["</think>"], ("42", "a")),
        ("No Question: at all", ["Question:"], ("No ", "")),
        ("<think>\n\n</think>\n\nNo Question: at all", ["Question:"], ("No ", "")),
        ("<think>Q", ["Q"], ("", "Q")),
        ("<think>\nwhy\n</think>\n\nA title\n\nmore", ["\n\n"], ("A title", "why")),
        ("<think>\n\n</think>\n\nHello", ["\n"], ("Hello", "")),
        ("\nNo thought", ["\n"], ("", "")),
    ],
)
def test_stop_strings_end_the_answer_and_not_the_thought(reply: str, stop: list[str], expected: Any) -> None:
    """The answer was empty, and its thought was cut."""
    (content, reasoning, _, reason), _ = answers(reply, stop=stop)
    assert (content, reasoning, reason) == (*expected, "stop")


def test_who_wants_to_can_stop_a_thought() -> None:
    (content, reasoning, _, reason), _ = answers(REPLY, stop=["Question:"], stop_in_reasoning=True)
    assert (content, reasoning, reason) == ("", "the ", "stop")


def test_reasoning_tokens_are_those_of_the_thought() -> None:
    """A stop string that held text back added tokens of the answer."""
    tokens = len(THOUGHT) + 2
    for stop in ([], ["42 Question: no less"]):
        _, counted = answers(REPLY, stop=stop)
        assert counted == tokens
    assert answers("No thought")[1] == 0


def test_stop_ids_end_the_answer_and_not_the_thought() -> None:
    async def test() -> None:
        async with scripted("<think>a!b</think>c!d") as server:
            stop = server.tokenizer.encode("!")
            for settings, expected in (({}, ("c", "a!b")), ({"stop_in_reasoning": True}, None)):
                answer = await server.chat(messages=SAID, stop_token_ids=stop, **settings)
                message = answer["choices"][0]["message"]
                given = server.submitted[-1].sampling.stop_token_ids
                assert (given == ()) == (expected is not None)
                if expected is not None:
                    assert (message["content"], message["reasoning"]) == expected
            await server.chat(messages=SAID, stop_token_ids=stop, chat_template_kwargs={"enable_thinking": False})
            assert server.submitted[-1].sampling.stop_token_ids == tuple(stop)  # the thought is over before it begins

    run(test)


def test_stop_strings_in_other_apis() -> None:
    async def test() -> None:
        async with scripted(REPLY) as server:
            message = {"model": "scripted", "max_tokens": 99, "messages": SAID, "stop_sequences": ["Question:"]}
            found = message_of(await events_of(server, "/v1/messages", **message))
            assert [block.get("thinking", block.get("text")) for block in found["content"]] == [THOUGHT, "42 "]
            assert found["stop_reason"] == "stop_sequence"
            response = response_of(await events_of(server, "/v1/responses", input=SAID, stop=["Question:"]))
            assert [item["content"][0]["text"] for item in response["output"]] == [THOUGHT, "42 "]
            body = {"model": "scripted", "messages": SAID, "options": {"stop": ["Question:"]}, "stream": False}
            said = (await server.post("/api/chat", **body)).json()["message"]
            assert (said["thinking"], said["content"]) == (THOUGHT, "42 ")

    run(test)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", CALL),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]'),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}'),
        ("json", '{"name": "f", "arguments": {"a": 1}}'),
        ("deepseek_v31", f'{ALL_BEGIN}{BEGIN}f{SEPARATOR}{{"a": 1}}{END}'),
    ],
)
@pytest.mark.parametrize("begun", ["<think>", ""])
def test_a_call_in_a_thought_that_never_ends_is_meant(name: str, text: str, begun: str) -> None:
    """It was lost."""
    format = ReplyFormat(FORMATS[name], REASONING_FORMATS["qwen3"])
    prompt = "" if begun else "<think>\n"
    for before in ("I should look.\n", "A <tool_call> is what I need. "):
        whole = f"{begun}{before}{text}"
        found = []
        for at in range(len(whole)):
            parser = format.parser(USE, prompt, lambda: "1")
            found.append(whole_of([*parser.push(whole[:at]), *parser.push(whole[at:]), *parser.finish()]))
        assert all(each == found[0] for each in found)
        (call,) = found[0].calls
        assert call.is_complete
        assert found[0].reasoning.strip() == before.strip()
        assert found[0].text == ""


def test_a_call_in_a_thought_that_ends_is_a_thought() -> None:
    for reply in (f"<think>Not {CALL} now.</think>No.", f"<think>Not {CALL}</think>No."):
        (content, reasoning, calls, reason), _ = answers(reply, tools=TOOLS)
        assert (content, calls, reason) == ("No.", [], "stop")
        assert f"<think>{reasoning}</think>No." == reply


def test_a_thought_that_was_cut_off_calls_nothing() -> None:
    (_, reasoning, calls, reason), _ = answers(
        f"<think>Perhaps {CALL}", tools=TOOLS, server={"ends": FinishReason.LENGTH}
    )
    assert (calls, reason) == ([], "length")
    assert CALL in reasoning


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\nOk, ", True),
        ("deepseek_r1", "<think>\n</think>\nAnswer: ", False),
        ("qwen3", "assistant\n", None),
        ("deepseek_r1", "assistant\n", True),
        ("mistral", "[THINK]a[/THINK] So ", False),
    ],
)
def test_the_template_may_write_behind_the_tag(name: str, prompt: str, is_open: bool | None) -> None:
    assert REASONING_FORMATS[name].is_open(prompt) is is_open


def test_what_messages_say_of_tags_begins_no_thought() -> None:
    """A user asks about the tag, or quotes one; the answer is no thought."""

    async def test() -> None:
        async with scripted("It begins a thought.") as server:
            for text in ("What is <think>?", "<think>", "i", "Say </think>"):
                answer = await server.chat(messages=[{"role": "user", "content": text}])
                assert answer["choices"][0]["message"]["content"] == "It begins a thought.", text
            thinking = {"chat_template_kwargs": {"enable_thinking": True}}
            for text in ("i", "Say </think>"):
                answer = await server.chat(messages=[{"role": "user", "content": text}], **thinking)
                assert answer["choices"][0]["message"]["reasoning"] == "It begins a thought.", text

    run(test)


def test_thoughts_are_told_from_the_answer_in_any_cut() -> None:
    text = "<|channel|>analysis<|message|>a b<|end|><|start|>assistant<|channel|>final<|message|>c"
    for make, whole, expected in (
        (lambda: Thoughts("<a>", ("</a>",), None), " <a>b</a> c</a>", " c</a>"),
        (lambda: Thoughts("<a>", ("</a>",), None), "<b>c", "<b>c"),
        (lambda: Thoughts("<a>", ("</a>",), True), "b</a>c<a>d</a>", "c<a>d</a>"),
        (lambda: Thoughts("<a>", ("</a>",), False), "<a>b", "<a>b"),
        (
            lambda: Thoughts("<|channel|>analysis", ("<|end|>",), None, recur=True),
            text + text,
            "<|start|>assistant<|channel|>final<|message|>c" * 2,
        ),
    ):
        for size in (1, 2, 3, 7, len(whole)):
            thoughts = make()
            pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
            parts = [part for piece in pieces for part in thoughts.split(piece)] + [*thoughts.flush()]
            assert "".join(text for text, _ in parts) == whole
            assert "".join(text for text, is_answer in parts if is_answer) == expected
