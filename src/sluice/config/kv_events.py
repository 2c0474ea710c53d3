"""Options of KV events: what the prefix cache stores and gives up, published for routers."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, fields
from ipaddress import ip_address

from sluice.config.base import ConfigError, flag, option

SEE = "See [kv-events.md](kv-events.md)."
NEEDS = "Needs --kv-events."
ENDPOINT = "tcp://127.0.0.1:5557"
BUFFER_STEPS, HWM, MAX_QUEUE_SIZE = 10_000, 100_000, 100_000
TCP = re.compile(r"tcp://(\*|[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(\*|\d{1,5})")
FORM = "tcp://HOST:PORT, as tcp://127.0.0.1:5557, or ipc://PATH"
MAX_PATH = 100
"""Bytes that a socket's path may have: the system allows 107."""
MAX_PORT = 65535


@dataclass(frozen=True)
class KvEventsConfig:
    """What the prefix cache stores and gives up, published for routers."""

    kv_events: bool = option(
        False,
        "publish what the prefix cache stores and gives up",
        more="By ZMQ, in vLLM's format, so that routers know which prefixes are cached here. Events carry the tokens of"
        f" prompts. {SEE}",
        vllm="--kv-events-config.enable_kv_cache_events",
    )
    kv_events_endpoint: str | None = option(
        None,
        "address to publish KV events at",
        unset=ENDPOINT,
        more="The server listens at addresses of this machine alone (127.0.0.1, ipc://), and at * for all its networks;"
        " it connects to any other address. A port of * is any that is free. Other machines can read what is published"
        f" outside of this one: see [security.md](security.md#kv-events). {NEEDS}",
        vllm="--kv-events-config.endpoint",
        metavar="ADDRESS",
    )
    kv_events_replay_endpoint: str | None = option(
        None,
        "address at which missed KV events can be asked for",
        unset="none",
        more=f"The server listens there. {NEEDS}",
        vllm="--kv-events-config.replay_endpoint",
        metavar="ADDRESS",
    )
    kv_events_buffer_steps: int | None = option(
        None,
        "batches of KV events that are kept to be asked for",
        unset=str(BUFFER_STEPS),
        more="A step makes one batch at most. Needs --kv-events-replay-endpoint.",
        vllm="--kv-events-config.buffer_steps",
        positive=True,
    )
    kv_events_hwm: int | None = option(
        None,
        "batches of KV events that wait for a slow subscriber",
        unset=str(HWM),
        more=f"Further ones are dropped for this subscriber, who sees a gap in their numbers. {NEEDS}",
        vllm="--kv-events-config.hwm",
        positive=True,
    )
    kv_events_max_queue_size: int | None = option(
        None,
        "batches of KV events that wait to be published",
        unset=str(MAX_QUEUE_SIZE),
        more="Further ones are dropped and counted (`sluice:kv_event_batches_dropped_total`); subscribers see a gap in"
        f" their numbers. {NEEDS}",
        vllm="--kv-events-config.max_queue_size",
        positive=True,
    )
    kv_events_topic: str | None = option(
        None,
        "topic of KV events",
        unset="empty",
        more=f"The first part of each message, by which subscribers choose. {NEEDS}",
        vllm="--kv-events-config.topic",
        metavar="TEXT",
    )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ZMQ address."""

    address: str
    binds: bool
    """Whether to listen there, instead of connecting to it."""
    is_local: bool
    """Whether no other machine can read what is published there."""


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """How KV events are published."""

    endpoint: Endpoint
    replay_endpoint: Endpoint | None = None
    buffer_steps: int = BUFFER_STEPS
    hwm: int = HWM
    max_queue_size: int = MAX_QUEUE_SIZE
    topic: str = ""


def kv_event_settings(config: KvEventsConfig, *, has_prefix_cache: bool) -> KvEventSettings | None:
    """Return how KV events are published; None if they are not.

    Raises:
        ConfigError: an option that has no effect, or an address that cannot be used.
    """
    if not config.kv_events:
        for item in fields(config):
            value = getattr(config, item.name)
            if value is not None and item.name != "kv_events":
                raise ConfigError(f"{flag(item.name)} {value} needs --kv-events (enable_kv_cache_events)")
        return None
    if not has_prefix_cache:
        raise ConfigError("--kv-events needs the prefix cache, but it is off (--no-enable-prefix-caching)")
    if config.kv_events_buffer_steps is not None and config.kv_events_replay_endpoint is None:
        raise ConfigError(
            f"--kv-events-buffer-steps {config.kv_events_buffer_steps} needs --kv-events-replay-endpoint ADDRESS"
        )
    endpoint = endpoint_of("kv_events_endpoint", config.kv_events_endpoint or ENDPOINT)
    return KvEventSettings(
        endpoint,
        _replay_endpoint(config.kv_events_replay_endpoint, endpoint),
        config.kv_events_buffer_steps or BUFFER_STEPS,
        config.kv_events_hwm or HWM,
        config.kv_events_max_queue_size or MAX_QUEUE_SIZE,
        config.kv_events_topic or "",
    )


def _replay_endpoint(text: str | None, endpoint: Endpoint) -> Endpoint | None:
    if text is None:
        return None
    name = "kv_events_replay_endpoint"
    found = endpoint_of(name, text)
    if found.address == endpoint.address and not text.endswith(":*"):
        raise ConfigError(f"{flag(name)} {text} must differ from --kv-events-endpoint")
    return Endpoint(found.address, True, found.is_local)


def endpoint_of(name: str, text: str) -> Endpoint:
    """Return the address that an option gives.

    Raises:
        ConfigError: it is none, naming the option.
    """
    if text.startswith("ipc://") and 0 < len(text.removeprefix("ipc://").encode()) <= MAX_PATH:
        return Endpoint(text, True, True)
    found = TCP.fullmatch(text)
    if found is None or (found[2] != "*" and not 0 < int(found[2]) <= MAX_PORT):
        raise ConfigError(f"{flag(name)} must be {FORM}, got {text!r}")
    host, port = found[1].strip("[]"), found[2]
    if host == "localhost":
        return Endpoint(f"tcp://127.0.0.1:{port}", True, True)
    is_any = host == "*"
    is_loopback = False
    with suppress(ValueError):
        address = ip_address(host)
        is_any, is_loopback = address.is_unspecified, address.is_loopback
    binds = is_any or is_loopback
    if port == "*" and not binds:
        raise ConfigError(f"{flag(name)} {text} needs a port: the server connects to this address")
    return Endpoint(text, binds, is_loopback)
