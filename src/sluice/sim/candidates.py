"""Which settings `sluice tune` tries: values of options around those of the measured engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from sluice.config import ConfigError, flag
from sluice.sim.machine import Machine
from sluice.sim.settings import OPTIONS, changed
from sluice.sim.slo import Slo
from sluice.sim.workload import Arrival

HOST_TOKENS = "host_tokens"
"""Size of the host tier in tokens; not an option of a server, which counts bytes."""
CHUNK_FACTORS = (0.25, 0.5, 1, 2, 4)
RUNNING_FACTORS = (0.25, 0.5, 1)
COMPARED_TOKENS = 16
"""Prompts that have these in common are taken to share a prefix."""
TARGET_SHARES = (0.4, 0.6, 0.8, 1.0)
"""ITL targets, as shares of the shortest ITL objective."""
Settings = Mapping[str, Any]
"""Options by name, those that differ from the measured engine's."""


@dataclass(frozen=True)
class Candidate:
    """Settings, and the engine that they make."""

    settings: Settings
    machine: Machine

    def arguments(self) -> str:
        """Return the settings as a command line."""
        as_is = "(as measured)" if self.machine.is_measured else "(all options left open)"
        return " ".join(argument(name, value) for name, value in self.settings.items()) or as_is


def argument(name: str, value: Any) -> str:
    """Return a setting as part of a command line."""
    if name == HOST_TOKENS:
        return f"--kv-host-bytes <bytes of {value} tokens>"
    if isinstance(value, bool):
        return flag(name) if value else f"--no-{flag(name)[2:]}"
    return f"{flag(name)} {value}"


def candidates(
    machine: Machine,
    grid: Sequence[Settings],
    most: int,
    seed: int,
    on_refused: Callable[[ConfigError], object] = lambda error: None,
) -> list[Candidate]:
    """Make the engines of settings: the measured one first, the others in random order.

    Settings that make equal engines are one candidate, and those that cannot be honoured are none.

    Args:
        most: number of candidates.
        on_refused: called with the reason why settings cannot be honoured.

    Raises:
        ConfigError: no settings but the measured ones can be honoured; the message is that of the first.
    """
    found = {_key(machine): Candidate({}, machine)}
    refused: ConfigError | None = None
    rest = list(grid)
    random.Random(seed).shuffle(rest)
    for settings in rest:
        if len(found) >= most:
            break
        try:
            made = configured(machine, settings)
        except ConfigError as error:
            refused = refused or error
            on_refused(error)
            continue
        found.setdefault(_key(made), Candidate(settings, made))
    if refused is not None and len(found) == 1:
        raise refused
    return list(found.values())


def _key(machine: Machine) -> tuple[object, int]:
    return machine.setup, machine.depth


def configured(machine: Machine, settings: Settings) -> Machine:
    """Return a machine with these settings.

    Raises:
        ConfigError: they cannot be honoured.
    """
    options = {name: value for name, value in settings.items() if name != HOST_TOKENS}
    page_size = options.get("page_size") or machine.setup.page_size
    tokens = settings.get(HOST_TOKENS)
    return changed(machine, options, None if tokens is None else {"host_pages": tokens // page_size})


def default_grid(machine: Machine, arrivals: Sequence[Arrival], slo: Slo) -> list[Settings]:
    """Return settings around those of the measured engine, as far as the traffic and the objectives give reason."""
    limits, pool = machine.setup.limits, machine.setup.num_pages * machine.setup.page_size
    chunks = sorted({_paged(limits.chunked_prefill_size * each, machine, pool) for each in CHUNK_FACTORS})
    without: dict[str, Any] = {"itl_target": "off"} if limits.itl_target else {}
    pace: list[dict[str, Any]] = [{"chunked_prefill_size": chunk} | without for chunk in chunks]
    itl = [each.limit for each in slo.objectives if each.figure.metric == "itl"]
    targets: list[dict[str, Any]] = (
        [{"itl_target": f"{1000 * share * min(itl):g}ms"} for share in TARGET_SHARES] if itl else []
    )
    dimensions: list[Sequence[Settings]] = [
        [{"max_partial_prefills": number} for number in (1, 4)],
        [{"max_running_requests": max(1, round(limits.max_running_requests * each))} for each in RUNNING_FACTORS],
    ]
    if machine.setup.prefix_caching and _repeats(arrivals):
        dimensions.append([{"schedule_policy": each} for each in ("fcfs", "lpm")])
        dimensions.append([{}, {HOST_TOKENS: 2 * pool}])
    mixed: list[Settings] = [{"schedule": "mixed"} | each for each in (*pace, *targets)]
    alone: list[Settings] = [{"schedule": "prefill-first"} | each for each in pace]
    return list(_merged([[*mixed, *alone], *dimensions], machine))


def given_grid(texts: Sequence[str], machine: Machine) -> list[Settings]:
    """Return all combinations of values such as `chunked_prefill_size=64,128`.

    Raises:
        ConfigError: a text is no such list, names no option that can be simulated, or has a value that no combination
            can honour.
    """
    dimensions: dict[str, list[Settings]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not values.strip() or name not in (*OPTIONS, HOST_TOKENS):
            known = ", ".join((*OPTIONS, HOST_TOKENS))
            raise ConfigError(f"--search takes NAME=VALUE,VALUE with one of {known}, got {text!r}")
        if name in dimensions:
            raise ConfigError(f"--search names {name} twice")
        dimensions[name] = [{name: _value(name, each.strip())} for each in values.split(",")]
    _check_values(machine, dimensions)
    return list(_merged(list(dimensions.values()), machine))


def _check_values(machine: Machine, dimensions: Mapping[str, Sequence[Settings]]) -> None:
    """Refuse a value that can be honoured neither alone nor together with any values of the other options."""
    for name, values in dimensions.items():
        others = [each for other, each in dimensions.items() if other != name]
        for value in values:
            refused = _refusal(machine, value)
            if refused is not None and all(
                _refusal(machine, settings) for settings in _merged([[value], *others], machine)
            ):
                raise ConfigError(f"--search {name}={value[name]}: {refused}")


def _refusal(machine: Machine, settings: Settings) -> ConfigError | None:
    """Return why settings cannot be honoured; None if they can."""
    try:
        configured(machine, settings)
    except ConfigError as error:
        return error
    return None


def _value(name: str, text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        value: int | float = int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
    if name == HOST_TOKENS and value < 0:
        raise ConfigError(f"--search: {HOST_TOKENS} must be at least 0, got {text}")
    return value


def _merged(dimensions: Sequence[Sequence[Settings]], machine: Machine) -> Iterator[Settings]:
    for parts in product(*dimensions):
        yield {name: value for part in parts for name, value in part.items() if not _is_measured(name, value, machine)}


def _is_measured(name: str, value: Any, machine: Machine) -> bool:
    """Return whether the measured engine has this value, as far as its limits have the option's name."""
    limits = machine.setup.limits
    known = {
        "schedule": limits.schedule,
        "chunked_prefill_size": limits.chunked_prefill_size,
        "max_partial_prefills": limits.max_partial_prefills,
        "max_running_requests": limits.max_running_requests,
        "schedule_policy": limits.policy,
        "page_size": machine.setup.page_size,
        HOST_TOKENS: machine.setup.tiers.host_pages * machine.setup.page_size,
    }
    return name in known and known[name] == value


def _paged(tokens: float, machine: Machine, pool: int) -> int:
    """Return a chunk of whole pages that the pool can hold."""
    page = machine.setup.page_size
    return max(page, min(round(tokens / page) * page, pool // page * page))


def _repeats(arrivals: Sequence[Arrival]) -> bool:
    """Return whether prompts begin alike."""
    beginnings = {each.prompt.tokens()[:COMPARED_TOKENS] for each in arrivals}
    return len(beginnings) < len(arrivals)
