"""Offloaded chunks against the same tokens with all of their KV on the device."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

import tiny_models
from compiled import all_kernels
from offloaded import DictPages, Driver, ReadFailed
from page_files import PATIENCE
from paged import Row, empty_kv, forward_batch
from slow import products
from sluice.attention.base import LayerKV
from sluice.attention.native import NativeAttention
from sluice.attention.packed import PackedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import KVShape
from sluice.device.background import Background
from sluice.device.queues import DeviceQueues
from sluice.kv.ring import DeviceRing
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape
from sluice.runner.offload.coroutine import Cancelled, Coroutine
from sluice.runner.offload.loaders import GIVE_UP, BlockLoad, DiskLoader, QueueLoader
from sluice.runner.offload.offloader import OffloadFailed, RingShape
from sluice.runner.offload.reader import RingReader
from sluice.runner.offload.sparse import Full, SparsePolicy, Window
from sluice.testing.device import late_queues

LENGTH = 93
PROMPT = tuple(tiny_models.prompt(LENGTH, 3))
FAMILIES = ("llama", "qwen3", "gpt2", "mistral", "qwen2_windows")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    loaded = {}
    for name in FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        getattr(tiny_models, name)().save_pretrained(folder)
        loaded[name] = load_model(folder, dtype="float64", device=torch.device("cpu"), progress=False)
    return loaded


def shape_of(spec: Any, page_size: int, num_pages: int) -> DeviceShape:
    return DeviceShape.of(
        spec,
        torch.device("cpu"),
        num_slots=1,
        num_pages=num_pages,
        page_size=page_size,
        row_pages=num_pages,
    )


def plain(shape: DeviceShape) -> LayerKV:
    return empty_kv(shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim, shape.dtype)


@torch.inference_mode()
def resident(model: Any, spec: Any, at: tuple[int, ...]) -> torch.Tensor:
    """Hidden states of the prompt's tokens at these places, computed at once."""
    kv = [empty_kv(1, LENGTH, spec.num_kv_heads, spec.head_dim, spec.dtype) for _ in range(spec.num_layers)]
    batch = forward_batch([Row(PROMPT, 0, (0,), logits=at)], LENGTH)
    return model.forward(batch, kv, ReferenceAttention())


@products(
    name=[*FAMILIES],
    sizes=[
        (2, 12, RingShape(3, 3)),
        (4, 8, RingShape(2, 1)),
        (4, 8, RingShape(8, 1, most_blocks=1, most_decode_blocks=3)),
        (2, 12, RingShape(2, 5, most_blocks=1, most_decode_blocks=1, block_parts=3)),
        (4, 20, RingShape(8, 2)),
        (1, 5, RingShape(1, 4)),
    ],
)
def test_offloaded_hidden_states_are_those_of_the_resident_run(
    name: str, sizes: tuple[int, int, RingShape], models: dict[str, Any]
) -> None:
    """A group that is skipped, read twice, merged with the wrong weight or seen at the wrong positions changes what
    the last layer gives; so does a buffer of the ring that is refilled too early. Chunks are cut at random places
    between work items, and end in decodes."""
    (model, spec), (page_size, chunk, ring) = models[name], sizes
    draw = random.Random(f"{name} {page_size}")
    driver = Driver.of(
        model,
        shape_of(spec, page_size, -(-chunk // page_size) + 2),
        ReferenceAttention(),
        plain,
        ring,
        split=lambda left: draw.randint(1, left),
    )
    places, found = [], []
    start, prefill = 0, 80
    while start < LENGTH:
        length = min(chunk, prefill - start) if start < prefill else 1
        found.append(driver.chunk(PROMPT[start : start + length], start, is_decode=start >= prefill))
        places.append(start + length - 1)
        start += length
    driver.offloader.ring.check()
    assert driver.offloader.ring.num_free == ring.num_blocks
    assert driver.slices > len(places), "nothing was ever put down"
    torch.testing.assert_close(torch.cat(found), resident(model, spec, tuple(places)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_compiled_kernels_read_from_the_ring(dtype: str, tmp_path: Any) -> None:
    """Blocks are loaded as the kernels lay pages out, and their partial results are merged with their own LSE."""
    kernels = max(all_kernels(), key=lambda each: each.level)
    tiny_models.llama(head_dim=16).save_pretrained(tmp_path)
    model, spec = load_model(tmp_path, dtype=dtype, device=torch.device("cpu"), progress=False)

    def packed(shape: KVShape) -> PackedKV:
        return PackedKV.empty(kernels, shape)

    driver = Driver.of(model, shape_of(spec, 16, 4), NativeAttention(kernels), packed, RingShape(2, 1))
    found = [driver.chunk(PROMPT[start : start + 16], start) for start in range(0, 80, 16)]
    found += [driver.chunk(PROMPT[start : start + 1], start) for start in range(80, LENGTH)]
    whole = resident(model, spec, (*range(15, 80, 16), *range(80, LENGTH)))
    torch.testing.assert_close(torch.cat(found), whole, rtol=0, atol=2e-5 if dtype == "float32" else 0.1)


def test_a_page_that_cannot_be_read_ends_its_chunk_alone(models: dict[str, Any]) -> None:
    """A read error in the middle of a chunk says what it was; the next request has the whole ring and runs."""
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(3, 1))
    for start in range(0, 24, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    driver.stored.lost = {3}
    with pytest.raises(ReadFailed, match="Input/output error"):
        driver.chunk(PROMPT[24:32], 24)
    driver.begin_again()
    found = torch.cat([driver.chunk(PROMPT[start : start + 8], start) for start in range(0, 48, 8)])
    whole = resident(model, spec, tuple(range(7, 48, 8)))
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)
    assert driver.offloader.ring.num_free == 3


def test_a_chunk_that_fails_fails_until_its_slot_is_opened(models: dict[str, Any]) -> None:
    """An error in the middle of a forward must end its request alone: a slice that was planned behind it has nothing to
    go on with."""
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), FailingAttention(), plain, RingShape(3, 1))
    for start in range(0, 24, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    FailingAttention.fails = True
    with pytest.raises(OffloadFailed, match="RuntimeError: out of memory"):
        driver.chunk(PROMPT[24:32], 24)
    FailingAttention.fails = False
    assert driver.offloader.ring.num_free == 3
    with pytest.raises(OffloadFailed, match="failed before"):
        driver.chunk(PROMPT[24:32], 24)
    driver.begin_again()
    found = torch.cat([driver.chunk(PROMPT[start : start + 8], start) for start in range(0, 48, 8)])
    torch.testing.assert_close(found, resident(model, spec, tuple(range(7, 48, 8))), rtol=1e-9, atol=1e-9)


def test_a_chunk_put_down_is_dropped_by_the_next(models: dict[str, Any]) -> None:
    """A request that is aborted in the middle of a chunk leaves its thread and its loads; the next one gets the
    whole ring."""
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(2, 1))
    for start in range(0, 16, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    driver.split = two_units_and_no_more()
    with pytest.raises(StopHere):
        driver.chunk(PROMPT[16:24], 16)
    driver.split = lambda left: left
    driver.begin_again()
    found = torch.cat([driver.chunk(PROMPT[start : start + 8], start) for start in range(0, 32, 8)])
    torch.testing.assert_close(found, resident(model, spec, tuple(range(7, 32, 8))), rtol=1e-9, atol=1e-9)
    assert driver.offloader.ring.num_free == 2


def test_nothing_is_reported_before_it_has_come(models: dict[str, Any]) -> None:
    """A step that waits for a disk keeps all other requests waiting. Work items are reported in order, as their blocks
    come, and never more than the ring has room for; the result is the resident run's."""
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(4, 1))
    for start in range(0, 24, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    stored, reported = driver.stored, driver.reported
    stored.reads.clear()
    stored.opened.clear()
    seen: list[tuple[int, int]] = []

    def watched() -> int:
        if not stored.opened.is_set():
            assert stored.waits.wait(PATIENCE)
            assert driver.reports.empty()
            stored.opened.set()
        ready = reported()
        seen.append((ready, len(stored.reads)))
        return ready

    driver.reported = watched  # type: ignore[method-assign]
    found = driver.chunk(PROMPT[24:32], 24)
    per_layer = 4  # three groups of two blocks, and what is on the device
    for ready, num_reads in seen:
        blocks = min(6, ready % per_layer * 2) + ready // per_layer * 6
        assert blocks <= num_reads
    assert [ready for ready, _ in seen] == sorted({ready for ready, _ in seen})
    assert seen[0][0] <= 2, "the ring has room for two groups"
    assert seen[-1][0] == spec.num_layers * per_layer
    torch.testing.assert_close(found, resident(model, spec, (31,)), rtol=1e-9, atol=1e-9)


def test_reads_that_never_end_are_given_up(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs: the request would wait for ever. Nothing waits for the read, and when the disk comes back, the
    next chunk reads what is its own."""
    monkeypatch.setattr("sluice.runner.offload.loaders.GIVE_UP", 0.2)
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(2, 1))
    for start in range(0, 24, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    driver.stored.opened.clear()
    for _ in range(2):
        with pytest.raises(ReadFailed, match="did not come from the disk in 0 s"):
            driver.chunk(PROMPT[24:32], 24)
    driver.begin_again()
    driver.chunk(PROMPT[:8], 0)
    driver.stored.opened.set()
    found = torch.cat([driver.chunk(PROMPT[start : start + 8], start) for start in range(8, 32, 8)])
    torch.testing.assert_close(found, resident(model, spec, tuple(range(15, 32, 8))), rtol=1e-9, atol=1e-9)
    assert driver.offloader.ring.num_free == 2


def test_a_loader_closes_though_a_read_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot stop because of a disk."""
    monkeypatch.setattr("sluice.runner.offload.loaders.CLOSING", 0.1)
    stored, reports = DictPages(), []
    stored.opened.clear()
    ring = LayerKV(*(torch.zeros((2, 1, 1, 4), dtype=torch.uint8) for _ in range(2)))
    loader: DiskLoader[None] = DiskLoader(stored, ring, 1, lambda *report: reports.append(report))
    for page in range(2):
        loader.start(BlockLoad(0, [page], [page], ready=page + 1), page, None)
    assert stored.waits.wait(PATIENCE)
    loader.close()
    assert reports == []
    stored.opened.set()


def test_a_loader_that_is_dropped_is_gone() -> None:
    """It kept its ring, and a thread, for as long as it may wait for a read."""
    stored = DictPages()
    ring = LayerKV(*(torch.zeros((2, 1, 1, 4), dtype=torch.uint8) for _ in range(2)))
    reported, gone, before = threading.Event(), threading.Event(), set(threading.enumerate())
    loader: DiskLoader[None] = DiskLoader(stored, ring, 1, lambda *_: reported.set())
    weakref.finalize(loader, gone.set)
    loader.start(BlockLoad(0, [0], [0], ready=1), 0, None)
    assert reported.wait(PATIENCE)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    del loader
    assert gone.wait(GIVE_UP / 2)
    for thread in threads:
        thread.join(GIVE_UP / 2)
    assert not any(thread.is_alive() for thread in threads)


class FailingAttention(ReferenceAttention):
    """Attention that may fail."""

    fails = False

    def attend(self, *args: Any, **options: Any) -> Any:
        if self.fails:
            raise RuntimeError("out of memory")
        return super().attend(*args, **options)


class StopHere(Exception):
    """The driver was to go no further."""


def two_units_and_no_more() -> Callable[[int], int]:
    """A first part, and no second one."""
    parts = iter([2])

    def split(left: int) -> int:
        for part in parts:
            return part
        raise StopHere

    return split


def test_a_window_reads_its_blocks_and_no_others(models: dict[str, Any]) -> None:
    """Sinks and recent blocks alone are loaded for a decode; a prompt's chunks read everything, and so does its last
    token where it comes alone: it would have found nothing in its own prompt."""
    model, spec = models["llama"]
    policy = Window(sinks=1, recent=2)
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(2, 1), policy)
    for start in range(0, 32, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    assert {page for page, _ in driver.stored.reads} == set(range(6))
    for token, is_decode, pages in ((32, False, tuple(range(8))), (33, True, (0, 6, 7))):
        driver.stored.reads.clear()
        driver.chunk(PROMPT[token : token + 1], token, is_decode=is_decode)
        assert driver.stored.reads == [(page, layer) for layer in range(spec.num_layers) for page in pages]


class KeepsKeys(Full):
    """Notes the pages that it was given, and their keys in the first layer."""

    wants_keys = True
    given: ClassVar[list[tuple[int, torch.Tensor]]] = []

    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        if layer == 0:
            self.given.extend(zip(pages, k.clone(), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_of_an_offloaded_chunk(name: str, models: dict[str, Any]) -> None:
    """Hidden states behind the known token and behind each draft; and KV of a wrong draft, also of one that began a
    page, is overwritten by the next chunk."""
    model, spec = models[name]
    KeepsKeys.given.clear()
    driver = Driver.of(model, shape_of(spec, 4, 9), ReferenceAttention(), plain, RingShape(2, 1), KeepsKeys())
    for start in range(0, 40, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    expected = resident(model, spec, tuple(range(LENGTH)))
    start = 40
    for right in (2, 0, 3, 1, 4):
        known, *follow = PROMPT[start : start + 5]
        drafts = (*follow[:right], *(token + 1 for token in follow[right:]))
        hidden = driver.chunk((known, *drafts), start, is_decode=True, num_drafts=4, right=right)
        assert hidden.shape[0] == 5
        torch.testing.assert_close(hidden[: right + 1], expected[start : start + right + 1], rtol=0, atol=1e-9)
        start += right + 1
    kept = dict(KeepsKeys.given)
    for page in range(driver.base // 4):
        keys = kept[page]
        assert keys.numpy().tobytes() == driver.stored.parts[page, 0][0], "it has the keys of wrong drafts"


class ByQueries(SparsePolicy):
    """All pages but the second, chosen when a layer's queries are there."""

    supports_prefill = True
    foresees = False

    def __init__(self) -> None:
        self.layers: list[int] = []

    def pages_left(self, slot: int, layer: int, pages: Sequence[int], k: torch.Tensor) -> None:
        raise AssertionError("it wants no keys")

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        assert q is not None
        self.layers.append(layer)
        return [page for page in range(num_pages) if page != 1]


def test_a_policy_that_needs_queries_selects_layer_by_layer(models: dict[str, Any]) -> None:
    """Blocks that are chosen late are read late, and are reported all the same: a chunk would wait for ever. A group
    that the policy leaves empty has nothing to wait for."""
    model, spec = models["llama"]
    policy = ByQueries()
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(2, 1), policy)
    for start in range(0, 40, 8):
        driver.chunk(PROMPT[start : start + 8], start)
    layers = range(spec.num_layers)
    assert policy.layers == [layer for _ in range(4) for layer in layers]
    last = driver.stored.reads[-7 * len(layers) :]
    assert last == [(page, layer) for layer in layers for page in range(8) if page != 1]
    assert driver.offloader.ring.num_free == 2


class FirstPages(SparsePolicy):
    """The first two pages, from the second layer on, for chunks of prompts of four tokens or more."""

    supports_prefill = True
    wide_layers = 1
    most_prefill_pages = 2
    least_prefill_tokens = 4

    def select(self, slot: int, layer: int, num_pages: int, q: torch.Tensor | None) -> Sequence[int]:
        return range(min(num_pages, 2))


def test_work_that_a_policy_saves_need_not_be_planned(models: dict[str, Any]) -> None:
    """Chunks of a prompt were paid for as if they attended to everything: a sparse prefill took as many steps as a full
    one."""
    model, spec = models["llama"]
    driver = Driver.of(model, shape_of(spec, 4, 6), ReferenceAttention(), plain, RingShape(2, 1), FirstPages())
    for start in range(0, 40, 8):
        driver.chunk(PROMPT[start : start + 8], start, most_blocks=2, wide_layers=1)
    reads = len(driver.stored.reads)
    driver.chunk(PROMPT[40:43], 40)
    layers = range(spec.num_layers)
    assert driver.stored.reads[:reads] == [
        (page, layer) for chunk in range(1, 5) for layer in layers for page in range(2 if layer else 2 * chunk)
    ]
    assert driver.stored.reads[reads:] == [(page, layer) for layer in layers for page in range(10)], "a short chunk"


def test_a_call_that_is_cancelled_unwinds() -> None:
    """What a chunk holds must be let go of, though it will never be resumed."""
    seen = []

    def body(pause: Any) -> None:
        try:
            seen.append("began")
            pause()
            seen.append("went on")
        finally:
            seen.append("unwound")

    thread = Background("test")
    for _ in range(2):
        call = Coroutine(body, thread)
        call.resume()
        call.cancel()
        call.cancel()
        assert call.is_over
    assert seen == ["began", "unwound"] * 2
    thread.close(PATIENCE)


def test_a_call_that_hangs_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a chunk waits for its disk, and a program that does not end of it."""
    monkeypatch.setattr("sluice.runner.offload.coroutine.UNWINDING", 0.05)
    hangs, came_back, unwound = (threading.Event() for _ in range(3))

    def body(pause: Any) -> None:
        try:
            hangs.set()
            came_back.wait(PATIENCE)
            pause()
        finally:
            unwound.set()

    thread = Background("test")
    call = Coroutine(body, thread)

    def resume() -> None:
        with pytest.raises(Cancelled):
            call.resume()

    interrupted = threading.Thread(target=resume)
    interrupted.start()
    assert hangs.wait(PATIENCE)
    call.cancel()
    assert not unwound.is_set()
    came_back.set()
    assert unwound.wait(PATIENCE)
    interrupted.join(PATIENCE)
    thread.close(PATIENCE)


class Memory:
    """A `HostTier`: page p of layer l is full of 10 p + l."""

    def layer(self, host_page: int, layer: int) -> torch.Tensor:
        return torch.full((2, 4), 10 * host_page + layer, dtype=torch.uint8)


@pytest.mark.parametrize(
    "eager", [(), *itertools.combinations(DeviceQueues._fields, 1), *itertools.combinations(DeviceQueues._fields, 2)]
)
def test_copies_of_a_gpu_are_ordered_by_events(eager: tuple[str, ...]) -> None:
    """A read before its load is there, or a load over what is still being read: on a device as late, or as early, as
    events allow."""
    queues = late_queues(eager)
    ring = LayerKV(*(torch.zeros((2, 1, 1, 4), dtype=torch.uint8) for _ in range(2)))
    loader = QueueLoader(Memory(), ring, 1, queues.inputs, queues.compute)
    reader = RingReader(DeviceRing(2), loader)
    reader.expect(BlockLoad(layer, [page], [page]) for layer in range(2) for page in range(3))
    seen: list[int] = []

    def look(slot: int) -> None:
        seen.extend(ring.k[slot].flatten().tolist() + ring.v[slot].flatten().tolist())

    for _ in range(6):
        block = reader.next()
        queues.compute.run(functools.partial(look, block.buffer))
        reader.release([block])
    assert queues.compute.record().query()
    assert seen == [10 * page + layer for layer in range(2) for page in range(3) for _ in range(8)]
