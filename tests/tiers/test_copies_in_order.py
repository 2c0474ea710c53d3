"""A page that is stored and given to a load in one plan: the load waits until the store has read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sluice.device.queues import Event, InlineQueue
from sluice.testing.device import late_queues
from sluice.types import BatchPlan, CopyDone, Tier
from tier_rig import Rig, content, fill, load, plain_kv, store


class PatientQueue(InlineQueue):
    """Runs at once what it is given, after what it was told to wait for."""

    def wait(self, event: Event) -> None:
        event.query()


@pytest.mark.parametrize("target", [Tier.HOST, Tier.DISK])
def test_a_load_waits_for_the_store_of_its_page(tmp_path: Path, target: Tier) -> None:
    """The store copied the bytes that had been loaded meanwhile, under the key and with a checksum of its own."""
    kv = plain_kv(torch.float32)
    rig = Rig.of(kv, tmp_path / "pages", queues=late_queues())
    rig.copies._loading = PatientQueue()
    fill(kv, 3, seed=7)
    (stored,) = rig.run(store(0, Tier.DEVICE, 3, Tier.DISK, 1, seed=3))
    fill(kv, 0, seed=1)
    before = content(kv, 0)
    copies = (store(1, Tier.DEVICE, 0, target, 3, seed=1), load(2, Tier.DISK, 1, 0, stored.checksum))
    begun = rig.copies.begin(BatchPlan(1, (), (), copies=copies), rig.transport)
    told: list[CopyDone] = []
    while len(told) < (1 if target is Tier.HOST else 2):
        told += rig.told.get(timeout=5)
    done = {copy.ticket: copy for copy in [*begun.wait(), *told]}
    assert done[1].error is None
    assert done[2].error is None
    (loaded,) = rig.run(load(3, target, 3, 4, done[1].checksum))
    assert loaded.error is None
    assert torch.equal(content(kv, 4), before)
    rig.close()
