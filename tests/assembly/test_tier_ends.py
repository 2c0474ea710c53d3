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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from page_files import PATIENCE
from sluice import LLM, SamplingParams
from sluice.assembly import engine as engine_of
from sluice.assembly import loaded, tiers
from sluice.assembly.engine import build_engine
from sluice.assembly.info import EngineInfo
from sluice.config import ConfigError, EngineConfig
from sluice.storage import disk_tier
from sluice.storage.blocks import FileBlocks
from sluice.storage.opening import check_path
from sluice.text.tokenizer import TokenizerError
from sluice.types import FinishReason, Submit, Tier
from sluice.types.request_limits import TierDisabled
from tier_schedules import BlockingLink, greedy, run_out

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


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "IN_USE_SECONDS", 0.0)


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


@pytest.mark.usefixtures("_at_once")
def test_a_closed_llm_has_given_its_file_free(folder: Path, path: Path, disk: SlowDisk) -> None:
    """Close and open in a notebook: in use, it would say, by an engine that is gone. And what the disk still writes for
    the first one is taken for pages of the second."""
    llm = small(folder, path)
    (expected,) = llm.generate([PROMPT], GREEDY)
    assert disk.hangs.wait(PATIENCE)
    llm.close()
    check_path(path)
    with small(folder, path) as again:
        disk.came_back.set()
        assert again.generate([PROMPT], GREEDY)[0].token_ids == expected.token_ids
    with small(folder, path) as third:
        (result,) = third.generate([PROMPT], GREEDY)
        assert (result.token_ids, result.num_cached_tokens) == (expected.token_ids, 32)


@pytest.mark.usefixtures("_at_once")
def test_every_closed_llm_has_given_its_file_free(folder: Path, path: Path) -> None:
    """A lock that ends soon after `close` has returned, most of the time."""
    for number in range(4):
        with small(folder, path) as llm:
            llm.generate([tiny_models.prompt(90, number)], GREEDY)


HANGS = """
import sys, threading
from sluice import LLM, SamplingParams
from sluice.storage.blocks import FileBlocks
from sluice.storage import disk_tier

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


def follower(config: EngineConfig) -> EngineInfo:
    """An engine that follows another one, closed again."""
    engine, info = build_engine(config, BlockingLink(), progress=False, follows=True)
    engine.close()
    return info


def made(config: EngineConfig) -> str:
    """The page file of an engine that was closed."""
    engine, info = build_engine(config, BlockingLink(), progress=False)
    engine.close()
    assert info.config.cache.kv_disk is not None
    return info.config.cache.kv_disk


def check_serves_without(info: EngineInfo, why: str, caplog: pytest.LogCaptureFixture) -> None:
    """Check that an engine serves without its disk tier, and says so once, in one line."""
    assert info.config.cache.kv_disk is None
    assert why in info.disabled_tiers[Tier.DISK]
    assert "\n" not in info.disabled_tiers[Tier.DISK]
    assert info.reasons["kv_disk"] == f"disabled: {info.disabled_tiers[Tier.DISK]}"
    warnings = [record.getMessage() for record in caplog.records if "--kv-disk" in record.getMessage()]
    assert warnings == [f"{info.disabled_tiers[Tier.DISK]}; this engine serves without the disk tier"]
    caplog.clear()


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
        check_serves_without(follower(config), "in use by another engine, and was so for 0.1 s", caplog)
    assert follower(config).config.cache.kv_disk == str(path)


def test_a_disk_that_does_not_even_show_a_header(
    folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that loads until its start takes too long, again and again."""
    came_back = threading.Event()
    monkeypatch.setattr(tiers, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(tiers, "check_path", lambda path, patience, must_exist: came_back.wait(PATIENCE))
    config = config_of(folder, path)
    with pytest.raises(ConfigError, match="its disk gave no answer for"):
        build_engine(config, BlockingLink(), progress=False)
    check_serves_without(follower(config), "gave no answer for 0.1 s", caplog)
    came_back.set()


def test_an_engine_that_follows_another_serves_without_a_damaged_file_and_later_with_it(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A truncated file that ends the server with the first crash; a tier that is gone for good although its disk came
    back."""
    config = config_of(folder, path)
    made(config)
    whole = path.read_bytes()
    os.truncate(path, 0)
    check_serves_without(follower(config), "is not a page file", caplog)
    path.unlink()
    check_serves_without(follower(config), "No such file or directory", caplog)
    assert not path.exists(), "a file on whatever disk is there now"
    path.write_bytes(whole)
    info = follower(config)
    assert (info.config.cache.kv_disk, info.disabled_tiers) == (str(path), {})


def test_a_file_that_turns_bad_while_the_model_loads(
    folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the check before found well, or cannot see: the page file of another model at the same path."""
    config = config_of(folder, path)
    made(replace(config, cache=replace(config.cache, page_size=4)))
    with monkeypatch.context() as patched:
        loads: list[str | None] = []
        load = engine_of.load
        patched.setattr(engine_of, "load", lambda c, **rest: loads.append(c.cache.kv_disk) or load(c, **rest))
        check_serves_without(follower(config), "holds pages of 4, not 8", caplog)
    assert loads == [str(path), None]
    with pytest.raises(ConfigError, match="cannot be opened"):
        made(replace(config, cache=replace(config.cache, kv_disk=f"{path}/below")))


def test_an_engine_without_its_tier_refuses_by_name_what_needs_it(folder: Path, path: Path) -> None:
    """A request that is continued in an engine without the tier: one that waits for ever, or an output that claims to
    be the first, after which the server takes the engine for broken."""
    link, prompt = BlockingLink(), tiny_models.prompt(150, 2)
    engine, info = build_engine(config_of(folder, path), link, progress=False, follows=True)
    with closing(engine):
        link.post(Submit(0, prompt, greedy(4), output_ids=(7, 8), is_resumed=True))
        link.post(Submit(1, PROMPT, greedy(4)))
        run_out(engine, link, 2)
    end = link.end(0)
    assert end is not None
    assert (end.finish_reason, end.start) == (FinishReason.TIER_UNAVAILABLE, 2)
    assert "exceed the KV pool of 96 tokens, and the disk tier, which held longer ones, could not be" in str(end.error)
    with pytest.raises(TierDisabled, match="and the disk tier, which held longer ones"):
        info.limits.check(prompt, 4)
    assert len(link.tokens(1)) == 4


def test_an_engine_that_follows_another_serves_without_a_trace_that_it_cannot_write(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder of the traces is gone or full, and the first crash ends the server."""
    trace = path / "missing" / "trace.1"
    config = EngineConfig.from_options({"model": str(folder), "trace": str(trace)} | LEAST_PAGES)
    with pytest.raises(ConfigError, match=r"--trace .*trace.1 cannot be written: No such file"):
        build_engine(config, BlockingLink(), progress=False)
    assert follower(config).config.trace.trace is None
    assert f"--trace {trace} cannot be written: No such file or directory; this engine writes no trace" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("follows", [False, True])
def test_an_engine_serves_without_a_trace_for_which_the_disk_has_no_room(
    folder: Path, caplog: pytest.LogCaptureFixture, *, follows: bool
) -> None:
    """The empty file can be made, its first line cannot be written."""
    config = EngineConfig.from_options({"model": str(folder), "trace": "/dev/full"} | LEAST_PAGES)
    link = BlockingLink()
    engine, _ = build_engine(config, link, progress=False, follows=follows)
    with closing(engine):
        link.post(Submit(0, PROMPT, greedy(4)))
        run_out(engine, link, 1)
    assert len(link.tokens(0)) == 4
    assert "--trace /dev/full cannot be written: No space left on device; this engine writes no trace" in caplog.text
