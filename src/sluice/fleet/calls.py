"""Call: a request on its way from the ingress to a replica, as the router sees it, and as the replica receives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from sluice.engine.clock import micros_at
from sluice.fleet.identity import Identity
from sluice.fleet.replica_router import ReplicaAttempt, ReplicaCandidate, ReplicaRouter
from sluice.kv.digests import page_digests
from sluice.process.wire import decode, encode
from sluice.types import Submit

SURROGATES = range(0xD800, 0xE000)
"""Code points that no text has."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a replica receives of a call."""

    identity: Identity
    """Identity of the replicas that may serve it."""
    sent_at: float
    """When it was sent, by the clock of the ingress."""
    submit: bytes
    """The request, encoded as a message of `wire`."""
    offer: bytes = b""
    """Where pages of its prompt are stored (`handover.encode_offer`); empty: the replica uses what it has."""
    hands_over: bool = False
    """It continues on another replica after its first token."""

    def request(self, now: float) -> Submit:
        """Return the request, with its moments by the clock of the replica's machine.

        Args:
            now: when it came, by that clock.
        """
        submit = decode(self.submit)
        assert isinstance(submit, Submit), f"not a request: {submit}"
        shift = now - self.sent_at
        return replace(
            submit,
            arrived=submit.arrived + micros_at(shift),
            start_deadline=None if submit.start_deadline is None else submit.start_deadline + shift,
            deadline=None if submit.deadline is None else submit.deadline + shift,
        )


class ReplicaCall:
    """A request that is to be sent to a replica. Pickled, it is the bytes of `Sent`: nothing else leaves this process.

    Args:
        request: with what was delivered of it.
        chooser: chooses its replica.
        now: returns seconds of this machine, as the request counts them.
        avoid: keys of the replicas that have lost the request.
        offer: where pages of its prompt are stored that another replica has computed.
        hands_over: it continues on another replica after its first token.
    """

    def __init__(
        self,
        request: Submit,
        chooser: ReplicaRouter,
        now: Callable[[], float],
        avoid: Iterable[str] = (),
        offer: bytes = b"",
        *,
        hands_over: bool = False,
    ) -> None:
        self.request = request
        self.chooser = chooser
        self.hands_over = hands_over
        self.attempt = ReplicaAttempt(request.request_id, frozenset(avoid), is_computed=bool(offer))
        self._now = now
        self._offer = offer
        self._digests: dict[int, Sequence[bytes]] = {}
        """Digests of the prompt's pages, by page size."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the replica needs the KV of."""
        return len(self.request.prompt) + len(self.request.output_ids)

    @property
    def extra_key(self) -> str:
        return self.request.namespace

    @property
    def session(self) -> str | None:
        """Clients do not name their conversations: they are known by their prefix."""
        return None

    def digests(self, page_size: int) -> Sequence[bytes]:
        """They are kept: whether a prefill replica computes the prompt, and which, are two questions, and all streams
        wait for a long prompt to be hashed."""
        if page_size not in self._digests:
            tokens = self.request.prompt + self.request.output_ids
            self._digests[page_size] = tuple(page_digests(tokens, page_size, self.extra_key))
        return self._digests[page_size]

    @property
    def prompt(self) -> str:
        """The prompt as text for Ray's router, which compares beginnings: a character for each token, behind the
        namespace of the cache."""
        ids = self.request.prompt
        return self.extra_key + "".join(map(_character, chain(ids, self.request.output_ids)))

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        sent = Sent(self.chooser.identity, self._now(), encode(self.request), self._offer, self.hands_over)
        return bytes, (msgspec.msgpack.encode(sent),)


class ReplicaTarget:
    """Says which replica a question goes to. Pickled, it is nothing.

    Args:
        chooser: learns which replicas run; None: there is none yet.
        key: of the replica; "": any.
        version: of the replica; "": any.
    """

    def __init__(self, chooser: ReplicaRouter | None = None, key: str = "", version: str = "") -> None:
        self._chooser = chooser
        self._key = key
        self._version = version

    def choose(self, candidates: Sequence[ReplicaCandidate]) -> str | None:
        """Return the key of a replica that fits; None: none does."""
        keys = {each.key for each in candidates}
        if self._chooser is not None:
            keys &= set(self._chooser.admit(candidates))
        fitting = (each.key for each in candidates if each.key in keys and self._version in ("", each.version))
        return next((key for key in fitting if self._key in ("", key)), None)

    def __reduce__(self) -> tuple[type[bytes], tuple[()]]:
        return bytes, ()


def received(data: bytes) -> Sent:
    """Return what a pickled call holds.

    Raises:
        msgspec.DecodeError: it comes from a version with other calls.
    """
    return msgspec.msgpack.decode(data, type=Sent)


def _character(token: int) -> str:
    return chr(token if token < SURROGATES.start else token + len(SURROGATES))
