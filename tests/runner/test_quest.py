"""Quest: bounds of pages, the pages that they select, and where the keys of a cached prefix come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tiny_models
from offloaded import Driver
from paged import empty_kv
from sluice.attention.reference import ReferenceAttention
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape
from sluice.runner.offload.offloader import OffloadFailed, RingShape
from sluice.runner.offload.quest import Quest, page_scores

PAGE, KV_HEADS, HEADS, DIM = 4, 2, 6, 16


def pages_of(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, PAGE, KV_HEADS, DIM, generator=torch.Generator().manual_seed(seed))


def queries(seed: int = 1) -> torch.Tensor:
    return torch.randn(1, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


def slow_scores(q: torch.Tensor, k: torch.Tensor) -> list[float]:
    """The definition, number by number."""
    best = [-float("inf")] * len(k)
    for head in range(HEADS):
        of_head = k[:, :, head // (HEADS // KV_HEADS)]
        bounds = [
            sum(
                max(float(x) * float(page[:, i].min()), float(x) * float(page[:, i].max()))
                for i, x in enumerate(q[0, head])
            )
            for page in of_head
        ]
        shares = torch.log_softmax(torch.tensor(bounds) / DIM**0.5, 0).tolist()
        best = [max(pair) for pair in zip(best, shares, strict=True)]
    return best


def test_scores_are_those_of_the_definition() -> None:
    """Bounds that a page's keys exceed: the page that matters most is left out."""
    k, q = pages_of(9), queries()
    found = page_scores(q, torch.stack((k.amin(1), k.amax(1)), 1))
    torch.testing.assert_close(found, torch.tensor(slow_scores(q, k)), rtol=1e-4, atol=1e-4)


def test_it_selects_the_beginning_the_end_and_the_best_between() -> None:
    """Pages in another order than their numbers, a page twice, more than the budget; a layer that is to see all."""
    policy, k, q = Quest(6, sinks=1, recent=2, wide_layers=1), pages_of(200), queries()
    for first in range(0, 200, 7):  # its room grows meanwhile
        policy.pages_left(3, 1, range(first, min(first + 7, 200)), k[first : first + 7])
    chosen = policy.select(3, 1, 150, q)
    scores = slow_scores(q, k[1:148])
    best = sorted(range(1, 148), key=lambda page: -scores[page - 1])[:3]
    assert list(chosen) == [0, *sorted(best), 148, 149]
    assert list(policy.select(3, 0, 150, q)) == list(range(150))
    assert list(policy.select(3, 1, 6, q)) == list(range(6))


def test_a_page_of_wrong_drafts_is_given_again_and_a_slot_is_forgotten() -> None:
    """Bounds of keys that are no more: another request's, or a draft's."""
    policy, k, q = Quest(3, sinks=1, recent=1, wide_layers=0), pages_of(8), queries()
    policy.pages_left(0, 0, range(8), pages_of(8, seed=5))
    policy.pages_left(0, 0, range(8), k)
    fresh = Quest(3, sinks=1, recent=1, wide_layers=0)
    fresh.pages_left(0, 0, range(8), k)
    assert policy.select(0, 0, 8, q) == fresh.select(0, 0, 8, q)
    policy.forget(0)
    with pytest.raises(KeyError):
        policy.select(0, 0, 8, q)


def test_a_budget_with_no_page_to_choose_is_refused() -> None:
    """A policy that never looks at a query."""
    with pytest.raises(ValueError, match="3 pages are no more than 1 at the beginning and 2 at the end"):
        Quest(3, 1, 2, 0)


class Watched(Quest):
    """Notes what it is given, and what it selects."""

    def __init__(self) -> None:
        super().__init__(3, sinks=1, recent=1, wide_layers=1)
        self.given: dict[tuple[int, int], bytes] = {}
        self.times = 0

    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        super().pages_left(slot, layer, pages, k)
        for page, keys in zip(pages, k, strict=True):
            self.times += 1
            self.given[layer, page] = keys.numpy().tobytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.llama().save_pretrained(folder)
    return load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)


def driver_of(model: tuple[Any, Any], policy: Quest) -> Driver:
    loaded, spec = model
    shape = DeviceShape.of(spec, torch.device("cpu"), num_slots=1, num_pages=6, page_size=4, row_pages=6)

    def plain(shape: Any) -> Any:
        return empty_kv(shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim, shape.dtype)

    return Driver.of(loaded, shape, ReferenceAttention(), plain, RingShape(2, 2), policy)


def test_decodes_read_the_selected_pages_and_the_first_layer_all(model: tuple[Any, Any]) -> None:
    """Pages that are loaded and not selected cost what Quest is to save; those that are selected and not loaded are
    another request's."""
    policy = Watched()
    driver, prompt = driver_of(model, policy), tuple(tiny_models.prompt(60, 3))
    for start in range(0, 48, 8):
        driver.chunk(prompt[start : start + 8], start)
    layers = len(driver.state.kv)
    assert {page for _, page in policy.given} == set(range(12))
    driver.stored.reads.clear()
    driver.chunk(prompt[48:49], 48, is_decode=True)
    pages = [[page for page, layer in driver.stored.reads if layer == number] for number in range(layers)]
    assert pages[0] == list(range(12))
    assert all(len(each) == 3 and (each[0], each[-1]) == (0, 11) and each == sorted(each) for each in pages[1:])
    assert driver.offloader.ring.num_free == 2


class Failing(Watched):
    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        raise MemoryError("no room for bounds")


def test_a_policy_that_cannot_keep_what_it_needs_ends_the_request_alone(model: tuple[Any, Any]) -> None:
    """Bounds that do not fit ended the engine, with every request."""
    with pytest.raises(OffloadFailed, match="MemoryError: no room for bounds"):
        driver_of(model, Failing()).chunk(tuple(tiny_models.prompt(8, 3)), 0)


def test_keys_of_a_cached_prefix_are_given_once_as_they_pass(model: tuple[Any, Any]) -> None:
    """A prefix of another request or of an engine before: its pages would have no bounds, or those of nothing."""
    first, second = Watched(), Watched()
    driver, prompt = driver_of(model, first), tuple(tiny_models.prompt(60, 3))
    for start in range(0, 40, 8):
        driver.chunk(prompt[start : start + 8], start)
    again = driver_of(model, second)
    again.stored.parts, again.base = driver.stored.parts, 32
    for start in (32, 36):
        again.chunk(prompt[start : start + 4], start)
    assert second.given.keys() == {key for key in first.given if key[1] < 10}
    prefix = {key: keys for key, keys in first.given.items() if key[1] < 8}
    assert prefix.items() <= second.given.items()
    assert second.times == len(second.given), "a page was given twice"
    again.chunk(prompt[40:41], 40, is_decode=True)
