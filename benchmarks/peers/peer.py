"""The protocols of another engine: install it, convert the checkpoint for it, start it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that all peers share. A peer that lacks one of them keeps its own default."""

    checkpoint: Path
    """The checkpoint, a Hugging Face folder."""
    threads: int = 2
    budget: int | None = None
    """Most tokens of one step; None: the peer's own default."""
    max_running: int = 8
    """Most requests decoded at once."""
    kv_tokens: int = 32_768
    """Size of the KV pool."""
    more: tuple[str, ...] = ()
    """More arguments for the peer's own command line."""
    weights: str = "bf16"
    """Format of the weights, one of the peer's `weights`."""

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
        """The longest context: the model's, or the size of the KV pool."""
        name = "n_positions" if "n_positions" in self.config else "max_position_embeddings"
        return min(self.kv_tokens, self._integer(name))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's 16-bit keys and values in all layers."""
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
    """Variables added to this process' environment."""


@dataclass(frozen=True, slots=True)
class Job:
    """A workload for a running engine."""

    given: Mapping[str, Any]
    """Options of `sluice bench`, by name."""
    out: Path
    """The result file."""
    busy_processor: int | None = None
    """The processor that a neighbour keeps busy meanwhile."""


class Peer(Protocol):
    """An engine."""

    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> Sequence[str]:
        """The packages whose versions are recorded."""
        ...

    @property
    def weights(self) -> Sequence[str]:
        """Formats that weights can have, as the peer calls them."""
        ...

    def set_up(self) -> None:
        """Install the engine, unless it is installed.

        Raises:
            SetupError: the installation failed.
        """
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of `packages`, after `set_up`."""
        ...

    def prepare(self, settings: Settings) -> None:
        """Convert the checkpoint, unless that is done.

        Raises:
            SetupError: the conversion failed.
        """
        ...


class ServerPeer(Peer, Protocol):
    """An engine with OpenAI's API."""

    def serve(self, settings: Settings, port: int) -> Command:
        """Return the command that serves on this port of the local host until the process is ended."""
        ...


class InProcessPeer(Peer, Protocol):
    """An engine without a server, or measured without it."""

    @property
    def module(self) -> str:
        """The module of this repository to run with the peer's interpreter. Its main is `in_process.main`."""
        ...

    def interpreter(self) -> Path: ...

    def environment(self, settings: Settings) -> Mapping[str, str]:
        """Variables added to this process' environment."""
        ...
