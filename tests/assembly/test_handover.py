"""A prompt that one engine computed goes on in another one, token for token, over a file that both see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from random_checkpoint import random_checkpoint
from sluice.assembly.engine import build_engine
from sluice.assembly.peers import Peers
from sluice.config import ConfigError, EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import OfferPages, PagesOffered, PagesTaken, TakePages
from sluice.storage.page_file_format import BLOCK, decode_header
from sluice.testing import ManualLink, resolved
from sluice.types import PageOffer, Submit

PAGE_SIZE = 16
OPTIONS: dict[str, Any] = {"max_total_tokens": 512, "page_size": PAGE_SIZE, "chunked_prefill_size": 64}
PROMPT = tuple(7 + (11 * position) % 300 for position in range(150))
FULL = len(PROMPT) // PAGE_SIZE
OUTPUTS = 12


@dataclass
class Node:
    """An engine that steps by hand."""

    engine: Engine
    link: ManualLink
    answers: list[PagesOffered | PagesTaken] = field(default_factory=list)

    def run(self, submit: Submit) -> tuple[int, ...]:
        self.link.put(submit)
        self.settle()
        return self.link.tokens(submit.request_id)

    def settle(self) -> None:
        """Step until nothing is left to do, not even for the disk."""
        self.engine.step()
        while not self.engine.is_idle or self.engine.scheduler.awaits_report:
            self.engine.step()

    def offer(self, extra_key: str = "") -> PageOffer:
        self.link.put(OfferPages(1, PROMPT, extra_key))
        self.engine.step()
        answer = self.answers[-1]
        assert isinstance(answer, PagesOffered)
        assert answer.offer is not None, answer.error
        return answer.offer

    def take(self, offer: PageOffer) -> PagesTaken:
        self.link.put(TakePages(2, offer))
        self.engine.step()
        answer = self.answers[-1]
        assert isinstance(answer, PagesTaken)
        return answer

    @property
    def cached(self) -> int:
        """Tokens that the last request found in the cache."""
        return self.link.outputs[-1].num_cached_tokens


def ask(request_id: int, *outputs: int, extra_key: str = "", most: int = OUTPUTS) -> Submit:
    """The prompt, or the same request as it goes on behind what was sent."""
    return Submit(request_id, PROMPT, resolved(most), output_ids=outputs, is_resumed=bool(outputs), extra_key=extra_key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("random"))


Open = Callable[..., Node]


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    """Builds engines, and closes them."""
    nodes: list[Node] = []

    def build(remote: Path | None = None, **options: Any) -> Node:
        link, answers = ManualLink(), list[PagesOffered | PagesTaken]()
        config = EngineConfig.from_options({"model": str(folder)} | OPTIONS | options)
        engine, _ = build_engine(config, link, progress=False, peers=Peers(answer=answers.append, remote=remote))
        nodes.append(Node(engine, link, answers))
        return nodes[-1]

    yield build
    for node in nodes:
        with closing(node.engine):
            pass


def test_an_answer_goes_on_in_the_engine_that_decodes(opened: Open, tmp_path: Path) -> None:
    """The answer is that of one engine, and of the prompt only what is behind its last full page is computed again."""
    alone = opened().run(ask(0))
    prefill, decode = opened(kv_disk=str(tmp_path / "a.kv"), kv_disk_bytes=8 << 20), opened(tmp_path)
    first = prefill.run(ask(0, most=1))
    offer = prefill.offer()
    assert len(offer.pages) == FULL
    assert decode.take(offer) == PagesTaken(2, FULL * PAGE_SIZE)
    assert first + decode.run(ask(5, *first)) == alone
    assert decode.cached == FULL * PAGE_SIZE
    (use,) = decode.engine.scheduler.occupancy().tiers
    assert (use.loaded, use.failed_loads) == (FULL, 0)


def test_pages_that_are_not_what_was_stored_are_computed_again(opened: Open, tmp_path: Path) -> None:
    """A flipped bit, or a page that its engine has given to another prompt meanwhile, costs time and no token."""
    alone, path = opened().run(ask(0)), tmp_path / "a.kv"
    prefill, decode = opened(kv_disk=str(path), kv_disk_bytes=8 << 20), opened(tmp_path)
    prefill.run(ask(0, most=1))
    offer = prefill.offer()
    decode.take(offer)
    layout = decode_header(path.read_bytes()[:BLOCK])
    with path.open("r+b") as file:
        for stored in offer.pages[3:]:
            file.seek(layout.part_at(stored.page, 1) + 100)
            file.write(b"\xff\x00\xff")
    assert decode.run(ask(5)) == alone
    (use,) = decode.engine.scheduler.occupancy().tiers
    assert use.failed_loads > 0
    assert decode.cached == 3 * PAGE_SIZE, "the pages before the first that was lost were loaded"


def test_a_file_that_is_gone_costs_a_computation(opened: Open, tmp_path: Path) -> None:
    alone, path = opened().run(ask(0)), tmp_path / "a.kv"
    prefill, decode = opened(kv_disk=str(path), kv_disk_bytes=8 << 20), opened(tmp_path)
    prefill.run(ask(0, most=1))
    decode.take(prefill.offer())
    path.unlink()
    os.mkfifo(path)  # it would keep one who opens it waiting
    assert decode.run(ask(5)) == alone
    assert decode.cached == 0


def test_pages_of_a_namespace_stay_in_it(opened: Open, tmp_path: Path) -> None:
    prefill, decode = opened(kv_disk=str(tmp_path / "a.kv"), kv_disk_bytes=8 << 20), opened(tmp_path)
    prefill.run(ask(0, most=1, extra_key="tenant"))
    assert prefill.offer().pages == ()
    decode.take(prefill.offer("tenant"))
    decode.run(ask(5))
    assert decode.cached == 0
    decode.run(ask(6, extra_key="tenant"))
    assert decode.cached == FULL * PAGE_SIZE


def test_offers_that_are_not_taken(opened: Open, tmp_path: Path) -> None:
    """KV of other weights, or of pages of another size, would be read as if it were this model's."""
    path = tmp_path / "a.kv"
    prefill, decode = opened(kv_disk=str(path), kv_disk_bytes=8 << 20), opened(tmp_path)
    prefill.run(ask(0, most=1))
    offer = prefill.offer()
    assert "of other weights, another layout" in str(decode.take(offer._replace(layout="other")).error)
    for source in (f"{tmp_path}/../a.kv", "/etc/passwd", "a.kv", f"{tmp_path}/.."):
        assert f"it does not lie in {tmp_path}" in str(decode.take(offer._replace(source=source)).error)
    other = opened(tmp_path, page_size=32)
    assert "another layout" in str(other.take(offer).error)
    assert "takes no pages" in str(prefill.take(offer).error)
    decode.link.put(OfferPages(1, PROMPT))
    decode.engine.step()
    assert decode.answers[-1] == PagesOffered(1, None, "this engine offers no pages: it has no page file (--kv-disk)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_disk": "b.kv"}, "--kv-disk b.kv is not supported beside taking pages from"),
        ({"trace": "trace"}, "--trace trace is not supported beside taking pages from"),
        ({"enable_prefix_caching": False}, "needs the prefix cache, but it is off"),
    ],
)
def test_an_engine_with_tiers_of_its_own_takes_no_pages(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, **options)
    with pytest.raises(ConfigError, match="there is no such folder"):
        opened(tmp_path / "none")
