"""SGLang's own API, by the requests and answers that its documentation shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving import MODEL, Server, expected_text, run, serving
from shadow_engine import MAX_MODEL_LEN, NUM_PAGES, PAGE_SIZE, VOCAB
from sluice.engine.messages import Submit
from sluice.http.apis.sglang import NativeAnswer, parse_generate
from sluice.http.base.turns import Turns, fragments
from sluice.http.call.generate_call import Settled
from sluice.http.call.generation import Generation
from sluice.testing import oracle_logprobs
from sluice.text.text_stream import Piece
from sluice.types import FinishReason, TokenLogprobs

GENERATE = "/generate"
SAMPLING = {"temperature": 0, "max_new_tokens": 6, "sampling_seed": 0}


def test_an_answer() -> None:
    async def test() -> None:
        async with serving() as server:
            answer = (await server.post(GENERATE, text="abcde", sampling_params=SAMPLING, rid="mine")).json()
            text = expected_text("abcde", 6)
            assert (answer["text"], answer["output_ids"]) == (text, list(text.encode()))
            meta = answer["meta_info"]
            assert meta.pop("e2e_latency") > 0
            assert meta == {
                "id": "mine",
                "finish_reason": {"type": "length", "length": 6},
                "prompt_tokens": 5,
                "completion_tokens": 6,
                "cached_tokens": 0,
            }
            again = (await server.post(GENERATE, input_ids=list(b"abcde"), sampling_params=SAMPLING)).json()
            assert again["text"] == text
            assert again["meta_info"]["cached_tokens"] == PAGE_SIZE
            assert "cached_tokens_details" not in again["meta_info"]

    run(test)


def test_its_benchmark_reads_the_stream() -> None:
    """It looks at `text`, which grows, and counts tokens by `completion_tokens`."""
    body = {
        "text": "ab",
        "sampling_params": SAMPLING | {"ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "image_data": None,
    }

    async def test() -> None:
        async with serving() as server:
            events = await server.events(GENERATE, **{name: body[name] for name in body if name != "stream"})
            text = expected_text("ab", 6)
            counts = [event["meta_info"]["completion_tokens"] for event in events]
            assert counts == sorted(set(counts))
            assert [event["text"] for event in events] == [text[:count] for count in counts]
            assert events[-1]["text"] == text
            assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
            assert "index" not in events[0]
            flushed = await server.post("/flush_cache")
            assert flushed.status_code == 200

    run(test)


@pytest.mark.parametrize("given", [{"text": ["ab", "c"]}, {"input_ids": [[97, 98], [99]]}])
def test_a_batch_is_a_list(given: dict[str, Any]) -> None:
    async def test() -> None:
        async with serving() as server:
            texts = [expected_text("ab", 6), expected_text("c", 6)]
            answer = (await server.post(GENERATE, sampling_params=SAMPLING, **given)).json()
            assert [item["text"] for item in answer] == texts
            assert len({item["meta_info"]["id"] for item in answer}) == 2
            events = await server.events(GENERATE, sampling_params=SAMPLING, **given)
            last = {event["index"]: event["text"] for event in events}
            assert [last[0], last[1]] == texts
            many = (await server.post(GENERATE, text="a", sampling_params=SAMPLING | {"n": 3})).json()
            assert len(many) == 3

    run(test)


def test_log_probabilities() -> None:
    async def test() -> None:
        async with serving() as server:
            asked = {"text": "abc", "sampling_params": SAMPLING, "return_logprob": True, "top_logprobs_num": 2}
            of_prompt, of_outputs = oracle_logprobs(
                list(b"abc"), list(expected_text("abc", 6).encode()), 2, vocab_size=VOCAB
            )
            meta = (await server.post(GENERATE, **asked)).json()["meta_info"]
            assert meta["input_token_logprobs"] == []
            assert meta["output_token_logprobs"] == [
                [pytest.approx(item.logprob), item.token_id, None] for item in of_outputs
            ]
            assert [[entry[1] for entry in entries] for entries in meta["output_top_logprobs"]] == [
                [token for token, _ in item.top] for item in of_outputs
            ]
            asked |= {"logprob_start_len": 1, "return_text_in_logprobs": True}
            meta = (await server.post(GENERATE, **asked)).json()["meta_info"]
            assert meta["input_token_logprobs"] == [
                [pytest.approx(item.logprob), item.token_id, chr(item.token_id)] for item in of_prompt
            ]
            meta = (await server.post(GENERATE, **(asked | {"logprob_start_len": 0}))).json()["meta_info"]
            assert meta["input_token_logprobs"][0] == [None, 97, "a"]
            assert meta["input_top_logprobs"][0] is None

    run(test)


def test_a_stream_scores_its_prompt_once() -> None:
    """Repeated in every event, those of 6,000 tokens were 2.6 MB for each token of output."""
    asked = {"sampling_params": SAMPLING, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}

    async def test() -> None:
        async with serving() as server:
            whole = (await server.post(GENERATE, text=["abc", "de"], **asked)).json()
            events = await server.events(GENERATE, text=["abc", "de"], **asked)
            for index, expected in enumerate(whole):
                own = [event["meta_info"] for event in events if event["index"] == index]
                for name in ("input_token_logprobs", "input_top_logprobs"):
                    assert own[0][name] == expected["meta_info"][name]
                    assert all(name not in meta for meta in own[1:])
                for name in ("output_token_logprobs", "output_top_logprobs"):
                    assert own[-1][name] == expected["meta_info"][name]

    run(test)


def test_the_bytes_of_a_stream_grow_with_its_length() -> None:
    """Each event repeats the output so far, so an event for each token would take the square of the length."""
    body = {"text": "a", "stream": True, "return_logprob": True, "top_logprobs_num": 20}

    async def bytes_of(server: Server, tokens: int) -> int:
        call = parse_generate(json.dumps(body).encode())
        generation = Generation(server.backend.service(), call, Settled(call.sampling), Turns(), came_at=0.0, created=0)
        await generation.prepare([[97]])
        answer, sent, events = NativeAnswer(call, generation), 0, []
        scored = TokenLogprobs(97, -0.123456789, ((97, -0.123456789),) * 20)
        for number in range(tokens):
            reason = FinishReason.LENGTH if number == tokens - 1 else None
            events = [b"".join(fragments(event)) for event in answer.chunks([(0, Piece(97, "a", reason, scored))])]
            sent += sum(map(len, events))
        (last,) = events
        assert len(json.loads(last)["meta_info"]["output_top_logprobs"]) == tokens
        return sent

    async def test() -> None:
        async with serving() as server:
            assert await bytes_of(server, 4000) < 2.5 * await bytes_of(server, 2000)

    run(test)


def test_names_of_its_own_reach_the_engine() -> None:
    params = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "top_k": 7,
        "repetition_penalty": 1.5,
        "stop": None,
        "stop_token_ids": [3],
        "skip_special_tokens": True,
        "regex": None,
        "logit_bias": {"5": 1},
    }

    async def test() -> None:
        async with serving() as server:
            assert (await server.post(GENERATE, text="a", sampling_params=params)).status_code == 200
            (submit,) = [message for message in server.sent if isinstance(message, Submit)]
            sampling = submit.sampling
            assert (sampling.max_tokens, sampling.min_tokens, sampling.top_k) == (9, 2, 7)
            assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, ((5, 1.0),))
            assert sampling.stop_token_ids == (3,)
            plain = (await server.post(GENERATE, text="a")).json()
            assert plain["meta_info"]["completion_tokens"] == 128

    run(test)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"text": "a", "rid": "x" * 257}, "rid", "at most 256 characters, got 257"),
    ({}, "text", "either text or input_ids"),
    ({"text": "a", "input_ids": [1]}, "text", "either"),
    ({"text": 5}, "text", "got `int`"),
    ({"text": ""}, "text", "an empty text"),
    ({"input_ids": ["a"]}, "input_ids", "go into text"),
    ({"text": ["a"] * 40, "sampling_params": {"n": 128}}, "text", "5120 choices"),
    ({"input_ids": [VOCAB]}, "prompt", f"token id {VOCAB}"),
    ({"text": "a", "sampling_params": [{}]}, "sampling_params", "got `array`"),
    (
        {"text": "a", "sampling_params": {"max_new_tokens": 0}},
        "sampling_params.max_new_tokens",
        "max_new_tokens must be an integer of at least 1, got 0",
    ),
    ({"text": "a", "sampling_params": {"max_new_tokens": "5"}}, "sampling_params.max_new_tokens", "got `str`"),
    ({"text": "a", "sampling_params": {"max_tokens": 5}}, "sampling_params.max_tokens", "not supported"),
    ({"text": "a", "sampling_params": {"regex": "("}}, "sampling_params.regex", "invalid regex"),
    ({"text": "a", "regex": "a*"}, "regex", "not supported"),
    (
        {"text": "a", "sampling_params": {"max_new_tokens": MAX_MODEL_LEN}},
        "sampling_params.max_new_tokens",
        "context is",
    ),
    ({"text": "a", "image_data": "x"}, "image_data", "not supported"),
    ({"text": "a", "top_logprobs_num": 2}, "top_logprobs_num", "return_logprob"),
    ({"text": "a", "logprob_start_len": 0}, "logprob_start_len", "return_logprob"),
    ({"text": "a", "logprob_start_len": -2, "return_logprob": True}, "logprob_start_len", "got -2"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", "0 to 20"),
    ({"text": "a", "timeout": 0}, "timeout", "above 0"),
    ({"text": "a", "extra_key": ""}, "extra_key", "extra_key must be a text of 1 to 256"),
]


def test_bad_requests() -> None:
    async def test() -> None:
        async with serving() as server:
            for body, param, said in BAD:
                answer = await server.post(GENERATE, **body)
                assert answer.status_code == 400, body
                error = answer.json()["error"]
                assert (error["param"], said in error["message"]) == (param, True), error

    run(test)


def test_a_flush_forgets_the_cache() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a" * 3 * PAGE_SIZE, max_tokens=1)
            assert (await server.http.get("/server_info")).json()["cached_pages"] == 3
            answer = await server.post("/flush_cache")
            assert answer.json() == {"success": True, "cached_pages": 0}
            assert (await server.http.get("/get_server_info")).json()["free_pages"] == NUM_PAGES
            again = await server.complete(prompt="a" * 3 * PAGE_SIZE, max_tokens=1)
            assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    run(test)


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_as_its_clients_ask_for_it(path: str) -> None:
    async def test() -> None:
        async with serving() as server:
            about = (await server.http.get(path)).json()
            assert (about["model_path"], about["is_generation"]) == (MODEL, True)
            assert about["context_length"] == MAX_MODEL_LEN

    run(test)
