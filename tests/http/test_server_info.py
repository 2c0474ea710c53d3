"""`GET /server_info`: every option as it came out, and how the engine stands."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from serving import MEMORY, MODEL, Server, run, serving
from shadow_engine import NUM_PAGES, PAGE_SIZE
from sluice.config import ENGINE_GROUPS, GROUPS, options_of
from sluice.http.observe.info import occupancy_fields
from sluice.types import Occupancy, Tier, TierUse


async def info_of(server: Server) -> dict[str, Any]:
    answer = await server.http.get("/server_info")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_every_option_with_value_and_reason() -> None:
    async def test() -> None:
        async with serving(enable_overlap=True) as server:
            config = (await info_of(server))["config"]
            names = [name for group in ("server", *ENGINE_GROUPS) for name, _ in options_of(GROUPS[group])]
            assert list(config) == names
            assert config["page_size"] == {
                "value": PAGE_SIZE,
                "reason": "you set it",
                "group": "cache",
                "flag": "--page-size",
            }
            assert (config["depth"]["value"], config["depth"]["reason"]) == (2, "--enable-overlap")
            assert (config["schedule"]["value"], config["schedule"]["reason"]) == ("mixed", "default")
            assert config["max_prefill_tokens"]["value"] is None
            assert config["max_prefill_tokens"]["reason"] == "default: no limit"

    run(test)


def test_how_an_idle_engine_stands() -> None:
    async def test() -> None:
        async with serving() as server:
            info = await info_of(server)
            assert info["model"] == MODEL
            assert info["memory"] == MEMORY.as_dict()
            assert (info["engine_pid"], info["engine_restarts"]) == (os.getpid(), 0)
            assert (info["running"], info["waiting"], info["last_step"]) == (0, 0, None)
            assert (info["free_pages"], info["cached_pages"], info["total_pages"]) == (NUM_PAGES, 0, NUM_PAGES)
            await server.complete(prompt="a" * 3 * PAGE_SIZE, max_tokens=2)
            info = await info_of(server)
            assert (info["running"], info["waiting"]) == (0, 0)
            assert (info["free_pages"], info["cached_pages"]) == (NUM_PAGES - 3, 3)
            last = info["last_step"]
            assert last.pop("seconds") >= 0
            assert last.pop("micros") >= 0
            assert last == {
                "step": 1,
                "rows": 1,
                "tokens": 1,
                "decode_rows": 1,
                "prefill_rows": 0,
                "prefill_tokens": 0,
                "bound_by": "nothing",
                "failed": False,
                "pace": None,
                "drafted": 0,
                "accepted": 0,
            }

    run(test)


def test_tiers_are_listed_by_name() -> None:
    """From a list of numbers no reader knows which is which."""
    disk = TierUse(Tier.DISK, 10, 7, stored=8, lost=1)
    fields = occupancy_fields(Occupancy(1, 2, 3, 4, 9, loading=5, tiers=(disk,)))
    assert (fields["running"], fields["loading"]) == (1, 5)
    assert msgspec.to_builtins(fields["tiers"]) == [
        {
            "tier": "disk",
            "total": 10,
            "used": 7,
            "stored": 8,
            "failed_stores": 0,
            "loaded": 0,
            "failed_loads": 0,
            "lost": 1,
            "retired": 0,
        }
    ]


def test_how_a_busy_engine_stands() -> None:
    """While others run: the question neither waits for their end nor harms them."""

    async def test() -> None:
        async with serving(max_running_requests=2, max_batch_tokens=40) as server:
            server.hold()
            calls = [asyncio.create_task(server.complete(prompt="ab", max_tokens=100)) for _ in range(5)]
            await server.arrived(5)
            info = await info_of(server)
            assert (info["running"], info["waiting"]) == (2, 3)
            assert info["free_pages"] + info["cached_pages"] < NUM_PAGES
            assert info["last_step"]["bound_by"] == "max_running_requests"
            server.let_go()
            answers = await asyncio.gather(*calls)
            assert [answer["usage"]["completion_tokens"] for answer in answers] == [100] * 5

    run(test)


def test_while_another_engine_is_started() -> None:
    """The keys that dashboards read are there, and no call waits for an engine to come."""

    async def test() -> None:
        async with serving() as server:
            engine, client = server.backend.engine, server.client
            engine.away("it was killed")
            client.detach("was killed", ())
            engine.stats.restarts = 1
            info = await info_of(server)
            assert (info["engine_pid"], info["engine_restarts"], info["last_step"]) == (None, 1, None)
            assert (info["running"], info["waiting"]) == (0, 0)
            assert (info["free_pages"], info["cached_pages"], info["total_pages"]) == (0, 0, 0)

    run(test)


def test_without_an_engine() -> None:
    """A question on its way when the engine dies must not wait for ever."""

    async def test() -> None:
        async with serving() as server:
            asked = asyncio.create_task(server.client.stats())
            await asyncio.sleep(0)
            server.backend.close("the engine was killed by signal 9")
            refused = await server.http.get("/server_info")
            assert refused.status_code == 503
            assert "killed by signal 9" in refused.json()["error"]["message"]
            (error,) = await asyncio.gather(asked, return_exceptions=True)
            assert str(error) == "the engine was killed by signal 9"

    run(test)
