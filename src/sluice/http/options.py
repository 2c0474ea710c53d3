"""Checks of the server's options, beyond what `config` checks of each."""

from __future__ import annotations

from sluice.config import ConfigError, ServerConfig, check_values, flag
from sluice.faults import FaultError, parse_faults

SHORTEST_HEARTBEAT = 2.0
"""Seconds: an engine that waits gives a sign of life every second."""


def check_server(config: ServerConfig) -> None:
    """Refuse options that cannot be honoured.

    Raises:
        ConfigError: an option, or a combination, by name and value.
    """
    check_values(config)
    if not 0 <= config.port <= 65535:
        raise ConfigError(f"--port must be from 0 to 65535, got {config.port}")
    if config.max_engine_restarts < 0:
        raise ConfigError(f"--max-engine-restarts must be at least 0, got {config.max_engine_restarts}")
    if config.heartbeat_timeout < SHORTEST_HEARTBEAT:
        raise ConfigError(
            f"--heartbeat-timeout must be at least {SHORTEST_HEARTBEAT:g} seconds, got {config.heartbeat_timeout:g}:"
            " an engine that waits gives a sign of life every second"
        )
    for name, seconds in (("step_timeout", config.step_timeout), ("start_timeout", config.start_timeout)):
        if seconds <= 0:
            raise ConfigError(f"{flag(name)} must be more than 0 seconds, got {seconds:g}")
    _check_faults(config)


def _check_faults(config: ServerConfig) -> None:
    if config.enable_fault_injection and config.inject_fault is None:
        raise ConfigError("--enable-fault-injection needs a fault (--inject-fault)")
    if config.inject_fault is None:
        return
    if not config.enable_fault_injection:
        raise ConfigError(f"--inject-fault {config.inject_fault!r} needs --enable-fault-injection")
    try:
        parse_faults(config.inject_fault)
    except FaultError as error:
        raise ConfigError(f"--inject-fault: {error}") from error
