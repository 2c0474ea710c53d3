"""Messages between the server and its engine as bytes.

A frame is a MessagePack array `[tag, value]`. The tag chooses the type that the value is checked against, so decoding
builds only values that their types allow, and needs no pickle. No other module knows the serializer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec

from sluice.config import EngineConfig, ServerConfig
from sluice.engine.messages import AdapterRead, FromServer, PagesOffered, PagesTaken, Stats
from sluice.engine.step_watch import StepsSeen
from sluice.types import AdapterInfo, Output, SamplingDefaults, Submit, Tier, TokenLogprobs
from sluice.types.footprint import Footprint
from sluice.types.request_limits import Limits
from sluice.types.stored_weights import StoredWeights

FACTORY = "sluice.process.engine_process:build"
"""The factory that `sluice serve` uses."""


@dataclass(frozen=True, slots=True)
class Start:
    """Server to engine, once and first: how to build the engine."""

    config: EngineConfig
    factory: str = FACTORY
    """The function that builds it, as "module:function"; it has the type `engine_process.Factory`."""
    log_level: str = "warning"
    log_format: str = "text"
    faults: str = ""
    """Faults to inject (see `faults`)."""
    epoch: int = 0
    """Number of the engine among the engines of its server, from 0."""
    start_seconds: float = 0.9 * ServerConfig.start_timeout
    """Seconds to wait for ranks of other machines: less than the engine has to start, so that it can say which it
    lacks."""
    reports_kv_events: bool = False
    """The engine is to report what its prefix cache stores and gives up (`KvEvents`)."""
    remote: str = ""
    """Folder of the page files of other engines, whose pages this one takes; empty: it takes none."""
    fingerprint: str = ""
    """Fingerprint of the weights that it must have, as streams began with them; empty: any."""
    adapters: tuple[AdapterInfo, ...] | None = None
    """Adapters that an engine before had read, with the digests that they must have; None: those of the options."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine to server, once: the model is loaded."""

    model: str
    tokenizer_folder: str
    """Where the tokenizer and the chat template are."""
    limits: Limits
    eos_token_ids: tuple[int, ...]
    is_default: bool = False
    """The model is the default one, as none was named."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Options, resolved."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Option -> why it has its value, for options that were derived."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """The model's own settings for what requests leave open."""
    memory: Footprint = field(default_factory=Footprint)
    """Allocated bytes, by part."""
    architecture: str = ""
    """The name in the checkpoint's `config.json`."""
    stored: StoredWeights = field(default_factory=StoredWeights)
    """The weights in the checkpoint's files."""
    disabled_tiers: Mapping[Tier, str] = field(default_factory=dict)
    """Tiers that an engine before had, and that could not be opened again -> why."""
    fingerprint: str = ""
    """Fingerprint of the weights (`rank_facts.sampled_fingerprint`)."""
    adapters: tuple[AdapterInfo, ...] = ()
    """Adapters that it has read."""
    lost_adapters: Mapping[str, str] = field(default_factory=dict)
    """Digests of those of `Start.adapters` that it cannot use -> why."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine to server: why it cannot start (instead of `Ready`) or continue, in one line for the user."""

    message: str
    is_shortage: bool = False
    """The machine lacked something that another attempt may find."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Engine to server: the outputs of one step."""

    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Engine to server: what the prefix cache stored and gave up in a turn, if the engine was asked to report it."""

    batch: bytes
    """The batch as it is published (`process.kv_events.wire`)."""


@dataclass(frozen=True, slots=True)
class SubmitDelta:
    """Server to engine: a `Submit` without the fields that it shares with the one sent before it."""

    request: Submit
    shares_prompt: bool
    shares_bias: bool
    """Whether its `logit_bias` is that of the request before it."""


Delivered = Outputs | Stats | StepsSeen | KvEvents | PagesOffered | PagesTaken | AdapterRead
"""What an engine sends while it serves."""
Frame = FromServer | Delivered | Start | Ready | Failed | SubmitDelta

_TAGS: Mapping[type, str] = {kind: re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Frame)}
_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_DECODERS: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
    tag: msgspec.msgpack.Decoder(tuple[Output, ...] if kind is Outputs else kind) for kind, tag in _TAGS.items()
}


PACKED = 4096
"""Tokens of a prompt from which on it is sent as bytes, which are read at once."""
MAX_LOGPROBS = 4096
"""Log-probabilities in a message: they take 2 to 4 ms to decode."""


class WireError(ValueError):
    """A message that cannot be decoded, or is unexpected."""


def encode(frame: Frame) -> bytes:
    """Return the bytes of a message."""
    if isinstance(frame, Outputs):
        return encode_outputs(frame.outputs)
    return _ENCODER.encode((_TAGS[type(frame)], frame))


def portions(outputs: Sequence[Output]) -> Iterator[Sequence[Output]]:
    """Split the outputs of a step so that no message has more than `MAX_LOGPROBS` log-probabilities, or one token's.

    To decode a message of a prompt's log-probabilities may take longer than the server's event loop may be blocked.
    """
    if not any(output.logprobs or output.prompt_logprobs for output in outputs):
        yield outputs
        return
    portion: list[Output] = []
    size = 0
    for part in itertools.chain.from_iterable(map(_parts, outputs)):
        weight = _weight(part.logprobs) + _weight(part.prompt_logprobs)
        if portion and size + weight > MAX_LOGPROBS:
            yield portion
            portion, size = [], 0
        portion.append(part)
        size += weight
    yield portion


def _parts(output: Output) -> Iterator[Output]:
    """Yield the log-probabilities of a prompt in parts, the last one with all else that the output has."""
    scored = output.prompt_logprobs
    each = max(1, MAX_LOGPROBS // (1 + len(scored[0].top))) if scored else 1
    start = 0
    while len(scored) - start > each:
        part = scored[start : start + each]
        yield Output(
            output.request_id,
            output.start,
            (),
            output.num_cached_tokens,
            prompt_logprobs=part,
            num_host_tokens=output.num_host_tokens,
            num_disk_tokens=output.num_disk_tokens,
        )
        start += each
    yield output._replace(prompt_logprobs=scored[start:]) if start else output


def _weight(scored: Sequence[TokenLogprobs]) -> int:
    return sum(1 + len(item.top) for item in scored)


def encode_outputs(outputs: Sequence[Output]) -> bytes:
    """Return `encode(Outputs(tuple(outputs)))` without making the copy. Called once a step."""
    return _ENCODER.encode(("outputs", outputs))


def decode(data: bytes) -> Frame:
    """Return the message in `data`, equal to the one that was encoded.

    Raises:
        WireError: the bytes are truncated or not a frame, the tag is unknown, or the value does not fit its type.
    """
    try:
        tag, value = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a [tag, value] frame ({len(data)} bytes): {error}") from error
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise WireError(f"unknown message {tag!r}; known: {', '.join(_DECODERS)}")
    try:
        content = decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"bad {tag!r} message: {error}") from error
    return Outputs(content) if tag == "outputs" else content


class SharedFields:
    """Omits from a `Submit` the fields that it shares with the one before it, or restores them at the other end.

    The choices of a call share their prompt and `logit_bias`, so each of these is sent once, and is one object at both
    ends. Each end of a connection has its own, from the first message on.
    """

    def __init__(self) -> None:
        self._last: Submit | None = None

    def omit(self, submit: Submit) -> Submit | SubmitDelta:
        """Return the message to send. A field is omitted if it is the same object as in the request before."""
        last, self._last = self._last, submit
        sampling, bias = submit.sampling, submit.sampling.logit_bias
        shares_prompt = last is not None and bool(submit.prompt) and submit.prompt is last.prompt
        shares_bias = last is not None and bool(bias) and bias is last.sampling.logit_bias
        if not (shares_prompt or shares_bias):
            return packed(submit)
        if shares_bias:
            sampling = replace(sampling, logit_bias=())
        prompt, as_bytes = ((), b"") if shares_prompt else packed_prompt(submit)
        omitted = replace(submit, prompt=prompt, packed=as_bytes, sampling=sampling)
        return SubmitDelta(omitted, shares_prompt, shares_bias)

    def restore(self, frame: Submit | SubmitDelta) -> Submit:
        """Return the request of a message.

        Raises:
            WireError: it shares fields with a request before it, and there is none.
        """
        submit = self._restored(frame) if isinstance(frame, SubmitDelta) else frame
        self._last = submit
        return submit

    def _restored(self, delta: SubmitDelta) -> Submit:
        last, submit = self._last, delta.request
        if last is None:
            raise WireError(f"request {submit.request_id} refers to a request before it, and there is none")
        sampling = submit.sampling
        if delta.shares_bias:
            sampling = replace(sampling, logit_bias=last.sampling.logit_bias)
        source = last if delta.shares_prompt else submit
        return replace(submit, prompt=source.prompt, packed=source.packed, sampling=sampling)


def packed(submit: Submit) -> Submit:
    """Return the request with its prompt as bytes, if it is long."""
    prompt, as_bytes = packed_prompt(submit)
    return submit if prompt is submit.prompt else replace(submit, prompt=prompt, packed=as_bytes)


def packed_prompt(submit: Submit) -> tuple[tuple[int, ...], bytes]:
    """Return the fields `prompt` and `packed` of a request, the second one in the place of a long prompt."""
    if len(submit.prompt) < PACKED:
        return submit.prompt, submit.packed
    return (), submit.tokens().tobytes()
