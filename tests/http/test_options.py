"""Options of the server that cannot be honoured are refused by name, value and what would do."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config import ConfigError, ServerConfig
from sluice.http.base.options import check_server


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": 70000}, "--port must be from 0 to 65535, got 70000"),
        ({"max_engine_restarts": -1}, "--max-engine-restarts must be at least 0, got -1"),
        ({"max_stored_responses": -1}, "--max-stored-responses must be at least 0, got -1"),
        ({"heartbeat_timeout": 1.5}, "--heartbeat-timeout must be at least 2 seconds, got 1.5"),
        ({"step_timeout": 0.0}, "--step-timeout must be more than 0 seconds, got 0"),
        ({"progress_timeout": 0}, "--progress-timeout must be more than 0 seconds, got 0"),
        ({"start_timeout": 0}, "--start-timeout must be more than 0 seconds, got 0"),
        ({"drain_timeout": -1}, "--drain-timeout must be a number of at least 0, got -1"),
        ({"inject_fault": "crash@1"}, "--inject-fault 'crash@1' needs --enable-fault-injection"),
        ({"enable_fault_injection": True}, "--enable-fault-injection needs a fault"),
        ({"enable_fault_injection": True, "inject_fault": "boom"}, "--inject-fault: 'boom' is not a fault"),
    ],
)
def test_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_server(ServerConfig(**options))
    assert said in str(refused.value)


def test_accepted() -> None:
    check_server(ServerConfig())
    check_server(
        ServerConfig(max_engine_restarts=0, drain_timeout=0, enable_fault_injection=True, inject_fault="nan@1")
    )
