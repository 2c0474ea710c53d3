"""The end of an engine with a disk tier, and the beginning of the next one on the same file."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from page_files import PATIENCE
from sluice import LLM, SamplingParams
from sluice.assembly import loaded, tiers
from sluice.assembly.engine import build_engine
from sluice.config import ConfigError, EngineConfig
from sluice.text.tokenizer import TokenizerError
from sluice.tiers import disk_tier
from sluice.tiers.blocks import FileBlocks
from sluice.tiers.format import PageFileInUse
from sluice.tiers.page_file import check_path
from tier_schedules import BlockingLink

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
PROMPT = tiny_models.prompt(40, 1)
LEAST_PAGES = {"max_total_tokens": 96, "page_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages"


def small(folder: Path, path: Path, **options: Any) -> LLM:
    return LLM(folder, **({"kv_disk": path, "kv_disk_bytes": 1_000_000} | LEAST_PAGES | options))


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "IN_USE_SECONDS", 0.1)


@dataclass
class SlowDisk:
    """Writes nothing until it comes back."""

    hangs: threading.Event = field(default_factory=threading.Event)
    """A write has begun."""
    came_back: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    slow, write = SlowDisk(), FileBlocks.write

    def late(self: FileBlocks, buffers: Sequence[memoryview | bytes], offset: int) -> None:
        slow.hangs.set()
        slow.came_back.wait(PATIENCE)
        write(self, buffers, offset)

    monkeypatch.setattr(FileBlocks, "write", late)
    monkeypatch.setattr(disk_tier, "CLOSE_SECONDS", 0.0)
    return slow


def test_an_llm_can_be_opened_again_while_a_slow_disk_still_writes(folder: Path, path: Path, disk: SlowDisk) -> None:
    """Close and open in a notebook: in use, it would say, by an engine that is gone."""
    with small(folder, path) as llm:
        (expected,) = llm.generate([PROMPT], GREEDY)
        assert disk.hangs.wait(PATIENCE)
    with pytest.raises(PageFileInUse, match=r"is in use by another engine$"):
        check_path(path)  # as one would that does not wait
    soon = threading.Timer(0.1, disk.came_back.set)
    soon.start()
    with small(folder, path) as llm:
        (again,) = llm.generate([PROMPT], GREEDY)
    assert again.token_ids == expected.token_ids
    soon.join()


@pytest.mark.usefixtures("_hasty")
def test_a_file_whose_disk_hangs_is_refused_in_words(folder: Path, path: Path, disk: SlowDisk) -> None:
    """A constructor that never returns."""
    with small(folder, path) as llm:
        llm.generate([PROMPT], GREEDY)
        assert disk.hangs.wait(PATIENCE)
    with pytest.raises(ConfigError, match=r"is in use by another engine, and was so for 0\.1 s"):
        small(folder, path)
    disk.came_back.set()


HANGS = """
import sys, threading
from sluice import LLM, SamplingParams
from sluice.tiers.blocks import FileBlocks
from sluice.tiers import disk_tier

def hang(self, buffers, offset):
    threading.Event().wait()

FileBlocks.write = hang
disk_tier.CLOSE_SECONDS = 0.1
for path in sys.argv[2:]:
    llm = LLM(sys.argv[1], kv_disk=path, kv_disk_bytes=1_000_000, max_total_tokens=96, page_size=8)
    (result,) = llm.generate([[*range(5, 45)]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    print(len(result.token_ids), flush=True)
    if path == sys.argv[2]:
        llm.close()
"""


def test_a_program_ends_though_its_disk_hangs(folder: Path, path: Path) -> None:
    """A script that has printed its results and never comes back to the shell; closing its model or not."""
    child = subprocess.run(
        [sys.executable, "-c", HANGS, str(folder), str(path), f"{path}-left-open"],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert (child.returncode, child.stdout) == (0, "4\n4\n"), child.stderr
    assert "Traceback" not in child.stderr


def no_tokenizer(folder: Path, tmp_path: Path) -> Path:
    """A checkpoint whose tokenizer cannot be read."""
    copy = tmp_path / "broken"
    shutil.copytree(folder, copy)
    (copy / "tokenizer.json").write_text("{")
    return copy


def test_closed_llms_leave_neither_descriptors_nor_threads(folder: Path, path: Path) -> None:
    """A notebook that opens model after model until the system has no descriptor left."""
    descriptors, threads = [], []
    for _ in range(3):
        with small(folder, path, kv_disk_bytes=4_000_000) as llm:
            llm.generate([PROMPT, tiny_models.prompt(150, 2)], GREEDY)  # the second is offloaded
        descriptors.append(len(os.listdir("/proc/self/fd")))
        threads.append(threading.active_count())
    assert descriptors[-1] <= descriptors[0]
    assert threads[-1] <= threads[0]


@pytest.mark.usefixtures("_hasty")
def test_an_llm_that_cannot_be_made_keeps_no_file(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mend what was wrong and try again, in the same program: the file is in use by an engine that never was."""
    broken = no_tokenizer(folder, path.parent)
    with pytest.raises(TokenizerError):
        small(broken, path)
    small(folder, path).close()

    def no_room(*args: object, **options: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(loaded, "TorchRunner", no_room)
    with pytest.raises(MemoryError):
        small(folder, path)
    monkeypatch.undo()
    small(folder, path).close()


def test_a_forgotten_llm_keeps_no_file(folder: Path, path: Path) -> None:
    """`llm = LLM(...)` run twice in a notebook, with `del llm` in between."""
    llm = small(folder, path)
    llm.generate([PROMPT], GREEDY)
    del llm
    gc.collect()
    with small(folder, path) as again:
        assert again.generate([PROMPT], GREEDY)[0].num_cached_tokens == 32


def config_of(folder: Path, path: Path) -> EngineConfig:
    """With every option that nothing but a disk is good for."""
    options = {"model": str(folder), "kv_disk": str(path), "kv_disk_bytes": 1_000_000, "kv_write_policy": "selective"}
    return EngineConfig.from_options(options | LEAST_PAGES | {"offload_above": 48, "ring_blocks": 3})


def follower(config: EngineConfig) -> str | None:
    """The disk tier of an engine that follows another one."""
    engine, info = build_engine(config, BlockingLink(), progress=False, follows=True)
    engine.close()
    return info.config.cache.kv_disk


@pytest.mark.usefixtures("_hasty")
def test_an_engine_that_follows_another_serves_without_a_file_in_use(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before was killed in a read that never ends, and holds the file: every next engine would fail to start,
    until the server gives up."""
    config = config_of(folder, path)
    before, _ = build_engine(config, BlockingLink(), progress=False)
    with closing(before):
        with pytest.raises(ConfigError, match="in use by another engine"):
            build_engine(config, BlockingLink(), progress=False)
        assert follower(config) is None
    assert "in use by another engine, and was so for 0.1 s; this engine runs without it" in caplog.text
    assert follower(config) == str(path)


def test_a_disk_that_does_not_even_show_a_header(
    folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that loads until its start takes too long, again and again."""
    came_back = threading.Event()
    monkeypatch.setattr(tiers, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(tiers, "check_path", lambda path, patience: came_back.wait(PATIENCE))
    config = config_of(folder, path)
    with pytest.raises(ConfigError, match="its disk gave no answer for"):
        build_engine(config, BlockingLink(), progress=False)
    assert follower(config) is None
    assert "gave no answer for 0.1 s; this engine runs without it" in caplog.text
    came_back.set()
