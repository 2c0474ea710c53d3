"""Servers that sleep: what they answer, and who may put them to sleep."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from processes import free_port
from serve_process import announced, server, shadow
from serving import run, serving
from sluice.cli import main

BOSS = {"Authorization": "Bearer boss"}
PROMPT = {"prompt": "abc", "max_tokens": 2}


def status_of(url: str) -> str:
    found: str = httpx.get(f"{url}/health").json()["status"]
    return found


def test_a_server_that_its_administrator_puts_to_sleep(tmp_path: Path) -> None:
    """An orchestrator ends a server that sleeps; a user's key puts it to sleep; a request waits for ever."""
    port, keys = free_port(), tmp_path / "keys"
    keys.write_text("chief\n")
    url = f"http://127.0.0.1:{port}"
    options: dict[str, Any] = {"enable_admin": True, "admin_key": "boss", "admin_key_file": str(keys)}
    with server(*shadow(port, tmp_path, api_key="user", **options)) as process:
        announced(process)
        user = {"Authorization": "Bearer user"}
        for path in ("/sleep", "/wake_up"):
            assert httpx.post(f"{url}{path}", headers=user).status_code == 401
        assert httpx.get(f"{url}/is_sleeping").status_code == 401
        assert httpx.post(f"{url}/v1/completions", json=PROMPT, headers=BOSS).status_code == 401
        bad = httpx.post(f"{url}/sleep?level=3", headers=BOSS)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "level")
        assert httpx.post(f"{url}/sleep?level=2", headers=BOSS, timeout=60).json() == {"is_sleeping": True}
        assert httpx.get(f"{url}/is_sleeping", headers=BOSS).json() == {"is_sleeping": True}
        assert httpx.get(f"{url}/health").status_code == httpx.get(f"{url}/live").status_code == 200
        assert status_of(url) == "sleeping"
        assert httpx.get(f"{url}/ready").status_code == 503
        refused = httpx.post(f"{url}/v1/completions", json=PROMPT, headers=user)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
        assert refused.headers["retry-after"].isdecimal()
        assert 'sluice:engine_sleeping{engine="0",model_name=' in httpx.get(f"{url}/metrics", headers=user).text
        assert httpx.get(f"{url}/server_info", headers=user).json()["engine_pid"] is None
        assert httpx.post(f"{url}/wake_up?tags=weights", headers=BOSS).status_code == 400
        bad = httpx.post(f"{url}/wake_up?new_weights=maybe", headers=BOSS)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "new_weights")
        chief = {"Authorization": "Bearer chief"}
        assert httpx.post(f"{url}/wake_up", headers=chief, timeout=60).json() == {"is_sleeping": False}
        assert httpx.get(f"{url}/ready").status_code == 200
        assert httpx.post(f"{url}/v1/completions", json=PROMPT, headers=user, timeout=60).status_code == 200
        assert httpx.get(f"{url}/server_info", headers=user).json()["engine_restarts"] == 0
        process.terminate()
        assert process.wait(40) == 0


def test_a_server_unloads_an_idle_engine_and_loads_it_for_the_next_request(tmp_path: Path) -> None:
    """A load balancer sends no requests to a server that is not ready, so nothing would wake it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with server(*shadow(port, tmp_path, idle_unload=0.3, max_engine_restarts=0)) as process:
        announced(process)
        while status_of(url) != "sleeping":
            pass
        assert httpx.get(f"{url}/ready").status_code == 200
        assert httpx.post(f"{url}/sleep").status_code == 404
        assert httpx.post(f"{url}/v1/completions", json=PROMPT, timeout=60).status_code == 200
        process.terminate()
        assert process.wait(40) == 0


def test_requests_are_refused_while_the_last_ones_end() -> None:
    """Else a server with clients never sleeps."""

    async def test() -> None:
        async with serving() as running:
            running.hold()
            call = asyncio.create_task(running.complete(**PROMPT))
            await running.arrived(1)
            running.backend.engine.is_put_to_sleep = True
            refused = await running.post("/v1/completions", **PROMPT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
            answers = [await running.http.get(path) for path in ("/live", "/ready", "/health")]
            assert [answer.status_code for answer in answers] == [200, 503, 200]
            running.let_go()
            assert (await call)["choices"]
            running.backend.engine.is_put_to_sleep = False

    run(test)


def test_a_closed_server_is_not_well_because_it_sleeps() -> None:
    async def test() -> None:
        async with serving() as running:
            engine = running.backend.engine
            engine.asleep()
            assert (await running.http.get("/ready")).status_code == 200
            running.backend.drain()
            for path in ("/ready", "/health"):
                answer = await running.http.get(path)
                assert (answer.status_code, answer.json()["status"]) == (503, "the server is shutting down")

    run(test)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--enable-admin"], "--enable-admin needs a key of its own"),
        (["--admin-key", "boss"], "no use without --enable-admin"),
        (["--enable-admin", "--admin-key", "both", "--api-key", "both"], "must not be an API key"),
        (["--enable-admin", "--admin-key", "two words"], "--admin-key: a key must be printable"),
        (["--idle-unload", "0"], "--idle-unload must be more than 0 seconds, got 0"),
    ],
)
def test_options_that_leave_the_door_open(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["serve", "--port", "0", *options]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "two words" not in errors
