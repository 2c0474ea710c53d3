"""`LLM(lora=...)`: an adapter for each prompt of a batch."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import tiny_models
from lora_makers import Lora, wide
from sluice import LLM, AsyncLLM, SamplingParams
from sluice.cli import main
from sluice.config import ConfigError
from tokenizer_makers import byte_tokenizer

LORAS = {"a": Lora(1, rank=3), "b": Lora(2, rank=6)}
PROMPT = [7, 11, 13, 17, 19, 23, 29, 31, 37]
OPTIONS = {"dtype": "float64", "max_total_tokens": 512}
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, adapters `a` and `b`, and a model for each with the adapter in its weights."""
    made = tmp_path_factory.mktemp("lora")
    for name in ("", *LORAS):
        model = wide(tiny_models.llama(vocab_size=257))
        if name:
            LORAS[name].save(model, made / name)
            LORAS[name].merge(model)
        model.save_pretrained(made / f"model{name}")
        byte_tokenizer().save(str(made / f"model{name}" / "tokenizer.json"))
    return made


def merged(folder: Path, name: str) -> tuple[int, ...]:
    with LLM(folder / f"model{name}", **OPTIONS) as llm:
        return llm.generate(PROMPT, GREEDY)[0].samples[0].token_ids


def test_each_prompt_of_a_batch_has_its_adapter(folder: Path) -> None:
    """With one place, too: the prompts wait for their adapters."""
    expected = [merged(folder, name) for name in ("a", "", "b", "a")]
    for places in (2, 1):
        with LLM(
            folder / "model", lora={"a": folder / "a", "b": str(folder / "b")}, max_loras=places, **OPTIONS
        ) as llm:
            found = llm.generate([PROMPT] * 4, GREEDY, adapter=["a", "", "b", "a"])
            assert [result.samples[0].token_ids for result in found] == expected
            assert tuple(piece.token_id for piece in llm.stream(PROMPT, GREEDY, adapter="b")) == expected[2]
            vectors = llm.embed([PROMPT, PROMPT], adapter=["a", ""])
            assert vectors[0].vector.tolist() != vectors[1].vector.tolist()


def test_adapters_are_loaded_and_unloaded(folder: Path) -> None:
    with LLM(folder / "model", enable_lora=True, **OPTIONS) as llm:
        llm.load_adapter("x", folder / "a")
        assert llm.generate(PROMPT, GREEDY, adapter="x")[0].samples[0].token_ids == merged(folder, "a")
        with pytest.raises(ValueError, match="the name 'x' is that of an adapter"):
            llm.load_adapter("x", folder / "b")
        stream = llm.stream(PROMPT, GREEDY, adapter="x")
        first = next(stream)
        llm.unload_adapter("x")
        assert (first.token_id, *(piece.token_id for piece in stream)) == merged(folder, "a")
        with pytest.raises(ValueError, match="no adapter 'x' is loaded"):
            llm.generate(PROMPT, GREEDY, adapter="x")
        llm.load_adapter("x", folder / "b")
        assert llm.generate(PROMPT, GREEDY, adapter="x")[0].samples[0].token_ids == merged(folder, "b")


def test_a_model_without_room_says_so(folder: Path) -> None:
    with LLM(folder / "model", **OPTIONS) as llm, pytest.raises(ValueError, match="enable_lora=True"):
        llm.load_adapter("x", folder / "a")


def test_an_async_llm(folder: Path) -> None:
    async def test() -> None:
        async with AsyncLLM(folder / "model", lora={"a": folder / "a"}, **OPTIONS) as llm:
            await llm.load_adapter("b", folder / "b")
            with pytest.raises(ValueError, match="there is no such folder or file"):
                await llm.load_adapter("c", folder / "nothing")
            for name in ("a", "b", ""):
                found = [piece.token_id async for piece in llm.generate(PROMPT, GREEDY, adapter=name)]
                assert tuple(found) == merged(folder, name)
            llm.unload_adapter("b")
            with pytest.raises(ValueError, match="'b' is loaded"):
                await anext(llm.generate(PROMPT, GREEDY, adapter="b"))

    asyncio.run(asyncio.wait_for(test(), 300))


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["generate", str(folder / "model"), "--prompt", "water", "--max-tokens", "8", "--temperature", "0"]
    asked += ["--dtype", "float64", "--max-total-tokens", "512", "--ignore-eos"]
    texts = {}
    for name in ("", "a"):
        chosen = ["--lora-modules", f"a={folder / 'a'}", "--adapter", name] if name else []
        assert main([*asked, *chosen]) == 0
        texts[name] = capsys.readouterr().out
    assert texts[""] != texts["a"]
    assert main([*asked, "--adapter", "z"]) == 2
    assert "--adapter must be one of --lora-modules, which is not given, got 'z'" in capsys.readouterr().err


def test_the_disk_keeps_pages_by_adapter(folder: Path, tmp_path: Path) -> None:
    """Another process finds what was computed with the same adapter, under any name, and nothing else."""
    options = {**OPTIONS, "page_size": 8, "kv_disk": str(tmp_path / "pages"), "kv_disk_bytes": 4 << 20}
    prompt = PROMPT * 4
    with LLM(folder / "model", lora={"a": folder / "a"}, **options) as llm:
        llm.generate(prompt, GREEDY, adapter="a")
    cached = {}
    with LLM(folder / "model", lora={"other": folder / "a", "b": folder / "b"}, **options) as llm:
        for name in ("", "b", "other"):
            cached[name] = llm.generate(prompt, GREEDY, adapter=name)[0].num_disk_tokens
    assert cached == {"": 0, "b": 0, "other": 32}


def test_adapters_that_cannot_be_read_are_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--lora-modules z=.*there is no such folder or file"):
        LLM(folder / "model", lora={"z": folder / "nothing"}, **OPTIONS)


def test_no_thread_outlives_the_model(folder: Path) -> None:
    """One that freed an adapter while the interpreter ended aborted the process, after a program that had worked."""
    before = threading.enumerate()  # other models of this process may have such threads
    with LLM(folder / "model", lora={"a": folder / "a"}, **OPTIONS) as llm:
        llm.generate(PROMPT, GREEDY, adapter="a")
        own = [each for each in threading.enumerate() if each.name == "adapters" and each not in before]
    assert own
    assert not any(thread.is_alive() for thread in own)
