"""Log-probabilities over HTTP, against the shadow model's own, in the types of OpenAI's client."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from serving import expected_text, run, serving
from shadow_engine import VOCAB
from sluice.http.call.logprobs import (
    PromptToken,
    TopLogprob,
    chat_logprobs,
    completion_logprobs,
    finite,
    offsets_of,
    prompt_logprobs,
    scored_pieces,
    shares,
)
from sluice.testing import oracle_logprobs
from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import TokenLogprobs

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
HELLO_PROMPT = "user: hello\n"


def about(number: float) -> Any:
    return pytest.approx(number, abs=1e-9)


def expected(prompt: str, output: str, count: int) -> tuple[Any, Any]:
    return oracle_logprobs(list(prompt.encode()), list(output.encode()), count, vocab_size=VOCAB)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_completion_scores_each_of_its_tokens(count: int) -> None:
    async def test() -> None:
        async with serving() as server:
            answer = await server.complete(prompt="ab", max_tokens=9, seed=3, logprobs=count)
            Completion.model_validate(answer)
            (choice,) = answer["choices"]
            text = expected_text("ab", 9, seed=3)
            assert choice["text"] == text
            logprobs = choice["logprobs"]
            _, items = expected("ab", text, count)
            assert logprobs["tokens"] == list(text)
            assert logprobs["text_offset"] == list(range(9))
            assert logprobs["token_logprobs"] == [about(item.logprob) for item in items]
            for top, item in zip(logprobs["top_logprobs"], items, strict=True):
                pairs = {chr(token): about(logprob) for token, logprob in (*item.top, (item.token_id, item.logprob))}
                assert top == pairs
                assert count <= len(top) <= count + 1

    run(test)


def test_a_completion_stream_has_the_same_token_by_token() -> None:
    async def test() -> None:
        async with serving() as server:
            body = {"prompt": ["ab", "c"], "max_tokens": 6, "seed": 0, "logprobs": 2}
            whole = await server.complete(**body)
            events = await server.events(COMPLETIONS, **body)
            for index, choice in enumerate(whole["choices"]):
                parts = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["index"] == index]
                assert all(len(part["tokens"]) == 1 for part in parts)
                joined = {name: [part[name][0] for part in parts] for name in choice["logprobs"]}
                assert joined == choice["logprobs"]

    run(test)


def test_no_log_probabilities_unless_asked_for() -> None:
    async def test() -> None:
        async with serving() as server:
            (choice,) = (await server.complete(prompt="ab", max_tokens=3))["choices"]
            assert choice["logprobs"] is None
            assert "prompt_logprobs" not in choice
            chat = (await server.post(CHAT, messages=HELLO, max_tokens=3, logprobs=False, top_logprobs=0)).json()
            assert chat["choices"][0]["logprobs"] is None
            assert "prompt_logprobs" not in chat

    run(test)


def test_a_chat_and_its_stream_have_the_same() -> None:
    async def test() -> None:
        async with serving() as server:
            body: dict[str, Any] = {
                "messages": HELLO,
                "max_tokens": 7,
                "seed": 0,
                "logprobs": True,
                "top_logprobs": 3,
            }
            answer = (await server.post(CHAT, **body)).json()
            ChatCompletion.model_validate(answer)
            text = answer["choices"][0]["message"]["content"]
            _, items = expected(HELLO_PROMPT, text, 3)
            content = answer["choices"][0]["logprobs"]["content"]
            assert [entry["token"] for entry in content] == list(text)
            for entry, item in zip(content, items, strict=True):
                assert entry["logprob"] == about(item.logprob)
                assert entry["bytes"] == [item.token_id]
                tops = [(top["token"], top["logprob"], top["bytes"]) for top in entry["top_logprobs"]]
                assert tops == [(chr(token), about(logprob), [token]) for token, logprob in item.top]
            opening, *events = await server.events(CHAT, **body)
            for event in (opening, *events):
                ChatCompletionChunk.model_validate(event)
            assert opening["choices"][0]["logprobs"] is None
            assert [entry for event in events for entry in event["choices"][0]["logprobs"]["content"]] == content
            alone = (await server.post(CHAT, **body | {"top_logprobs": None})).json()
            assert [e["top_logprobs"] for e in alone["choices"][0]["logprobs"]["content"]] == [[]] * 7

    run(test)


def check_prompt(entries: list[Any], prompt: str, count: int) -> None:
    items, _ = expected(prompt, "", count)
    assert entries[0] is None
    for entry, item in zip(entries[1:], items, strict=True):
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(item.top, start=1)}
        ranked.setdefault(item.token_id, (item.logprob, None))
        assert entry == {
            str(token): {"logprob": about(logprob), "rank": rank, "decoded_token": chr(token)}
            for token, (logprob, rank) in ranked.items()
        }


@pytest.mark.parametrize("count", [0, 2])
def test_prompt_logprobs_are_complete_cold_and_warm(count: int) -> None:
    """The second time the prompt is cached, and none of it may come from there; a chat has them at the top."""

    async def test() -> None:
        async with serving() as server:
            prompt = "a prompt of several pages, and of more than one chunk"
            for _ in range(2):
                answer = await server.complete(prompt=[prompt, "b"], max_tokens=2, prompt_logprobs=count)
                first, second = answer["choices"]
                check_prompt(first["prompt_logprobs"], prompt, count)
                assert second["prompt_logprobs"] == [None]
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            chat = (await server.post(CHAT, messages=HELLO, max_tokens=2, prompt_logprobs=count)).json()
            ChatCompletion.model_validate(chat)
            check_prompt(chat["prompt_logprobs"], HELLO_PROMPT, count)

    run(test)


def test_samples_of_one_prompt_share_its_logprobs() -> None:
    """The first sample scores the prompt; the others take its pages, and every choice shows the same."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.complete(
                prompt=["same prompt", "other"], n=3, max_tokens=4, prompt_logprobs=1, logprobs=1
            )
            for index, choice in enumerate(answer["choices"]):
                check_prompt(choice["prompt_logprobs"], ["same prompt", "other"][index // 3], 1)
                assert choice["logprobs"]["tokens"] == list(choice["text"])

    run(test)


def test_a_stop_token_is_scored_and_is_not_in_the_text() -> None:
    """One for each token that `usage` counts."""

    async def test() -> None:
        async with serving() as server:
            text = expected_text("ab", 12)
            stop = text.index(text[5])
            body = {"prompt": "ab", "max_tokens": 12, "seed": 0, "stop_token_ids": [ord(text[5])], "logprobs": 0}
            answer = await server.complete(**body)
            (choice,) = answer["choices"]
            assert choice["text"] == text[:stop]
            assert choice["logprobs"]["tokens"] == list(text[: stop + 1])
            assert answer["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"])

    run(test)


def partial_tokenizer() -> Tokenizer:
    """Ids: 0 and 1 are the two bytes of an e with an acute accent, 2 is "a", 3 is special; there is no 4."""
    backend = Backend(models.BPE({"Ã": 0, "©": 1, "a": 2}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend)


def scored(token: int, *top: tuple[int, float]) -> TokenLogprobs:
    return TokenLogprobs(token, -1.5, top)


def test_parts_of_characters_special_and_unknown_tokens_have_names() -> None:
    """Dropping or merging them would misalign the lists; a replacement character alone would hide which it was."""
    tokenizer = partial_tokenizer()
    pieces = [
        Piece(0, "", None, scored(0, (1, -0.5), (0, -1.5)), 0),
        Piece(1, "é", None, scored(1, (1, -1.5), (4, -3.0)), 0),
        Piece(3, "", None, scored(3, (3, -1.5), (2, -math.inf)), 1),
        Piece(None, "", None),
    ]
    completion = completion_logprobs(tokenizer, scored_pieces(pieces), offsets_of(pieces))
    assert msgspec.to_builtins(completion) == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "<eos>"],
        "token_logprobs": [-1.5, -1.5, -1.5],
        "top_logprobs": [
            {"bytes:\\xa9": -0.5, "bytes:\\xc3": -1.5},
            {"bytes:\\xa9": -1.5, "token_id:4": -3.0},
            {"<eos>": -1.5, "a": -9999.0},
        ],
        "text_offset": [0, 0, 1],
    }
    chat = chat_logprobs(tokenizer, pieces)
    assert chat is not None
    assert [(each.token, each.bytes) for each in chat.content] == [
        ("�", [0xC3]),
        ("�", [0xA9]),
        ("<eos>", list(b"<eos>")),
    ]
    assert chat.content[1].top_logprobs[1] == TopLogprob("token_id:4", -3.0, None)
    (entry,) = prompt_logprobs(tokenizer, [scored(2, (3, -0.5))])
    assert entry == {"2": PromptToken(-1.5, None, "a"), "3": PromptToken(-0.5, 1, "<eos>")}


def test_minus_infinity_becomes_openais_number() -> None:
    assert (finite(-math.inf), finite(-9999.5), finite(-3.0)) == (-9999.0, -9999.0, -3.0)


def test_shares_of_some_tokens() -> None:
    """Of tokens that cannot come, such as ids behind the tokenizer's, they would be 0 divided by 0."""
    assert shares([math.log(0.3), math.log(0.1)]) == pytest.approx([0.75, 0.25])
    assert shares([math.log(0.4), math.log(0.1)], 0.5) == pytest.approx([16 / 17, 1 / 17])
    assert shares([-2000.0, -math.inf]) == [1.0, 0.0]
    assert shares([-math.inf, -math.inf]) == [0.0, 0.0]
