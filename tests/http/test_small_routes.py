"""Small things that clients and routers look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripted import scripted
from serving import run
from sluice.http.call.fill_in import FILE, KNOWN, Fill, filled

SAID = [{"role": "user", "content": "hi"}]


def test_what_describes_the_tokenizer() -> None:
    """lm-eval's remote tokenizer asks for it."""

    async def test() -> None:
        async with scripted("Yes.") as server:
            info = (await server.http.get("/tokenizer_info")).json()
            assert info["chat_template"] == server.tokenizer.chat_template_source
            assert info["vocab_size"] == server.tokenizer.vocab_size
            assert (info["bos_token"], info["eos_token"]) == (None, None)

    run(test)


def test_the_tokens_of_a_response_are_counted() -> None:
    async def test() -> None:
        async with scripted("Yes.") as server:
            body: dict[str, Any] = {"input": SAID, "instructions": "Be kind."}
            counted = (await server.post("/v1/responses/input_tokens", **body)).json()
            assert not server.submitted
            used = (await server.post("/v1/responses", **body)).json()["usage"]
            assert counted == {"object": "response.input_tokens", "input_tokens": used["input_tokens"]}
            refused = await server.post("/v1/responses/input_tokens", input=[])
            assert refused.status_code == 400

    run(test)


def test_ollamas_settings_of_today() -> None:
    async def test() -> None:
        async with scripted("<think>Hm.</think>Yes.") as server:
            for settings in ({"think": "max"}, {"options": {"num_predict": 0}}):
                answer = await server.post("/api/chat", model="scripted", messages=SAID, stream=False, **settings)
                assert answer.json()["message"]["content"] == "Yes.", answer.text
            for given in ("", []):
                answer = await server.post("/api/embed", model="scripted", input=given)
                assert (answer.status_code, answer.json()["embeddings"]) == (200, []), answer.text
            assert (await server.post("/api/embeddings", model="scripted", prompt="")).json() == {"embedding": []}
            assert (await server.post("/api/embed", model="scripted", input=[""])).status_code == 400

    run(test)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank"])
def test_a_prompt_that_is_not_to_be_cut(path: str) -> None:
    """vllm bench sends it always; what it would cut is refused as too long here."""

    async def test() -> None:
        async with scripted("Yes.") as server:
            body = {"input": ""} if path == "/v1/embeddings" else {"query": "", "documents": ["a"]}
            answer = await server.post(path, **body, truncate_prompt_tokens=-1)
            assert "truncate_prompt_tokens" not in answer.text
            answer = await server.post(path, **body, truncate_prompt_tokens=5)
            assert "truncate_prompt_tokens is not supported" in answer.text

    run(test)


@pytest.mark.parametrize(
    ("format", "status"),
    [
        ({"type": "json_schema", "json_schema": {"enum": [1]}, "style": "json"}, 200),
        ({"type": "json_schema", "json_schema": {"enum": [1]}, "style": "qwen_xml"}, 400),
        ({"type": "any_text", "excludes": []}, 200),
        ({"type": "any_text", "excludes": ["x"]}, 400),
        ({"type": "any_text", "max_chars": 5}, 400),
        ({"type": "sequence", "elements": [{"type": "any_text"}], "any_order": False}, 200),
        ({"type": "sequence", "elements": [{"type": "any_text"}], "any_order": True}, 400),
    ],
)
def test_what_structural_tags_ask_for_is_not_lost(format: Any, status: int) -> None:
    async def test() -> None:
        async with scripted("1") as server:
            tag = {"type": "structural_tag", "format": format}
            answer = await server.post("/v1/chat/completions", messages=SAID, response_format=tag)
            assert answer.status_code == status, answer.text

    run(test)


@pytest.mark.parametrize("tokens", KNOWN)
def test_the_text_between_two_others(tokens: Any) -> None:
    """Editors complete code in the middle of a file."""

    async def test() -> None:
        async with scripted(" + b", special=("<end>", *tokens)) as server:
            expected = filled(tokens, "return a", Fill("\n\nx"))
            for path, body in (
                ("/v1/completions", {"prompt": "return a"}),
                ("/api/generate", {"model": "scripted", "prompt": "return a", "stream": False}),
            ):
                answer = await server.post(path, **body, suffix="\n\nx")
                assert answer.status_code == 200, answer.text
                assert server.prompts()[-1] == expected
                assert len(server.submitted[-1].prompt) == len("return a\n\nx") + (2 if "[PREFIX]" in tokens else 3)

    run(test)


def test_a_model_without_tokens_to_fill_in() -> None:
    async def test() -> None:
        async with scripted("x") as server:
            answer = await server.post("/v1/completions", prompt="a", suffix="b")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")
            answer = await server.post("/v1/completions", prompt=[1], suffix="b")
            assert answer.json()["error"]["param"] == "suffix"

    run(test)


def test_infill_of_llama_cpp() -> None:
    """What its editors' plugins send: two other files, the lines around the cursor, and one to read ahead."""
    tokens = KNOWN[0]
    extra = [{"filename": "a.py", "text": "A = 1"}, {"text": "B = 2"}]
    body: dict[str, Any] = {
        "input_prefix": "def f():\n",
        "input_suffix": "\nf()",
        "input_extra": extra,
        "prompt": "    ret",
        "n_predict": 64,
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "n_indent": 0,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "stop": ["\n\n"],
        "id_slot": 0,
    }

    async def test() -> None:
        async with scripted("urn 1\n\nx", special=("<end>", *tokens, FILE)) as server:
            whole = (await server.post("/infill", **body)).json()
            assert (whole["content"], whole["stop_type"], whole["stopping_word"]) == ("urn 1", "word", "\n\n")
            others = f"{FILE}a.py\nA = 1\n{FILE}tmp\nB = 2\n"
            begin, suffix, middle = tokens
            assert server.prompts()[0] == f"{others}{begin}def f():\n{suffix}\nf(){middle}    ret"
            assert whole["tokens_evaluated"] == len(server.submitted[0].prompt)
            streamed = await server.post("/infill", **body, stream=True)
            *parts, done = (data.removeprefix("data: ") for data in streamed.text.split("\n\n") if data)
            assert done == "[DONE]"
            assert "".join(json.loads(part)["content"] for part in parts) == "urn 1"
            assert [json.loads(part)["stop"] for part in parts].index(True) == len(parts) - 1
            with_ids = body | {"stream": True, "stream_options": {"include_event_ids": True}}
            parts = (await server.post("/infill", **with_ids)).text.split("\n\n")
            last = parts[2].split("\n")[0].removeprefix("id: ")
            rest = await server.http.post("/infill", json=with_ids, headers={"Last-Event-ID": last})
            assert rest.text.split("\n\n") == parts[3:]
            warm = await server.post("/infill", **body | {"n_predict": 0, "samplers": []})
            assert (warm.status_code, warm.json()["content"]) == (200, "")
        async with scripted("x") as server:
            assert (await server.post("/infill", **body)).status_code == 400

    run(test)
