"""A damaged GGUF file is refused in one sentence, or is loaded; it never crashes, hangs or takes the memory."""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path

import pytest

from gguf_makers import write_gguf
from models.formats.damaged_gguf import damaged, read
from random_checkpoint import random_checkpoint
from sluice.text.gguf.file import GGUFFile

MOST_SECONDS = 5
"""Of the processor, for one file."""
MOST_KIB = 128 << 10
"""By which the memory may grow; a count that is believed would ask for gigabytes."""


@pytest.mark.parametrize(("flips", "cuts"), [(48, 12), pytest.param(500, 100, marks=pytest.mark.slow)])
def test_bytes_that_change_and_files_that_end(flips: int, cuts: int, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    path, _ = write_gguf(random_checkpoint(tmp_path / "source"), tmp_path / "whole.gguf", "Q8_0")
    assert read(path, tmp_path / "cache") is None
    whole, header = path.read_bytes(), min(info.start for info in GGUFFile(path).tensors.values())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    broken, refused = tmp_path / "broken.gguf", 0
    for content in damaged(whole, header, flips, cuts, seed=flips):
        began = time.process_time()
        broken.write_bytes(content)
        problem = read(broken, tmp_path / "cache")
        assert time.process_time() - began < MOST_SECONDS
        if problem is not None:
            assert re.match(r"broken\.gguf\b", problem), problem
            assert "\n" not in problem
            refused += 1
    assert refused >= cuts  # those that are cut off, and more
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB
