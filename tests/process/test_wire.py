"""Messages are equal after encoding and decoding; all other bytes are refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config import EngineConfig
from sluice.engine.messages import (
    Abort,
    AdapterRead,
    LoadAdapter,
    OfferPages,
    PagesOffered,
    PagesTaken,
    QueryStats,
    Shutdown,
    Stats,
    Submit,
    TakePages,
    UnloadAdapter,
    WatchSteps,
)
from sluice.engine.meter import DraftTotals, GrammarTotals, ItlTotals, PaceTotals, RingTotals, Tally, Totals
from sluice.engine.prompt_meter import PromptProgress
from sluice.engine.step_watch import ChunkSeen, SliceSeen, StepSeen, StepsSeen
from sluice.engine.trace import StepRecord
from sluice.process.wire import (
    MAX_LOGPROBS,
    PACKED,
    Failed,
    Frame,
    KvEvents,
    Outputs,
    Ready,
    SharedFields,
    Start,
    SubmitDelta,
    WireError,
    decode,
    encode,
    encode_outputs,
    portions,
)
from sluice.testing import resolved
from sluice.types import (
    AdapterInfo,
    AdapterUse,
    Bound,
    FinishReason,
    Occupancy,
    Output,
    PageKey,
    PageOffer,
    PredictedStep,
    Regime,
    SamplingParams,
    StoredPage,
    Tier,
    TierUse,
    TokenLogprobs,
)
from sluice.types.request_limits import Limits

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
    embedding=st.binary(max_size=4),
    num_drafted=IDS,
    num_accepted=IDS,
    num_passes=IDS,
)
TIER = st.builds(TierUse, st.sampled_from(Tier), *[IDS] * 8)
ADAPTER_USES = st.lists(st.builds(AdapterUse, st.text(max_size=5), IDS, IDS), max_size=2).map(tuple)
OCCUPANCY = st.builds(
    Occupancy,
    *[IDS] * 8,
    st.lists(TIER, max_size=2).map(tuple),
    compiling=IDS,
    held=IDS,
    adapters=ADAPTER_USES,
)
LIMITS = st.builds(Limits, vocab_size=IDS, max_model_len=IDS, max_total_tokens=IDS, knows_priority=st.booleans())
SECONDS = st.floats(0, 1e9)
PACE = st.builds(PredictedStep, st.sampled_from(Regime), IDS, IDS, IDS, st.booleans())
RECORD = st.builds(
    StepRecord,
    *[IDS] * 6,
    st.sampled_from(Bound),
    st.booleans(),
    SECONDS,
    SECONDS,
    micros=IDS,
    pace=st.none() | PACE,
    drafted=IDS,
    accepted=IDS,
)
TALLY = st.builds(Tally, st.lists(SECONDS, max_size=3).map(tuple), st.lists(IDS, max_size=4).map(tuple), SECONDS)
PACE_TOTALS = st.builds(PaceTotals, IDS, SECONDS, SECONDS, SECONDS)
ITL = st.builds(
    ItlTotals,
    SECONDS,
    SECONDS,
    st.dictionaries(st.sampled_from(Regime), PACE_TOTALS, max_size=2),
    st.lists(IDS, max_size=3).map(tuple),
    IDS,
)
TOTALS = st.builds(
    Totals,
    *[IDS] * 7,
    st.lists(IDS, max_size=3).map(tuple),
    st.none() | ITL,
    *[st.none() | TALLY for _ in range(6)],
    grammars=st.builds(GrammarTotals, *[IDS] * 4, SECONDS),
    drafts=st.builds(DraftTotals, *[IDS] * 3, st.lists(IDS, max_size=3).map(tuple)),
    ring=st.builds(RingTotals, IDS, SECONDS, SECONDS, IDS),
    prefill_squares=IDS,
    prefill_products=SECONDS,
)
PROMPT = st.builds(PromptProgress, IDS, IDS, IDS, st.none() | SECONDS)
STEP_SEEN = st.builds(
    StepSeen,
    *[IDS] * 4,
    st.sampled_from(Bound),
    st.booleans(),
    st.none() | TOKENS,
    st.lists(st.builds(ChunkSeen, IDS, IDS, IDS, st.booleans()), max_size=2).map(tuple),
    st.lists(st.builds(SliceSeen, *[IDS] * 6, st.booleans()), max_size=2).map(tuple),
    TOKENS,
    st.lists(st.tuples(IDS, IDS), max_size=2).map(tuple),
    IDS,
    IDS,
)
DIGEST = st.binary(max_size=16)
STORED = st.builds(StoredPage, IDS, st.builds(PageKey, DIGEST, DIGEST, TOKENS, st.text(max_size=5)), IDS)
OFFER = st.builds(PageOffer, st.text(), st.text(), st.lists(STORED, max_size=2).map(tuple))
ADAPTER = st.builds(
    AdapterInfo,
    *[st.text(max_size=5)] * 3,
    IDS,
    SECONDS,
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
    IDS,
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
        adapter=st.text(max_size=5),
    ),
    st.builds(LoadAdapter, IDS, st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)),
    st.builds(AdapterRead, IDS, st.none() | ADAPTER, st.none() | st.text(max_size=5)),
    st.builds(UnloadAdapter, st.text(max_size=5)),
    st.builds(QueryStats, IDS),
    st.builds(WatchSteps, st.booleans()),
    st.builds(KvEvents, st.binary(max_size=9)),
    st.builds(OfferPages, IDS, TOKENS, st.text(max_size=5)),
    st.builds(TakePages, IDS, OFFER),
    st.builds(PagesOffered, IDS, st.none() | OFFER, st.none() | st.text()),
    st.builds(PagesTaken, IDS, IDS, st.none() | st.text()),
    st.builds(StepsSeen, st.lists(STEP_SEEN, max_size=3).map(tuple), OCCUPANCY),
    st.builds(Stats, IDS, OCCUPANCY, st.none() | RECORD, TOTALS, IDS, st.lists(PROMPT, max_size=2).map(tuple)),
    st.builds(Abort, IDS, REASONS),
    st.just(Shutdown()),
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
        adapters=st.lists(ADAPTER, max_size=2).map(tuple),
        lost_adapters=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
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


BIASES = st.lists(st.tuples(TOKEN, st.floats(-100, 100)), max_size=3, unique_by=lambda pair: pair[0]).map(tuple)


@given(st.data())
def test_choices_arrive_as_they_were_sent(data: st.DataObject) -> None:
    """Calls share prompts and biases within themselves, and requests of other calls come between."""
    prompts = data.draw(st.lists(TOKENS, min_size=1, max_size=2))
    samplings = [SamplingParams(logit_bias=bias) for bias in data.draw(st.lists(BIASES, min_size=1, max_size=2))]
    drawn = st.builds(Submit, IDS, st.sampled_from(prompts), st.sampled_from(samplings))
    submits = data.draw(st.lists(drawn, max_size=6))
    here, there = SharedFields(), SharedFields()
    frames = [decode(encode(here.omit(submit))) for submit in submits]
    assert all(isinstance(frame, Submit | SubmitDelta) for frame in frames)
    assert [there.restore(frame) for frame in frames if isinstance(frame, Submit | SubmitDelta)] == submits


def test_what_choices_share_is_sent_once_and_kept_once() -> None:
    """300 choices with 3,000 biases each took 5 seconds and 190 MB in the two processes: a copy for each choice."""
    bias, prompt = SamplingParams(logit_bias=dict.fromkeys(range(3000), 1.0)), tuple(range(500))
    call = [Submit(number, prompt, replace(bias, seed=number)) for number in range(1, 101)]
    here, there = SharedFields(), SharedFields()
    sent = [encode(here.omit(submit)) for submit in call]
    assert len(sent[0]) > 30_000
    assert max(map(len, sent[1:])) < 600
    received = [there.restore(frame) for frame in map(decode, sent) if isinstance(frame, Submit | SubmitDelta)]
    assert received == call
    assert len({id(submit.prompt) for submit in received}) == 1
    assert len({id(submit.sampling.logit_bias) for submit in received}) == 1


def test_long_prompts_that_came_as_bytes_are_not_taken_for_one() -> None:
    """Their tuples are both empty, and so one object: the second request would get the prompt of the first."""
    call = [Submit(number, (), SamplingParams(), packed=bytes([number] * 8)) for number in (1, 2)]
    here, there = SharedFields(), SharedFields()
    received = [decode(encode(here.omit(submit))) for submit in call]
    assert [there.restore(frame) for frame in received if isinstance(frame, Submit | SubmitDelta)] == call


def test_a_reference_to_nothing_is_refused() -> None:
    delta = SubmitDelta(Submit(7, (), SamplingParams()), shares_prompt=True, shares_bias=False)
    with pytest.raises(WireError, match="request 7 refers to a request before it"):
        SharedFields().restore(delta)


def scored(count: int, top: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(number, -1.0, ((1, -0.5),) * top) for number in range(count))


def test_no_message_has_more_than_some_log_probabilities() -> None:
    """The server's event loop decodes a message in one piece: that of a long prompt would block it."""
    outputs = [
        Output(1, 0, (5,), 2, FinishReason.LENGTH, None, scored(1, 20), scored(1000, 20), 3, 4),
        Output(2, 7, (6,), 0),
        *(Output(number, 0, (6,), 0, logprobs=scored(1, 20)) for number in range(3, 400)),
    ]
    sent = [[*portion] for portion in portions(outputs)]
    for portion in sent:
        items = [item for output in portion for item in (*output.logprobs, *output.prompt_logprobs)]
        assert sum(1 + len(item.top) for item in items) <= MAX_LOGPROBS
    *parts, last = [output for portion in sent for output in portion if output.request_id == 1]
    assert last._replace(prompt_logprobs=()) == outputs[0]._replace(prompt_logprobs=())
    assert all(part == Output(1, 0, (), 2, None, None, (), part.prompt_logprobs, 3, 4) for part in parts)
    assert sum((part.prompt_logprobs for part in (*parts, last)), ()) == outputs[0].prompt_logprobs
    assert [output for portion in sent for output in portion if output.request_id > 1] == outputs[1:]
    assert [*portions(outputs[1:2])] == [outputs[1:2]]


@pytest.mark.parametrize("length", [PACKED - 1, PACKED])
def test_a_long_prompt_is_sent_as_bytes_and_is_the_same_prompt(length: int) -> None:
    """To read a million integers takes as long as many steps, and every stream waits for it; samples share the bytes as
    they share a prompt."""
    prompt = tuple(range(length))
    call = [Submit(number, prompt, resolved(), sample_index=number) for number in range(3)]
    here, there = SharedFields(), SharedFields()
    sent = [encode(here.omit(submit)) for submit in call]
    found = [there.restore(frame) for frame in map(decode, sent) if isinstance(frame, Submit | SubmitDelta)]
    assert [tuple(submit.tokens()) for submit in found] == [prompt] * 3
    assert {bool(submit.packed) for submit in found} == {length == PACKED}
    assert [len(data) < 1000 for data in sent] == [False, True, True]
