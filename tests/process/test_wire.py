"""Messages are equal after encoding and decoding; all other bytes are refused. Stamps show what was lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config import EngineConfig
from sluice.engine.messages import Abort, Copied, QueryStats, Shutdown, Stats, Submit
from sluice.engine.meter import Tally, Totals
from sluice.engine.trace import StepRecord
from sluice.limits import Limits
from sluice.process.wire import (
    Failed,
    Frame,
    Incoming,
    Outgoing,
    Outputs,
    Ready,
    Start,
    WireError,
    decode,
    encode,
    encode_outputs,
)
from sluice.types import (
    Bound,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    SamplingParams,
    Tier,
    TierUse,
    TokenLogprobs,
)

IDS = st.integers(0, 2**63 - 1)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
REASONS = st.sampled_from(FinishReason)
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(1, 2**40),
    temperature=st.floats(0, 10),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(-1, 2**30),
    min_p=st.floats(0, 1),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop=st.lists(st.text(min_size=1), max_size=2).map(tuple),
    stop_token_ids=TOKENS,
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
TOKEN = st.integers(0, 2**31 - 1)
LOGPROB = st.floats(max_value=0)
LOGPROBS = st.lists(
    st.builds(TokenLogprobs, TOKEN, LOGPROB, st.lists(st.tuples(TOKEN, LOGPROB), max_size=2).map(tuple)), max_size=3
).map(tuple)
OUTPUT = st.builds(
    Output,
    IDS,
    IDS,
    TOKENS,
    st.integers(0, 2**31),
    st.none() | REASONS,
    st.none() | st.text(max_size=5),
    LOGPROBS,
    LOGPROBS,
    IDS,
    IDS,
)
TIER = st.builds(TierUse, st.sampled_from(Tier), *[IDS] * 7)
OCCUPANCY = st.builds(Occupancy, *[IDS] * 8, st.lists(TIER, max_size=2).map(tuple))
LIMITS = st.builds(Limits, vocab_size=IDS, max_model_len=IDS, max_total_tokens=IDS, knows_priority=st.booleans())
SECONDS = st.floats(0, 1e9)
RECORD = st.builds(StepRecord, IDS, IDS, IDS, IDS, IDS, IDS, st.sampled_from(Bound), st.booleans(), SECONDS, SECONDS)
TALLY = st.builds(Tally, st.lists(SECONDS, max_size=3).map(tuple), st.lists(IDS, max_size=4).map(tuple), SECONDS)
TOTALS = st.builds(
    Totals, IDS, IDS, IDS, IDS, IDS, st.lists(IDS, max_size=3).map(tuple), *[st.none() | TALLY for _ in range(6)]
)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Submit,
        IDS,
        TOKENS,
        SAMPLING,
        IDS,
        st.text(max_size=5),
        st.integers(-(2**63), 2**63 - 1),
        output_ids=TOKENS,
        prompt_logprobs_sent=IDS,
        is_resumed=st.booleans(),
    ),
    st.builds(QueryStats, IDS),
    st.builds(Stats, IDS, OCCUPANCY, st.none() | RECORD, TOTALS),
    st.builds(Abort, IDS, REASONS),
    st.just(Shutdown()),
    st.builds(Copied, st.lists(st.builds(CopyDone, IDS, IDS, st.none() | st.text()), max_size=3).map(tuple)),
    st.builds(Outputs, st.lists(OUTPUT, max_size=3).map(tuple)),
    st.builds(
        Ready,
        st.text(),
        st.text(),
        LIMITS,
        TOKENS,
        st.booleans(),
        st.just(EngineConfig.from_options({"schedule_conservativeness": 0.5})),
        st.dictionaries(st.text(), st.text(), max_size=2),
    ),
    st.builds(Failed, st.text()),
    st.just(
        Start(
            EngineConfig.from_options({"page_size": 16, "model": "a/b"}),
            "module:function",
            "info",
            "json",
            "crash@1",
            3,
        )
    ),
)


@given(FRAMES)
def test_a_decoded_message_equals_the_original(frame: Frame) -> None:
    """No field may be dropped, reordered or rounded."""
    assert decode(encode(frame)) == frame


@given(st.lists(OUTPUT, max_size=3))
def test_outputs_are_encoded_without_a_copy(outputs: list[Output]) -> None:
    assert encode_outputs(outputs) == encode(Outputs(tuple(outputs)))


@given(st.binary(max_size=40))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Any other error than WireError would end the engine with a traceback."""
    try:
        frame = decode(data)
    except WireError:
        return
    assert decode(encode(frame)) == frame


@given(FRAMES, st.data())
def test_a_truncated_message_is_refused(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    with pytest.raises(WireError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (["greeting", 1], "unknown message 'greeting'; known: submit, abort"),
        (["abort", {"request_id": "1"}], "request_id"),
        (["submit", {"request_id": 1, "prompt": [1], "sampling": {"temperature": -1.0}}], "temperature"),
        (["outputs", [[1, 0, [2.5], 0]]], "Expected `int`, got `float`"),
        ("submit", "not a [tag, value] frame"),
    ],
)
def test_the_error_names_what_is_wrong(content: object, named: str) -> None:
    with pytest.raises(WireError) as raised:
        decode(msgspec.msgpack.encode(content))
    assert named in str(raised.value)


def test_messages_of_one_engine_in_order_count() -> None:
    outgoing, incoming = Outgoing(3), Incoming(3)
    assert all(incoming.accept(outgoing.stamp()) for _ in range(5))
    assert (outgoing.count, incoming.count) == (5, 5)


def test_a_gap_and_a_repetition_raise() -> None:
    outgoing, incoming = Outgoing(3), Incoming(3)
    first, _, third = (outgoing.stamp() for _ in range(3))
    assert incoming.accept(first)
    with pytest.raises(WireError, match="received message 2 instead of message 1: some were lost"):
        incoming.accept(third)
    with pytest.raises(WireError, match="received message 0 instead of message 1"):
        incoming.accept(first)


def test_another_engines_messages_do_not_count() -> None:
    """Messages of an engine that was replaced may still arrive."""
    incoming = Incoming(3)
    assert not incoming.accept(Outgoing(2).stamp())
    assert incoming.accept(Outgoing(3).stamp())
    assert incoming.count == 1


def test_the_first_message_sets_the_epoch() -> None:
    incoming = Incoming(None)
    assert incoming.accept(Outgoing(7).stamp())
    assert incoming.epoch == 7
    assert not incoming.accept(Outgoing(8).stamp())


def test_a_stamp_of_the_wrong_length() -> None:
    with pytest.raises(WireError, match="a stamp must have 16 bytes, got 5"):
        Incoming(None).accept(b"hello")
