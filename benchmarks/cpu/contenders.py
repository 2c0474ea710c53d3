"""The contenders of the comparison: an engine with a format of weights, written like `llama.cpp:q4_0`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.peers.measure import PEERS, peer_named
from benchmarks.peers.peer import Settings
from sluice.config import ConfigError

OURS = "sluice"


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a format of weights."""

    peer: str
    weights: str

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ENGINE:WEIGHTS.

        Raises:
            ConfigError: the engine is not known, or has no such weights.
        """
        peer, _, weights = text.partition(":")
        if peer not in PEERS:
            raise ConfigError(f"--contenders must be ENGINE:WEIGHTS with ENGINE among {', '.join(PEERS)}, got {text!r}")
        known = peer_named(peer).weights
        if weights not in known:
            raise ConfigError(f"--contenders: {peer} has the weights {', '.join(known)}, got {text!r}")
        return cls(peer, weights)

    @property
    def label(self) -> str:
        return f"{self.peer}:{self.weights}"

    @property
    def is_ours(self) -> bool:
        return self.peer == OURS

    def settings(self, shared: Settings) -> Settings:
        return replace(shared, weights=self.weights)

    def prepare(self, shared: Settings) -> None:
        """Install the engine and convert the checkpoint, unless that is done.

        Raises:
            SetupError: one of them failed.
        """
        peer = peer_named(self.peer)
        peer.set_up()
        peer.prepare(self.settings(shared))
