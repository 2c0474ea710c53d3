"""Options of KV events, in our spelling and in vLLM's: each has its effect, or is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sluice.config import ConfigError, Endpoint, EngineConfig, KvEventSettings, kv_event_settings

ON = {"kv_events": True}


def settings_of(options: dict[str, Any]) -> KvEventSettings | None:
    config = EngineConfig.from_options(options)
    return kv_event_settings(config.kv_events, has_prefix_cache=config.cache.enable_prefix_caching)


def test_they_are_off_and_local_by_default() -> None:
    assert settings_of({}) is None
    assert settings_of(ON) == KvEventSettings(Endpoint("tcp://127.0.0.1:5557", binds=True, is_local=True))


def test_the_config_of_vllm() -> None:
    given = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5600",
        "replay_endpoint": "tcp://*:5601",
        "buffer_steps": 7,
        "hwm": 8,
        "max_queue_size": 9,
        "topic": "kv@pod@model",
    }
    assert settings_of({"kv_events_config": given}) == KvEventSettings(
        Endpoint("tcp://*:5600", binds=True, is_local=False),
        Endpoint("tcp://*:5601", binds=True, is_local=False),
        buffer_steps=7,
        hwm=8,
        max_queue_size=9,
        topic="kv@pod@model",
    )
    assert settings_of({"kv_events_config": '{"enable_kv_cache_events": false}'}) is None


@pytest.mark.parametrize(
    ("address", "binds", "is_local"),
    [
        ("tcp://127.0.0.1:*", True, True),
        ("tcp://[::1]:5557", True, True),
        ("ipc:///run/events", True, True),
        ("tcp://0.0.0.0:5557", True, False),
        ("tcp://[::]:5557", True, False),
        ("tcp://router.example:5557", False, False),
        ("tcp://10.0.0.7:5557", False, False),
    ],
)
def test_addresses_of_this_machine_are_listened_on(address: str, binds: bool, is_local: bool) -> None:
    """A collector of events that listens itself is connected to, as vLLM does."""
    settings = settings_of(ON | {"kv_events_endpoint": address})
    assert settings is not None
    assert settings.endpoint == Endpoint(address, binds, is_local)


def test_a_name_of_this_machine_is_its_address() -> None:
    """ZMQ listens on addresses, not on names."""
    settings = settings_of(ON | {"kv_events_endpoint": "tcp://localhost:5557"})
    assert settings is not None
    assert settings.endpoint == Endpoint("tcp://127.0.0.1:5557", binds=True, is_local=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_events_endpoint": "tcp://*:1"}, "--kv-events-endpoint tcp://*:1 needs --kv-events"),
        ({"kv_events_hwm": 5}, "--kv-events-hwm 5 needs --kv-events"),
        (ON | {"kv_events_buffer_steps": 5}, "--kv-events-buffer-steps 5 needs --kv-events-replay-endpoint"),
        (ON | {"kv_events_hwm": 0}, "--kv-events-hwm must be at least 1, got 0"),
        (ON | {"enable_prefix_caching": False}, "--kv-events needs the prefix cache, but it is off"),
        (ON | {"kv_events_endpoint": "5557"}, "--kv-events-endpoint must be tcp://HOST:PORT"),
        (ON | {"kv_events_endpoint": "inproc://events"}, "got 'inproc://events'"),
        (ON | {"kv_events_endpoint": "tcp://*:70000"}, "got 'tcp://*:70000'"),
        (ON | {"kv_events_endpoint": "tcp://*:0"}, "got 'tcp://*:0'"),
        (ON | {"kv_events_endpoint": "ipc://" + "x" * 101}, "--kv-events-endpoint must be tcp://HOST:PORT"),
        (ON | {"kv_events_endpoint": "tcp://router:*"}, "tcp://router:* needs a port"),
        (ON | {"kv_events_replay_endpoint": "tcp://127.0.0.1:5557"}, "must differ from --kv-events-endpoint"),
        ({"kv_events_config": {"publisher": "null"}}, "--kv-events-config: publisher must be 'zmq', got 'null'"),
        ({"kv_events_config": {"port": 5}}, "'port' is not supported; the fields that are: enable_kv_cache_events,"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        settings_of(options)
