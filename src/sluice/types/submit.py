"""A request as it goes from a server's client to the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b

from sluice.types.sampling import SamplingParams

NO_SAMPLING = SamplingParams(max_tokens=1, seed=0)
"""The parameters of a request that samples nothing."""

ADAPTER_MARK = "\0"
"""Begins the namespaces of adapters. No salt of a client begins with it (`request_limits.check_cache_salt`)."""
LONGEST_SALT = 900
"""Bytes of a salt that stands behind an adapter as it is. Page files have room for 1,024."""


def namespace_of(adapter: str, extra_key: str) -> str:
    """Return the namespace of the prefix cache for an adapter and a salt; the salt itself without an adapter.

    Args:
        adapter: digest of its content, so that another adapter that is loaded under the same name finds nothing of
            this one; empty: none.
    """
    if not adapter:
        return extra_key
    salt = extra_key.encode()
    shown = extra_key if len(salt) <= LONGEST_SALT else blake2b(salt).hexdigest()
    return f"{ADAPTER_MARK}{adapter}:{shown}"


def parts_of(namespace: str) -> tuple[str, str]:
    """Return the adapter and the salt of a namespace."""
    if not namespace.startswith(ADAPTER_MARK):
        return "", namespace
    adapter, _, salt = namespace.removeprefix(ADAPTER_MARK).partition(":")
    return adapter, salt


@dataclass(frozen=True, slots=True)
class Submit:
    """A request for one sample of a prompt, or for its embedding.

    A request that another engine had begun carries what the client has received of it: `output_ids`, and how many of
    the prompt's log-probabilities (`prompt_logprobs_sent`). These stay outputs, as after a preemption.
    """

    request_id: int
    """Id that is never used twice and is larger than every id before it: the order of ids is the order of arrival."""
    prompt: tuple[int, ...]
    """Ids of the prompt's tokens, at least one; empty if it is `packed`."""
    sampling: SamplingParams
    """Sampling parameters, resolved (`SamplingParams.resolved`)."""
    sample_index: int = 0
    """Index among the samples of one prompt, which differ by it alone."""
    extra_key: str = ""
    """Salt of the prefix cache: equal tokens under different keys share nothing."""
    priority: int = 0
    """Class under the policy `priority`, ignored under the others."""
    priority_class: str = ""
    """Name of its `PriorityClass` under the policy `deadline`, ignored under the others; "": `DEFAULT_CLASS`."""
    arrived: int = 0
    """When it arrived, in microseconds of the engine's clock. Its TTFT target counts from then, in every engine that it
    is submitted to."""
    itl_target: int = 0
    """Microseconds that its stream may stand still in a step. It counts if it is above the scheduler's own target,
    which is meant by 0, and which holds for requests beside it that ask for less."""
    call: int | None = None
    """Id of the first request of the client's call; None: the request is all of it. A call of many requests waits for
    its turn as one (`scheduler.queue`)."""
    output_ids: tuple[int, ...] = ()
    prompt_logprobs_sent: int = 0
    is_resumed: bool = False
    """Another engine had accepted the request, begun or not, so no limit of the queue refuses it now."""
    start_deadline: float | None = None
    """The request is dropped if it has not begun by then, in seconds of the engine's clock (`clock.WallClock` is one
    for all processes of a machine)."""
    deadline: float | None = None
    """Seconds of the engine's clock at which the request is ended; None: never."""
    embeds: bool = False
    """The result is an embedding: the hidden state of the prompt's last token. Nothing is sampled, and the request ends
    with its prompt; `sampling` has no effect (`NO_SAMPLING`)."""
    lookahead: int | None = None
    """Samples of this request that may be unread when its next token is planned; None: the scheduler's. A request that
    needs its last token before the next is planned has 0."""
    grammar: str = ""
    """What its output must match, as llguidance reads it: a grammar in its dialect of Lark, or in JSON; empty:
    anything. The next token is planned when the last one is known, whatever `lookahead` is."""
    adapter: str = ""
    """The digest of the adapter (`AdapterInfo`) that its tokens are computed with; empty: none. It is loaded, and stays
    so until the request has ended."""
    packed: bytes = b""
    """The prompt as 32-bit integers, if it is long, in the place of `prompt`: a message of a million integers takes
    long to read, and every stream waits for it."""

    @property
    def namespace(self) -> str:
        """Its namespace of the prefix cache, of its salt and its adapter."""
        return namespace_of(self.adapter, self.extra_key)

    def tokens(self) -> array[int]:
        """Return a copy of the prompt, however it came."""
        if not self.packed:
            return array("i", self.prompt)
        tokens = array("i")
        tokens.frombytes(self.packed)
        return tokens
