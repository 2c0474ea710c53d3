"""An engine's process imports torch without its kernels in Python, and serves every family of models so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models

LEAN = """
import sys
from sluice.process.lean_torch import PYTHON_KERNELS, without_python_kernels

with without_python_kernels():
    import sluice.assembly.engine
assert PYTHON_KERNELS not in sys.modules
"""
FAMILIES = """
from sluice import LLM, SamplingParams

greedy = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
for folder in sys.argv[1:]:
    for options in ({}, {"quantization": "int8"}, {"quantization": "int4"}):
        with LLM(folder, max_total_tokens=256, **options) as llm:
            (result,) = llm.generate([[1, 2, 3]], greedy)
        assert len(result.token_ids) == 3
assert PYTHON_KERNELS not in sys.modules, "something imported them again"
"""
LATER = """
import torch
assert torch.empty(2, 3, device="meta").cumsum(0).shape == (2, 3)
from torch._meta_registrations import register_meta
assert callable(register_meta)
assert PYTHON_KERNELS in sys.modules and torch._meta_registrations is sys.modules[PYTHON_KERNELS]
"""
WANTED = """
import sys
from sluice.process.lean_torch import without_python_kernels

with without_python_kernels():
    import torch
    from torch._meta_registrations import register_meta
assert callable(register_meta)
"""


def run(code: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_family_is_loaded_and_computes(tmp_path: Path) -> None:
    """A kernel that is missing for the device "meta" would end every engine of its family at the start."""
    folders = [str(tiny_models.save(family, tmp_path / family)) for family in tiny_models.FAMILIES]
    run(LEAN + FAMILIES, *folders)


@pytest.mark.parametrize("code", [LEAN + LATER, WANTED], ids=["later", "meanwhile"])
def test_what_imports_them_gets_them(code: str) -> None:
    run(code)


@pytest.mark.slow
def test_transformers_has_them(tmp_path: Path) -> None:
    """It builds models on the device "meta" with kernels of its own choice."""
    options = 'model_impl="transformers", max_total_tokens=256'
    load = f"from sluice import LLM\nLLM(sys.argv[1], {options}).close()\nassert PYTHON_KERNELS in sys.modules"
    run(LEAN + load, str(tiny_models.save("llama", tmp_path / "llama")))
