"""The choice of CPU kernels, on this machine and on others."""

from __future__ import annotations

import _ctypes
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sluice.assembly.devices
from sluice.assembly.devices import choose_kernels
from sluice.attention.native import NativeBackend
from sluice.config import ConfigError
from sluice.kernels.cpu.library import KernelsUnavailable, Level, Library
from sluice.models.spec import ModelSpec

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    hidden_size=256,
    vocab_size=9,
    max_model_len=64,
    eos_token_ids=(),
    dtype=torch.bfloat16,
)


class Machine(Library):
    """A library on a processor with these levels."""

    def __init__(self, *levels: Level) -> None:
        self._has = levels

    def has(self, level: Level) -> bool:
        return level in self._has


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    def install(*levels: Level) -> None:
        monkeypatch.setattr(sluice.assembly.devices, "Library", lambda: Machine(*levels))

    return install


def test_a_requested_level_is_used(on) -> None:
    """`--cpu-kernels avx2` also works on a processor with more."""
    on(Level.SCALAR, Level.AVX2, Level.AVX512)
    assert choose_kernels("avx2", "cpu").name == "avx2"
    assert choose_kernels("torch", "cpu").name == "torch"
    assert choose_kernels("auto", "cpu").name == "avx512"


def test_an_unsupported_level_is_refused(on) -> None:
    on(Level.SCALAR, Level.AVX2)
    with pytest.raises(ConfigError, match="--cpu-kernels amx: this processor lacks it; it has scalar, avx2"):
        choose_kernels("amx", "cpu")


def test_without_avx2_torch_computes(on) -> None:
    """The scalar kernels are only for tests, since torch is faster."""
    on(Level.SCALAR, Level.SCALAR_TILES)
    choice = choose_kernels("auto", "cpu")
    assert choice.name == "torch"
    assert choice.reason == "no compiled kernels: this processor has no AVX2"
    assert choose_kernels("scalar", "cpu").name == "scalar"


def test_levels_for_tests_are_never_chosen(on) -> None:
    """Emulated tiles have the highest numbers, but are the slowest."""
    on(*(level for level in Level if level != Level.AMX))
    assert choose_kernels("auto", "cpu").name == "avx512-bf16"
    on(*Level)
    assert choose_kernels("auto", "cpu").name == "amx"


def test_an_installation_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch computes, and an explicit request for kernels gets an error with the reason."""

    def library() -> Library:
        return Library(tmp_path)

    monkeypatch.setattr(sluice.assembly.devices, "Library", library)
    choice = choose_kernels("auto", "cpu")
    assert choice.name == "torch"
    assert "no C++ compiler" in str(choice.reason)
    with pytest.raises(ConfigError, match=r"--cpu-kernels avx2 cannot be had: .*no C\+\+ compiler"):
        choose_kernels("avx2", "cpu")


def test_a_gpu_does_not_use_cpu_kernels(on) -> None:
    on(*Level)
    assert choose_kernels("auto", "cuda").name == "torch"
    with pytest.raises(ConfigError, match="--cpu-kernels avx2 needs --device cpu"):
        choose_kernels("avx2", "cuda")


@pytest.mark.parametrize(
    ("change", "page_size", "problem"),
    [
        ({}, 32, None),
        ({"dtype": torch.float32, "head_dim": 80}, 16, None),
        ({"dtype": torch.float64}, 32, "the model is float64"),
        ({"dtype": torch.float16}, 32, "the model is float16"),
        ({"head_dim": 72}, 32, "got 72"),
        ({"head_dim": 528}, 32, "up to 512"),
        ({}, 8, "--page-size is 8"),
    ],
)
def test_models_that_the_kernels_support(change: dict, page_size: int, problem: str | None) -> None:
    found = NativeBackend().supports(replace(SPEC, **change).attention, page_size, torch.device("cpu"))
    assert found is None if problem is None else problem in str(found)


def test_refuses_a_library_of_another_version(tmp_path: Path) -> None:
    """A library from an older checkout was loaded without an error, and read the wrong fields."""
    shutil.copy(_ctypes.__file__, tmp_path / "_kernels.so")
    with pytest.raises(KernelsUnavailable, match=r"is of another version of Sluice \(0, not \d+\): install it again"):
        Library(tmp_path)
