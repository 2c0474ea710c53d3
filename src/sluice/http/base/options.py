"""Checks of the server's options, beyond what `config` checks of each."""

from __future__ import annotations

import re

from sluice.config import ConfigError, ServerConfig, check_values, flag
from sluice.http.base.origins import allowed_origins
from sluice.types.faults import FaultError, parse_faults

SHORTEST_HEARTBEAT = 2.0
"""Seconds: an engine that waits gives a sign of life every second."""

ANY_HOST = "*"
HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.IGNORECASE)


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
    if config.max_stored_responses < 0:
        raise ConfigError(f"--max-stored-responses must be at least 0, got {config.max_stored_responses}")
    if config.heartbeat_timeout < SHORTEST_HEARTBEAT:
        raise ConfigError(
            f"--heartbeat-timeout must be at least {SHORTEST_HEARTBEAT:g} seconds, got {config.heartbeat_timeout:g}:"
            " an engine that waits gives a sign of life every second"
        )
    for name, seconds in (
        ("step_timeout", config.step_timeout),
        ("start_timeout", config.start_timeout),
        ("progress_timeout", config.progress_timeout),
        ("idle_unload", config.idle_unload),
    ):
        if seconds is not None and seconds <= 0:
            raise ConfigError(f"{flag(name)} must be more than 0 seconds, got {seconds:g}")
    allowed_hosts(config)
    allowed_origins(config)
    if config.cache_isolation == "key" and config.api_key is None and config.api_key_file is None:
        raise ConfigError("--cache-isolation key needs API keys (--api-key-file FILE or --api-key KEY)")
    has_key = config.admin_key is not None or config.admin_key_file is not None
    if config.enable_admin and not has_key:
        raise ConfigError("--enable-admin needs a key of its own (--admin-key-file FILE or --admin-key KEY)")
    if config.lora_dir is not None and not has_key:
        raise ConfigError(
            f"--lora-dir {config.lora_dir} needs an admin key (--admin-key-file FILE or --admin-key KEY): who loads"
            " adapters decides what is answered"
        )
    if has_key and not config.enable_admin and config.lora_dir is None:
        raise ConfigError(
            "an admin key (--admin-key-file or --admin-key) has no use without --enable-admin or --lora-dir"
        )
    model_names(config, "")
    _check_faults(config)


def model_names(config: ServerConfig, own: str) -> tuple[str, ...]:
    """Return the names of the model in the API.

    Args:
        own: the model's own name.

    Raises:
        ConfigError: a name of `--served-model-name` is empty.
    """
    if config.served_model_name is None:
        return (own,)
    names = tuple(name.strip() for name in config.served_model_name.split(","))
    if not all(names):
        raise ConfigError(
            f"--served-model-name must be a name, or several separated by commas; got {config.served_model_name!r}"
        )
    return names


def allowed_hosts(config: ServerConfig) -> frozenset[str]:
    """Return the names of `--allowed-hosts` in lower case: `*.name` is every name below one, `ANY_HOST` any.

    Raises:
        ConfigError: an entry that is not a name.
    """
    names = [] if config.allowed_hosts is None else [name.strip() for name in config.allowed_hosts.split(",")]
    for name in names:
        if name != ANY_HOST and HOST_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"--allowed-hosts must be names without port, separated by commas, as chat.example,*.lan; got {name!r}"
            )
    return frozenset(name.lower() for name in names)


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
