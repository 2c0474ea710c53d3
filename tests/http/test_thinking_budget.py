"""A budget of reasoning ends the thought by its tag, whatever the model wants. The rest of the answer is free."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from scripted import SPECIAL, STOP, scripted
from serving import run
from sluice.engine.messages import Submit
from sluice.runner.grammar.guidance import END, Guidance, GuidanceMatcher
from sluice.text.constraints.grammars import grammar_of
from sluice.text.constraints.shapes import JsonSchema
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.reasoning import REASONING_FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import NO_TOOLS, Tool, ToolUse
from sluice.text.tokenizer import Tokenizer
from tokenizer_makers import byte_tokenizer

SAID = [{"role": "user", "content": "Ask me."}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ENDLESS = "a" * 60
BUDGET = 7
AFTER = 20
"""Tokens after which an answer is called endless."""


class Walk:
    """An output that writes `a` for as long as it may."""

    def __init__(self, tokenizer: Tokenizer, grammar: str) -> None:
        self.tokenizer = tokenizer
        self._matcher: GuidanceMatcher = Guidance(lambda: tokenizer.serialized(END), tokenizer.vocab_size)(
            grammar
        ).matcher()
        (self._a,) = tokenizer.encode("a", add_special_tokens=False)

    def write(self, text: str) -> None:
        self._matcher.consume(self.tokenizer.encode(text, add_special_tokens=False))

    def allows(self, token: int) -> bool:
        bits = np.full(-(-self.tokenizer.vocab_size // 32), -1, dtype=np.int32)
        self._matcher.fill(bits)
        return bool(bits[token // 32] >> (token % 32) & 1)

    def run(self) -> int:
        """Write as many `a` as may follow, and return their number, at most `AFTER`."""
        count = 0
        while count < AFTER and self.allows(self._a):
            self._matcher.consume([self._a])
            count += 1
        return count

    def take(self, tokens: Sequence[int]) -> list[int]:
        """Write tokens until one may not follow, and then what is forced; return what was written."""
        written: list[int] = []
        for token in tokens:
            forced = self._matcher.forced()
            if forced and forced[0] != token:
                break
            if not self.allows(token):
                break
            self._matcher.consume([token])
            written.append(token)
        forced = self._matcher.forced()
        self._matcher.consume(forced)
        return [*written, *forced]

    def forced(self) -> str:
        tokens = self._matcher.forced()
        self._matcher.consume(tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=False)


def walk_of(format: ReplyFormat, prompt: str, special: tuple[str, ...] = SPECIAL, use: ToolUse = NO_TOOLS) -> Walk:
    tokenizer = Tokenizer(byte_tokenizer(special))
    shape = format.shape(use, prompt, None, tokenizer.token_id, budget=BUDGET)
    assert shape is not None
    return Walk(tokenizer, grammar_of(shape))


@pytest.mark.parametrize("special", [SPECIAL, ("<end>",)], ids=["tags are tokens", "tags are texts"])
def test_a_thought_that_the_prompt_began_ends_after_its_budget(special: tuple[str, ...]) -> None:
    walk = walk_of(ReplyFormat(reasoning=REASONING_FORMATS["qwen3"]), "<think>\n", special)
    assert walk.run() == BUDGET
    assert walk.forced() == "</think>"
    assert walk.run() == AFTER


@pytest.mark.parametrize("special", [SPECIAL, ("<end>",)], ids=["tags are tokens", "tags are texts"])
def test_a_thought_that_the_answer_begins_ends_after_its_budget(special: tuple[str, ...]) -> None:
    """Or none is begun: that answer is free."""
    format = ReplyFormat(reasoning=REASONING_FORMATS["qwen3"])
    walk = walk_of(format, "assistant: ", special)
    walk.write("<think>")
    assert walk.run() == BUDGET
    assert walk.forced() == "</think>"
    assert walk.run() == AFTER
    assert walk_of(format, "assistant: ", special).run() == AFTER


def test_a_thought_that_ends_by_itself_is_shorter() -> None:
    walk = walk_of(ReplyFormat(reasoning=REASONING_FORMATS["qwen3"]), "<think>")
    walk.write("aa</think>")
    assert walk.run() == AFTER


def test_harmony_ends_its_analysis() -> None:
    special = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>", "<|constrain|>")
    walk = walk_of(ReplyFormat(FORMATS["openai"]), "<|start|>assistant", special)
    walk.write("<|channel|>analysis<|message|>")
    assert walk.run() == BUDGET
    assert walk.forced().startswith("<|end|><|start|>assistant<|channel|>")


def test_calls_may_follow() -> None:
    """The tokens of their tags are no text."""
    format = ReplyFormat(FORMATS["hermes"], REASONING_FORMATS["qwen3"])
    walk = walk_of(format, "<think>", use=ToolUse((Tool("f"),)))
    assert walk.run() == BUDGET
    walk.write('</think>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')


def test_what_does_not_reason_is_not_constrained() -> None:
    tokenizer = Tokenizer(byte_tokenizer(SPECIAL))
    for format in (ReplyFormat(), ReplyFormat(reasoning=REASONING_FORMATS["qwen3"])):
        assert format.shape(NO_TOOLS, "<think></think>", None, tokenizer.token_id, budget=BUDGET) is None
        schema = JsonSchema({"type": "object"})
        assert format.shape(NO_TOOLS, "<think></think>", schema, tokenizer.token_id, budget=BUDGET) == schema


def asked(path: str, **body: Any) -> tuple[int, Any, list[str]]:
    """Return the status and the body of an answer, and the grammars that the engine got."""
    found: list[Any] = []

    async def test() -> None:
        async with scripted(f"{ENDLESS}</think>b") as server:
            answer = await server.post(path, **body)
            found.append((answer.status_code, answer.json(), [each.grammar for each in server.submitted]))
            found.append(server.tokenizer)

    run(test)
    status, content, grammars = found[0]
    return status, content, [thought_of(found[1], grammar) for grammar in grammars]


def thought_of(tokenizer: Tokenizer, grammar: str) -> str:
    """What a model writes that does not want to stop."""
    if not grammar:
        return "free"
    walk = Walk(tokenizer, grammar)
    return f"{walk.run()} {walk.forced()}"


CHAT = {"messages": SAID, "enable_thinking": True}


@pytest.mark.parametrize(
    "body",
    [
        {"thinking_token_budget": BUDGET},
        {"thinking_budget": BUDGET},
        {"reasoning": {"max_tokens": BUDGET}},
        {"thinking": {"type": "enabled", "budget_tokens": BUDGET}},
        {"thinking_token_budget": BUDGET, "thinking_budget": BUDGET, "tools": TOOLS},
    ],
)
def test_chats_have_the_names_of_all_servers(body: dict[str, Any]) -> None:
    status, _, thoughts = asked("/v1/chat/completions", **CHAT | body)
    assert (status, thoughts) == (200, ["7 </think>"])


def test_other_apis_have_budgets() -> None:
    """Anthropic's was accepted and did nothing."""
    thinking = {"type": "enabled", "budget_tokens": 1024}
    status, _, thoughts = asked("/v1/messages", model="scripted", max_tokens=2000, messages=SAID, thinking=thinking)
    assert (status, thoughts) == (200, [f"{AFTER} "])
    body = {"input": "Ask me.", "reasoning": {"max_tokens": 3}, "chat_template_kwargs": {"enable_thinking": True}}
    status, _, thoughts = asked("/v1/responses", **body)
    assert (status, thoughts) == (200, ["3 </think>"])


def test_neutral_values_ask_for_nothing() -> None:
    for body in ({"thinking_token_budget": None}, {"reasoning": {}}, {"reasoning": {"effort": "low"}}, {}):
        assert asked("/v1/chat/completions", **CHAT | body)[2] == ["free"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"thinking_token_budget": -1}, "thinking_token_budget", "0"),
        ({"reasoning": {"max_tokens": -2}}, "reasoning.max_tokens", "must be at least 0, got -2"),
        ({"reasoning": {"max_tokens": "7"}}, "reasoning.max_tokens", "must be a number of tokens, got a text"),
        ({"thinking_budget": 1 << 20}, "thinking_budget", "more than the context of 8192 tokens"),
        ({"thinking_budget": 1, "thinking_token_budget": 2}, "thinking_budget", "contradict each other"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(body: dict[str, Any], param: str, said: str) -> None:
    status, content, _ = asked("/v1/chat/completions", **CHAT | body)
    assert (status, content["error"]["param"]) == (400, param)
    assert said in content["error"]["message"]


def thinker(answer: str, thought: str = ENDLESS) -> Callable[[Submit], list[int]]:
    """A model that thinks for as long as its grammar lets it, and then answers."""
    tokenizer = Tokenizer(byte_tokenizer(SPECIAL))

    def write(request: Submit) -> list[int]:
        walk = Walk(tokenizer, request.grammar)
        written = walk.take(tokenizer.encode(thought, add_special_tokens=False))
        written += walk.take(tokenizer.encode(answer, add_special_tokens=False))
        return [*written, *tokenizer.encode(STOP, add_special_tokens=False)]

    return write


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("body", "answer", "expected"),
    [
        ({}, "b", ("a" * BUDGET, "b", [], "stop")),
        ({"thinking_budget": 0}, "b", ("", "b", [], "stop")),
        ({"stop": ["a", "c"]}, "bcd", ("a" * BUDGET, "b", [], "stop")),
        ({"stop": "a", "stop_in_reasoning": True}, "b", ("", "", [], "stop")),
        ({"tools": TOOLS}, CALL, ("a" * BUDGET, "", ["f"], "tool_calls")),
        ({"tools": TOOLS, "tool_choice": "required"}, CALL, ("a" * BUDGET, "", ["f"], "tool_calls")),
        ({"tools": TOOLS}, "b", ("a" * BUDGET, "b", [], "stop")),
        ({"response_format": {"type": "json_object"}}, "{}", ("a" * BUDGET, "{}", [], "stop")),
    ],
)
def test_a_chat_whose_thought_would_not_end(
    body: dict[str, Any], answer: str, expected: tuple[str, str, list[str], str]
) -> None:
    """Whole and as a stream: the thought that the budget left, counted, and the answer or the call behind it."""

    async def test() -> None:
        async with scripted("", write=thinker(answer)) as server:
            asked = CHAT | {"thinking_budget": BUDGET} | body
            whole = await server.chat(**asked)
            (choice,) = whole["choices"]
            message = choice["message"]
            calls = [each["function"]["name"] for each in message.get("tool_calls") or ()]
            found = message.get("reasoning") or "", message["content"] or "", calls, choice["finish_reason"]
            assert found == expected
            events = await server.stream(**asked, stream_options={"include_usage": True})
            deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
            reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
            content = "".join(delta.get("content") or "" for delta in deltas)
            names = [
                call["function"]["name"] for delta in deltas for call in delta.get("tool_calls") or () if "id" in call
            ]
            reasons = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
            assert (reasoning, content, names, reasons[-1]) == expected
            for usage in (whole["usage"], events[-1]["usage"]):
                counted = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
                assert counted >= len(expected[0])
                assert counted <= usage["completion_tokens"]

    run(test)


def test_a_response_whose_thought_would_not_end() -> None:
    async def test() -> None:
        async with scripted("", write=thinker("b")) as server:
            body = {"input": "Ask me.", "reasoning": {"max_tokens": BUDGET}}
            body |= {"chat_template_kwargs": {"enable_thinking": True}}
            answer = (await server.post("/v1/responses", **body)).json()
            thought, message = answer["output"]
            assert thought["content"][0]["text"] == "a" * BUDGET
            assert message["content"][0]["text"] == "b"
            assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] >= BUDGET
            streamed = (await server.post("/v1/responses", **body, stream=True)).text
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
            said = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
            assert "".join(said) == "a" * BUDGET

    run(test)


def test_a_message_whose_thought_would_not_end() -> None:
    """Anthropic's least budget is 1,024 tokens."""

    async def test() -> None:
        async with scripted("", write=thinker("b", "a" * 1500)) as server:
            thinking = {"type": "enabled", "budget_tokens": 1024}
            body = {"model": "scripted", "max_tokens": 2000, "messages": SAID, "thinking": thinking}
            answer = (await server.post("/v1/messages", **body)).json()
            thought, text = answer["content"]
            assert (thought["thinking"], text["text"]) == ("a" * 1024, "b")
            assert answer["usage"]["output_tokens"] >= 1026
            streamed = (await server.post("/v1/messages", **body, stream=True)).text
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
            deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
            assert "".join(delta.get("thinking", "") for delta in deltas) == "a" * 1024
            assert "".join(delta.get("text", "") for delta in deltas) == "b"

    run(test)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": "a", "reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ("/v1/responses", {"input": "a", "reasoning": {"max_tokens": 1 << 20}}, "reasoning.max_tokens"),
        ("/v1/responses", {"input": "a", "reasoning": {"max_tokens": "7"}}, "reasoning.max_tokens"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": "7"}}, "thinking.budget_tokens"),
    ],
)
def test_other_apis_refuse_budgets_by_their_names(path: str, body: dict[str, Any], param: str) -> None:
    common = {"model": "scripted", "max_tokens": 2000, "messages": SAID} if path == "/v1/messages" else {}
    status, content, _ = asked(path, **common | body)
    assert status == 400, content
    error = content["error"]
    assert param in (error.get("param"), error["message"].split()[0].strip(":")), error
