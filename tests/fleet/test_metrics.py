"""The metrics of each replica, and the board that shows them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from fleet_world import FleetWorld
from sluice.fleet.ingress import replica_metrics
from sluice.http.observe.engine_metrics import Page
from sluice.testing import resolved
from sluice.types import Submit

BOARD = Path(__file__).parents[2] / "deploy" / "grafana-fleet.json"


async def test_each_replica_has_its_own_numbers_and_the_board_shows_them() -> None:
    world = FleetWorld(["a", "b"], router="round-robin")
    for number in range(3):
        world.client.submit([Submit(world.client.next_id(), (1, 2, number + 3), resolved(50))])
    for _ in range(3):
        await world.turn()
    asking = asyncio.create_task(world.client.stats())
    while not asking.done():
        await world.turn()
    page = Page("shadow")
    replica_metrics(world.chooser, world.link.totals)(page)
    text = page.render().decode()
    assert 'sluice:replicas{engine="0",model_name="shadow"} 2.0' in text
    assert 'sluice:replica_requests_total{engine="0",model_name="shadow",replica="a"} 2.0' in text
    assert 'sluice:replica_running{engine="0",model_name="shadow",replica="b"} 1.0' in text
    shown = set(re.findall(r"sluice:replica\w*", BOARD.read_text()))
    assert shown == set(re.findall(r"^(sluice:replica\w*){", text, re.MULTILINE))
    await world.link.close()


def test_every_panel_of_the_board_asks_for_something() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    assert len({panel["id"] for panel in panels}) == len(panels) > 5
