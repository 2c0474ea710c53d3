"""Flags of disaggregated prefill. The command line imports this, so it imports the rest late."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.config import ConfigError, flag

if TYPE_CHECKING:
    from sluice.sim.machine import Machine

GIGABIT = 1e9 / 8
"""Bytes."""
OPTIONS = (
    "prefill_replicas",
    "transfer_latency_ms",
    "transfer_gbps",
    "transfer_us_per_token",
    "split_tokens",
    "split_patience",
)


class Disaggregation(NamedTuple):
    """Replicas that compute prompts, and what sending their KV to those that decode takes."""

    prefill_replicas: int
    latency: float
    """Seconds of a transfer of any length."""
    token: float
    """Seconds for the KV of a token."""
    least_tokens: int = 0
    """Prompts of fewer are computed where they are decoded (see `routing.split.SplitLimits`)."""
    patience: float | None = None
    """Seconds that the first token may be late; None if it does not matter."""


def add_disaggregation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("disaggregated prefill")
    group.add_argument(
        "--prefill-replicas",
        type=int,
        metavar="P",
        help="let P replicas, chosen by --router, compute prompts, and send their KV to those of --replicas, which"
        " decode (default: every replica does both)",
    )
    group.add_argument("--transfer-latency-ms", type=float, metavar="MS", help="of sending a prompt (default: 0)")
    group.add_argument(
        "--transfer-gbps", type=float, metavar="G", help="gigabits a second that a decode replica receives"
    )
    group.add_argument(
        "--transfer-us-per-token",
        type=float,
        metavar="US",
        help="what sending the KV of a token takes, in place of --transfer-gbps",
    )
    group.add_argument(
        "--split-tokens",
        type=int,
        metavar="N",
        help="compute prompts of fewer tokens, without those cached there, where they are decoded (default: 0)",
    )
    group.add_argument(
        "--split-patience",
        type=float,
        metavar="X",
        help="compute a prompt where it is decoded if its first token comes X times as soon there (default: never)",
    )


def take_transfer_options(given: dict[str, Any]) -> dict[str, float]:
    """Take the flags out of those of a command line. Returns them by name."""
    return {name: given.pop(name) for name in OPTIONS if name in given}


def disaggregation_from(options: Mapping[str, float], machine: Machine) -> Disaggregation | None:
    """Return what the flags ask for; None if every replica does both.

    Raises:
        ConfigError: a value that cannot be, or a machine whose prompts cannot be sent.
    """
    if not options:
        return None
    if "prefill_replicas" not in options:
        raise ConfigError(f"{flag(next(iter(options)))} needs --prefill-replicas")
    count, latency = int(options["prefill_replicas"]), options.get("transfer_latency_ms", 0.0)
    if count < 1:
        raise ConfigError(f"--prefill-replicas must be at least 1, got {count}")
    if not machine.setup.prefix_caching:
        raise ConfigError("--prefill-replicas needs --enable-prefix-caching: prompts are sent to the prefix cache")
    if machine.setup.offload is not None:
        raise ConfigError("--prefill-replicas cannot be simulated on a machine with contexts on tiers")
    if not 0 <= latency < math.inf:
        raise ConfigError(f"--transfer-latency-ms must be at least 0, got {latency:g}")
    least, patience = int(options.get("split_tokens", 0)), options.get("split_patience")
    if least < 0:
        raise ConfigError(f"--split-tokens must be at least 0, got {least}")
    if patience is not None and not patience > 0:
        raise ConfigError(f"--split-patience must be above 0, got {patience:g}")
    return Disaggregation(count, latency / 1000, _token_seconds(options, machine.token_bytes), least, patience)


def _token_seconds(options: Mapping[str, float], token_bytes: int) -> float:
    """Return what sending the KV of a token takes, by one of two flags."""
    micros, gbps = options.get("transfer_us_per_token"), options.get("transfer_gbps")
    if micros is not None and gbps is not None:
        raise ConfigError(f"--transfer-gbps {gbps:g} and --transfer-us-per-token {micros:g} both say how long it takes")
    if micros is not None:
        if not 0 <= micros < math.inf:
            raise ConfigError(f"--transfer-us-per-token must be at least 0, got {micros:g}")
        return micros / 1e6
    if gbps is None:
        raise ConfigError("--prefill-replicas needs --transfer-gbps or --transfer-us-per-token")
    if not 0 < gbps < math.inf:
        raise ConfigError(f"--transfer-gbps must be above 0, got {gbps:g}")
    if not token_bytes:
        raise ConfigError(
            f"--transfer-gbps {gbps:g} needs the bytes of a token's KV, which are known with --hardware alone; give"
            " --transfer-us-per-token"
        )
    return token_bytes / (gbps * GIGABIT)
