"""What it takes to measure another engine: install it, give it the checkpoint in its own form, start it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """What every peer is told alike. What one of them cannot be told is left to its own default."""

    checkpoint: Path
    """A Hugging Face folder."""
    threads: int = 2
    budget: int | None = None
    """Most tokens of one step; None: the peer's own default."""
    max_running: int = 8
    """Most requests decoded at once."""
    kv_tokens: int = 32_768
    """Size of the KV pool."""
    more: tuple[str, ...] = ()
    """Further arguments of the peer's own command line."""

    @property
    def config(self) -> Mapping[str, object]:
        """The checkpoint's config.json."""
        content: Mapping[str, object] = json.loads((self.checkpoint / "config.json").read_text(encoding="utf-8"))
        return content

    @property
    def vocab_size(self) -> int:
        return self._integer("vocab_size")

    @property
    def max_model_len(self) -> int:
        """The longest context: the model's, or what the KV pool holds."""
        name = "n_positions" if "n_positions" in self.config else "max_position_embeddings"
        return min(self.kv_tokens, self._integer(name))

    @property
    def kv_bytes_per_token(self) -> int:
        """Of 16-bit keys and values over all layers."""
        if "n_embd" in self.config:
            return 4 * self._integer("n_layer") * self._integer("n_embd")
        heads = self._integer("num_attention_heads")
        kv_heads = self._integer("num_key_value_heads", heads)
        head_dim = self._integer("head_dim", self._integer("hidden_size") // heads)
        return 4 * self._integer("num_hidden_layers") * kv_heads * head_dim

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if not isinstance(value, int):
            raise ConfigError(f"{self.checkpoint}/config.json: {name} must be an integer, got {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside that of this process."""


@dataclass(frozen=True, slots=True)
class Job:
    """A workload, sent to an engine that runs."""

    given: Mapping[str, Any]
    """Options of `sluice bench`, by name."""
    out: Path
    """The result file."""
    busy_processor: int | None = None
    """A neighbour keeps it busy meanwhile."""


class Peer(Protocol):
    """An engine."""

    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> Sequence[str]:
        """Whose versions are worth knowing."""
        ...

    def set_up(self) -> None:
        """Install it, unless it is there.

        Raises:
            SetupError
        """
        ...

    def versions(self) -> dict[str, str]:
        """Of `packages`; it is set up."""
        ...

    def prepare(self, settings: Settings) -> None:
        """Convert the checkpoint, unless that is done.

        Raises:
            SetupError
        """
        ...


class ServerPeer(Peer, Protocol):
    """An engine with OpenAI's API."""

    def serve(self, settings: Settings, port: int) -> Command:
        """Serve on this port of the local host until the process is asked to end."""
        ...


class InProcessPeer(Peer, Protocol):
    """An engine without a server, or measured without it."""

    @property
    def module(self) -> str:
        """What to run with the peer's interpreter: a module of this repository whose main is `in_process.main`."""
        ...

    def interpreter(self) -> Path: ...

    def environment(self, settings: Settings) -> Mapping[str, str]:
        """Variables of the process, beside those of this one."""
        ...
