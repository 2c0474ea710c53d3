"""Adapters in an engine: each request's tokens are those of a model with its adapter merged into the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from lora_makers import ATTENTION, Lora, wide
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.testing.link import ManualLink
from sluice.types import SamplingParams, Submit
from sluice.types.adapters import AdapterLimits

LIMITS = AdapterLimits(max_loras=8, max_lora_rank=16)
LORAS = (
    Lora(1, rank=1),
    Lora(2, rank=3, alpha=5.0),
    Lora(3, rank=16, alpha=4.0, use_rslora=True),
    Lora(4, rank=8, targets=ATTENTION),
    Lora(5, rank=2, targets=("q_proj", "v_proj")),
    Lora(6, rank=5, targets=("gate_proj", "down_proj")),
    Lora(7, rank=4, rank_pattern={"layers.0.self_attn.q_proj": 7}, alpha_pattern={"up_proj": 1.5}),
    Lora(8, rank=6, targets=("o_proj", "up_proj", "k_proj")),
)
BY_NAME = {f"lora-{lora.seed}": lora for lora in LORAS}
MOST = 12
PROMPTS = [tiny_models.prompt(length, number) for number, length in enumerate((5, 17, 30, 9, 41, 3, 22, 12, 26, 8))]


class Served:
    """An engine over a model with adapters."""

    def __init__(self, folder: Path, loras: Mapping[str, Path], **options: Any) -> None:
        options = {"model": str(folder), "dtype": "float64", "max_total_tokens": 2048, "page_size": 8} | options
        limits = LIMITS if loras else None
        self.loaded: LoadedModel = load(EngineConfig.from_options(options), progress=False, adapter_limits=limits)
        self.digests: dict[str, str] = {"": ""}
        for name, path in loras.items():
            assert self.loaded.adapters is not None
            adapter = self.loaded.adapters.read(name, str(path))
            self.loaded.adapters.load(adapter)
            self.digests[name] = adapter.info.digest

    def tokens(self, asked: Sequence[tuple[str, Sequence[int]]], most: int = MOST) -> list[tuple[int, ...]]:
        """Return the tokens of requests that run together, given each one's adapter and prompt."""
        sampling = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
        sampling = sampling.resolved(eos_ids=(), room=most, seed=0)
        link = ManualLink()
        engine = self.loaded.engine(link)
        link.put(
            *(
                Submit(number, tuple(prompt), sampling, adapter=self.digests[name], extra_key=self.digests[name])
                for number, (name, prompt) in enumerate(asked)
            )
        )
        engine.step()
        while engine.scheduler.has_work:
            engine.step()
        return [link.tokens(number) for number in range(len(asked))]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    wide(tiny_models.llama()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("adapters"), tiny_models.llama()
    return {name: lora.save(model, folder / name) for name, lora in BY_NAME.items()}


class Merged:
    """Models with one adapter in their weights, each loaded when it is first asked."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base = base
        self._folder = folder
        self._served: dict[str, Served] = {}

    def tokens(self, name: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a prompt with an adapter, or without one."""
        if name not in self._served:
            folder = self._base
            if name:
                model, folder = wide(tiny_models.llama()), self._folder / name
                BY_NAME[name].merge(model)
                model.save_pretrained(folder)
            self._served[name] = Served(folder, {})
        return self._served[name].tokens([("", prompt)])[0]


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Merged:
    return Merged(base, tmp_path_factory.mktemp("merged"))


def test_many_adapters_in_one_step(base: Path, adapters: dict[str, Path], merged: Merged) -> None:
    """Rows of one adapter that are computed with another one's matrices, or rows without one that are changed."""
    names = [*adapters, "", ""]
    asked = list(zip(names, PROMPTS, strict=True))
    found = Served(base, adapters).tokens(asked)
    assert found == [merged.tokens(name, prompt) for name, prompt in asked]
    assert len(set(found)) == len(found)
