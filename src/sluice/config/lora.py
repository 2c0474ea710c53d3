"""Options of adapters (LoRA): small weights beside those of the model, which requests choose by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from sluice.config.base import ConfigError, option
from sluice.types import AdapterLimits

SEE = "See [lora.md](lora.md)."
MAX_LORAS, MAX_LORA_RANK = 4, 16
GOOD_NAME = re.compile(r"[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,255}")
FIELDS: Mapping[str, str] = MappingProxyType({"name": "name", "lora_name": "name", "path": "path", "lora_path": "path"})
"""Fields of an adapter, with SGLang's names for them."""
IGNORED = ("base_model_name", "pinned", "is_3d_lora_weight")
"""Further fields that vLLM and SGLang have, and that change nothing here."""


class LoraModule(NamedTuple):
    """An adapter that is loaded when the engine starts."""

    name: str
    path: str


@dataclass(frozen=True)
class LoraConfig:
    """Adapters of the model (LoRA), which requests choose by name."""

    enable_lora: bool = option(
        False,
        "reserve memory for adapters (LoRA)",
        more=f"On with --lora-modules. {SEE}",
        sglang="--enable-lora",
        vllm="--enable-lora",
    )
    lora_modules: tuple[str, ...] | None = option(
        None,
        "adapters to load at the start, as NAME=PATH",
        unset="none",
        more="A path is a folder in PEFT's format, or a GGUF file. Requests choose an adapter by its name, in the place"
        ' of the model\'s. JSON is accepted, too: `{"name": NAME, "path": PATH}`.',
        aliases=("lora_paths",),
        sglang="--lora-paths",
        vllm="--lora-modules",
        metavar="NAME=PATH",
    )
    max_loras: int | None = option(
        None,
        "maximum adapters in one step",
        unset=str(MAX_LORAS),
        more="Each has a place in the memory of the device. More may be loaded: the one that was used least recently"
        " gives up its place. Needs --enable-lora.",
        aliases=("max_loras_per_batch",),
        sglang="--max-loras-per-batch",
        vllm="--max-loras",
        positive=True,
    )
    max_lora_rank: int | None = option(
        None,
        "largest rank of an adapter",
        unset=str(MAX_LORA_RANK),
        more="It sets the memory of a place. Needs --enable-lora.",
        sglang="--max-lora-rank",
        vllm="--max-lora-rank",
        positive=True,
    )

    @property
    def is_on(self) -> bool:
        """Whether there are to be adapters."""
        return self.enable_lora or bool(self.lora_modules)

    def limits(self) -> AdapterLimits | None:
        """Return what there is to be room for; None: no adapters."""
        if not self.is_on:
            return None
        return AdapterLimits(self.max_loras or MAX_LORAS, self.max_lora_rank or MAX_LORA_RANK)

    def modules(self) -> tuple[LoraModule, ...]:
        """Return the adapters to load at the start.

        Raises:
            ConfigError: one has no name or no path, or a name is there twice.
        """
        found = tuple(_module(item) for item in self.lora_modules or ())
        names = [module.name for module in found]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--lora-modules: the name {name!r} is there twice")
        return found


def check_lora(config: LoraConfig) -> None:
    """Check the options together.

    Raises:
        ConfigError: an option without effect, or an adapter that is not named as is accepted.
    """
    for name, value in (("--max-loras", config.max_loras), ("--max-lora-rank", config.max_lora_rank)):
        if value is not None and not config.is_on:
            raise ConfigError(f"{name} {value} needs --enable-lora")
    config.modules()


def check_name(name: str) -> None:
    """
    Raises:
        ValueError: requests could not send it as the name of a model.
    """
    if GOOD_NAME.fullmatch(name) is None:
        raise ValueError(f"the name of an adapter must be 1 to 256 printable characters, got {name[:300]!r}")


def listed(given: object) -> tuple[str, ...]:
    """Return the adapters of an option in the form that it has on a command line.

    Args:
        given: a mapping of names to paths; or texts as on a command line, or mappings as in their JSON, one or a list.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(given, dict) and not FIELDS.keys() & given.keys():
        return tuple(f"{name}={path}" for name, path in given.items())
    return tuple(_texts(given if isinstance(given, list | tuple) else [given]))


def _texts(items: Sequence[object]) -> Iterator[str]:
    for item in items:
        if isinstance(item, dict):
            yield json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in item.items()})
        elif isinstance(item, str):
            yield item
        else:
            raise ConfigError(f"--lora-modules must be NAME=PATH, or an object with name and path, got {item!r}")


def _module(item: str) -> LoraModule:
    if item.lstrip().startswith("{"):
        module = _of_json(item)
    else:
        name, equals, path = item.partition("=")
        module = LoraModule(name, path) if equals else LoraModule(item, item)
    if not module.path:
        raise ConfigError(f"--lora-modules must be NAME=PATH, got {item!r}")
    try:
        check_name(module.name)
    except ValueError as error:
        raise ConfigError(f"--lora-modules {item}: {error}") from error
    return module


def _of_json(item: str) -> LoraModule:
    try:
        fields = json.loads(item)
    except ValueError as error:
        raise ConfigError(f"--lora-modules must be NAME=PATH or a JSON object, got {item!r}: {error}") from None
    found: dict[str, str] = {}
    for key, value in fields.items():
        if key in FIELDS and isinstance(value, str):
            found[FIELDS[key]] = value
        elif key in FIELDS or key not in IGNORED:
            raise ConfigError(f"--lora-modules: an object has name and path, got {key!r}: {value!r}")
    if found.keys() != {"name", "path"}:
        raise ConfigError(f"--lora-modules: an object needs name and path, got {item}")
    return LoraModule(found["name"], found["path"])
