"""The host tier beside several ranks, each of which holds its part of every page, from options to an engine.

A CPU's own memory is the host's, so a host tier is refused there: these tests leave that rule out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

import tiny_models
from sluice.assembly import load as loading
from sluice.assembly.devices import resolve_here
from sluice.assembly.engine import build_engine
from sluice.assembly.info import EngineInfo
from sluice.assembly.rank_runners import build_follower
from sluice.assembly.ranks import layout_of
from sluice.assembly.resolve import Resolution
from sluice.assembly.tiers import RankPages
from sluice.config import ConfigError, EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.parallel.layout import Layout
from sluice.parallel.member import Member
from sluice.types.request_limits import LimitError
from thread_groups import thread_members
from thread_links import ThreadFollowerLink, ThreadLeaderLink
from tier_schedules import BlockingLink, greedy, run_out

PROMPTS = [tiny_models.prompt(40, seed) for seed in range(4)]
"""More than the pool holds."""
OPTIONS = {"page_size": 8, "max_total_tokens": 96, "dtype": "float64", "device": "cpu", "threads": 1}
PAGE_BYTES = 3 * 2 * 2 * 8 * 8 * 8
"""Of 3 layers, keys and values, 2 heads of 8, and 8 tokens, in float64."""
PATIENCE = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def as_if_a_device_had_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def resolved(config: EngineConfig, local_rank: int = 0) -> tuple[Resolution, torch.device]:
        resolution, device = resolve_here(replace(config, cache=replace(config.cache, kv_host_bytes=None)), local_rank)
        cache = replace(
            resolution.config.cache, kv_host_bytes=config.cache.kv_host_bytes, kv_write_policy="write-through"
        )
        return replace(resolution, config=replace(resolution.config, cache=cache)), device

    monkeypatch.setattr(loading, "resolve_here", resolved)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@dataclass
class ThreadRanks:
    """The other ranks, as threads that load and then follow."""

    layout: Layout
    pages: dict[int, RankPages] = field(default_factory=dict)
    """For how many each rank had room."""
    ends: list[Future[None]] = field(default_factory=list)
    wait_tick: None = None

    def __post_init__(self) -> None:
        self.members: Sequence[Member] = thread_members(self.layout)
        self.links = ThreadLeaderLink(self.layout.size)
        self._agreeing = Barrier(self.layout.size, timeout=PATIENCE)
        self._loaded = Barrier(self.layout.size, timeout=PATIENCE)

    @property
    def member(self) -> Member:
        return self.members[0]

    def agree(self, pages: RankPages, rank: int = 0) -> RankPages:
        self.pages[rank] = pages
        self._agreeing.wait()
        return reduce(RankPages.common, self.pages.values())

    def wait_until_loaded(self) -> None:
        self._loaded.wait()

    def follow(self, config: EngineConfig, link: ThreadFollowerLink) -> None:
        try:
            run, _ = build_follower(
                config, self.members[link.rank], link, partial(self.agree, rank=link.rank), link.rank
            )
            self._loaded.wait()
            run()
        finally:
            link.end()


@contextmanager
def serving(
    folder: Path, least: RankPages | None = None, **options: Any
) -> Iterator[tuple[Engine, BlockingLink, EngineInfo, ThreadRanks]]:
    """
    Args:
        least: the room of yet another rank.
    """
    config = EngineConfig.from_options({"model": str(folder), **OPTIONS, **options})
    ranks, link = ThreadRanks(layout_of(config.parallel)), BlockingLink()
    if least is not None:
        ranks.pages[ranks.layout.size] = least
    with ThreadPoolExecutor(max(1, ranks.layout.size - 1)) as threads:
        ends = [threads.submit(ranks.follow, config, each) for each in ranks.links.followers]
        engine, info = build_engine(config, link, progress=False, ranks=ranks if ranks.links.followers else None)
        try:
            yield engine, link, info, ranks
        finally:
            engine.close()
    assert [end.result() for end in ends] == [None] * len(ends)


def found(engine: Engine, link: BlockingLink, rounds: int) -> list[tuple[tuple[int, ...], int]]:
    """The tokens of each prompt, one after the other, and how many of its own were found in host memory."""
    for number, prompt in enumerate(PROMPTS * rounds):
        link.post(Submit(number, prompt, greedy(4)))
        run_out(engine, link, number + 1)
    ends = [link.end(number) for number in range(len(PROMPTS) * rounds)]
    return [(link.tokens(number), end.num_host_tokens) for number, end in enumerate(ends) if end is not None]


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"pp_size": 2}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_prefixes_come_back_from_the_host_memory_of_all_ranks(folder: Path, sizes: dict[str, int]) -> None:
    """A rank that takes all of the bytes, has more pages than another, or loads another page: tokens would differ."""
    with serving(folder) as (engine, link, _, _):
        expected = [tokens for tokens, _ in found(engine, link, 1)]
    with serving(folder, kv_host_bytes=64 * PAGE_BYTES, **sizes) as (engine, link, info, ranks):
        assert found(engine, link, 2) == [(tokens, 0) for tokens in expected] + [(tokens, 32) for tokens in expected]
        (tier,) = engine.scheduler.occupancy().tiers
    # Of three layers the first of two stages has two, and the last one has room for twice its pages.
    rooms, layout = {room.host for room in ranks.pages.values()}, ranks.layout
    assert rooms == ({64} if layout.pipeline_size == 1 else {48, 96})
    assert (tier.total, tier.failed_loads) == (min(rooms), 0)
    assert info.memory.host_bytes == 64 * PAGE_BYTES // layout.size


def test_every_rank_has_as_many_pages_as_the_one_with_the_least_room(folder: Path) -> None:
    """A plan that names a page which another rank lacks ends them all."""
    least = RankPages(device=11, host=20)
    with serving(folder, least, kv_host_bytes=64 * PAGE_BYTES, tp_size=2) as (engine, _, info, ranks):
        assert ranks.pages[0] == ranks.pages[1] == RankPages(12, 64)
        assert info.limits.max_total_tokens == 88
        assert engine.scheduler.occupancy().tiers[0].total == 20
        assert info.memory.host_bytes == 20 * PAGE_BYTES // 2


def test_a_context_longer_than_the_pool_is_refused_with_its_limit(folder: Path) -> None:
    """The host tier has room for it, and no rank could serve it from there."""
    with serving(folder, kv_host_bytes=64 * PAGE_BYTES, tp_size=2) as (_, _, info, _):
        assert info.limits.check(range(95), 1) == 1
        with pytest.raises(LimitError, match=r"but the KV pool is 96 tokens \(--max-total-tokens\)"):
            info.limits.check(range(96), 1)


def test_a_share_of_less_than_a_page_is_refused(folder: Path) -> None:
    with (
        pytest.raises(
            ConfigError, match=f"at least one page on each of 2 ranks, {PAGE_BYTES} bytes, got {PAGE_BYTES - 1}"
        ),
        serving(folder, kv_host_bytes=PAGE_BYTES - 1, tp_size=2),
    ):
        pass
