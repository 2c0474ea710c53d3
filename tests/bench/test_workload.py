"""What is sent and when: exact where it is chosen, in the right proportions where it is drawn."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean, median, pvariance
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.bench.options import options_from, resolve_workload
from sluice.bench.presets import PRESETS
from sluice.bench.workload import (
    FixedLength,
    LogNormal,
    PromptMaker,
    Uniform,
    Workload,
    as_text,
    build_workload,
    fixed_times,
    parse_lengths,
    random_times,
    warmup_turns,
)
from sluice.config import ConfigError


def workload(**given: Any) -> Workload:
    return build_workload(resolve_workload(given), vocab_size=256)


def starts(found: Workload) -> list[float | None]:
    return [session.at for session in found.sessions]


def lengths(found: Workload) -> list[int]:
    return [len(session.turns[0].prompt) for session in found.sessions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64", FixedLength(64)),
        ("uniform:16:512", Uniform(16, 512)),
        ("uniform:5:5", Uniform(5, 5)),
        ("lognormal:200:0.8", LogNormal(200, 0.8)),
    ],
)
def test_lengths_are_read(text: str, expected: object) -> None:
    assert parse_lengths(text, "--prompt-tokens") == expected


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "x", "uniform:1", "uniform:5:4", "uniform:0:4", "lognormal:0:1", "lognormal:9:-1",
     "lognormal:nan:1", "lognormal:9:inf", "normal:1:2", "64:"],
)  # fmt: skip
def test_a_length_that_is_none_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--prompt-tokens must be a number of tokens, uniform"):
        workload(prompt_tokens=text)


def test_drawn_lengths_have_their_distribution() -> None:
    rng = random.Random(1)
    drawn = [Uniform(3, 7).draw(rng) for _ in range(5000)]
    assert set(drawn) == {3, 4, 5, 6, 7}
    assert min(Counter(drawn).values()) > 850
    drawn = [LogNormal(200, 0.5).draw(rng) for _ in range(5000)]
    assert 190 < median(drawn) < 210
    within = sum(200 / 2.7183**0.5 <= length <= 200 * 2.7183**0.5 for length in drawn) / 5000
    assert 0.65 < within < 0.72


def test_fixed_schedules_are_exact() -> None:
    assert fixed_times(4, 0.02) == [0.0, 0.02, 0.04, 0.06]
    assert fixed_times(7, 2.0, 3) == [0, 0, 0, 2, 2, 2, 4]
    assert starts(workload(at_ms="8000,2000")) == [2.0, 8.0]


@pytest.mark.parametrize(("burstiness", "variance"), [(1.0, 1.0), (4.0, 0.25), (0.25, 4.0)])
def test_random_gaps_have_the_rate_and_the_variance_that_were_asked_for(burstiness: float, variance: float) -> None:
    times = [0.0, *random_times(20_000, 2.0, burstiness, random.Random(3))]
    gaps = [2 * (after - before) for before, after in pairwise(times)]
    assert min(gaps) >= 0
    assert mean(gaps) == pytest.approx(1.0, rel=0.05)
    assert pvariance(gaps) == pytest.approx(variance, rel=0.12)


def test_the_same_seed_is_the_same_workload_and_another_is_not() -> None:
    options: dict[str, Any] = {"request_rate": 3.0, "prompt_tokens": "uniform:5:50", "background": 1}
    one, same, other = workload(**options), workload(**options), workload(**options, seed=1)
    assert one.sessions == same.sessions
    firsts = [list(islice(found.background[0].turns(), 3)) for found in (one, same, other)]
    assert firsts[0] == firsts[1] != firsts[2]
    assert starts(one) != starts(other)
    assert lengths(one) != lengths(other)


def test_other_lengths_do_not_move_the_arrivals() -> None:
    """Two runs that differ in one option must not differ in another: the comparison would be of both."""
    one = workload(request_rate=3.0, prompt_tokens="uniform:5:50")
    other = workload(request_rate=3.0, prompt_tokens="lognormal:5:1")
    assert starts(one) == starts(other)


def test_repeats_go_round_and_long_ones_are_called_so() -> None:
    found = workload(preset="rosellm")
    assert len(found.sessions) == 32
    assert lengths(found)[:5] == [2, 2, 2, 128, 2]
    assert [session.turns[0].kind for session in found.sessions[:5]] == ["short"] * 3 + ["long", "short"]
    assert starts(found)[:3] == [0.0, 0.02, 0.04]
    assert {session.turns[0].max_tokens for session in found.sessions} == {32}
    first = found.sessions[3].turns[0].prompt
    assert first == first[:2] * 64


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 3))
def test_unique_prompts_share_the_prefix_and_nothing_else(length: int, prefix: int, seed: int) -> None:
    """Prompts that begin alike by accident are served from the prefix cache, and the measurement is of the cache."""
    maker = PromptMaker(seed, 10_000, shared_prefix_tokens=prefix)
    one, other = maker.prompt("request 0.0", length), maker.prompt("request 1.0", length)
    assert len(one) == len(other) == prefix + length
    assert one[:prefix] == other[:prefix]
    assert one != other
    assert one[prefix : prefix + 2] != other[prefix : prefix + 2] or length == 1


def test_prompts_that_are_not_unique_are_beginnings_of_one_text() -> None:
    short, long = (PromptMaker(0, unique=False).prompt(key, size) for key, size in (("a", 5), ("b", 9)))
    assert long[:5] == short


def test_ids_are_in_the_vocabulary_and_a_text_has_a_word_for_each() -> None:
    prompt = PromptMaker(0, 100).prompt("a", 500)
    assert 12 <= min(prompt) <= max(prompt) < 100
    assert len(as_text(prompt).split()) == 500


def test_the_interference_preset() -> None:
    found = workload(preset="interference")
    assert starts(found) == [2.0, 8.0]
    assert lengths(found) == [4000, 4000]
    assert [(turn.max_tokens, turn.kind) for session in found.sessions for turn in session.turns] == [(16, "long")] * 2
    assert len(found.background) == 4
    for stream in found.background:
        one, two = islice(stream.turns(), 2)
        assert (len(one.prompt), one.max_tokens, one.kind) == (64, 128, "short")
        assert one.prompt != two.prompt


def test_the_presets_of_what_waits_for_long_prompts() -> None:
    victim, behind, agents = (workload(preset=name) for name in ("victim", "head-of-line", "agents"))
    assert (len(victim.background), lengths(victim)) == (1, [65536])
    assert lengths(behind) == [8192, 128, 128, 128] * 4
    assert all(len(session.turns) == 6 for session in agents.sessions)
    prefix = agents.sessions[0].turns[0].prompt[:4096]
    assert all(session.turns[0].prompt[:4096] == prefix for session in agents.sessions)


def test_the_decisions_preset() -> None:
    """All questions at once, behind one text; a question behind a text of its own would find nothing in the cache."""
    found = workload(preset="decisions")
    assert (found.num_requests, found.concurrency) == (64, 64)
    assert len({session.turns[0].prompt[:7936] for session in found.sessions}) == 1
    assert len({session.turns[0].prompt[7936:] for session in found.sessions}) == 64
    assert {(len(turn.prompt), turn.max_tokens) for session in found.sessions for turn in session.turns} == {(7961, 1)}


def test_a_conversation_has_its_prefix_once() -> None:
    found = workload(turns=3, shared_prefix_tokens=7, prompt_tokens="5", think_ms=250.0, num_requests=2)
    assert [[len(turn.prompt) for turn in session.turns] for session in found.sessions] == [[12, 5, 5]] * 2
    assert found.sessions[0].think == 0.25
    assert found.num_requests == 6


@pytest.mark.parametrize(
    ("threshold", "kinds"), [(None, ["short", "long"]), (5, ["long", "long"]), (500, ["short", "short"])]
)
def test_where_long_begins_can_be_said(threshold: int | None, kinds: list[str]) -> None:
    found = workload(num_requests=2, prompt_tokens="10", prompt_repeats="1,10", long_prompt_tokens=threshold)
    assert [session.turns[0].kind for session in found.sessions] == kinds


def test_a_warm_up_has_the_lengths_and_not_the_prompts() -> None:
    """A warm-up with the same prompts fills the prefix cache: the measurement would be of hits."""
    options = resolve_workload({"prompt_tokens": "uniform:20:90", "num_requests": 3})
    found = build_workload(options, vocab_size=256)
    warm = warmup_turns(found, options, 4, vocab_size=256)
    assert [len(turn.prompt) for turn in warm] == [*lengths(found), lengths(found)[0]]
    assert not {turn.prompt for turn in warm} & {session.turns[0].prompt for session in found.sessions}


def write(path: Path, *lines: str) -> str:
    file = path / "arrivals.jsonl"
    file.write_text("\n".join(lines))
    return str(file)


def test_an_arrivals_file(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '{"at_ms": 1500, "prompt_tokens": 9, "max_tokens": 2, "class": "chat"}',
        "",
        '{"at_ms": 0.5, "prompt_tokens": 90, "max_tokens": 3}',
    )
    found = workload(arrivals=file)
    assert starts(found) == [0.0005, 1.5]
    assert [(len(s.turns[0].prompt), s.turns[0].max_tokens, s.turns[0].kind) for s in found.sessions] == [
        (90, 3, "long"),
        (9, 2, "chat"),
    ]
    assert len(workload(arrivals=file, num_requests=1).sessions) == 1
    with pytest.raises(ConfigError, match="--num-requests must be at most 2"):
        workload(arrivals=file, num_requests=3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nothing", "not JSON"),
        ("[1]", "must hold a JSON object"),
        ('{"at_ms": -1, "prompt_tokens": 1, "max_tokens": 1}', "at_ms must be a number of at least 0, got -1"),
        ('{"at_ms": NaN, "prompt_tokens": 1, "max_tokens": 1}', "at_ms"),
        ('{"at_ms": 1, "prompt_tokens": 0, "max_tokens": 1}', "prompt_tokens must be an integer of at least 1, got 0"),
        ('{"at_ms": 1, "prompt_tokens": 1}', "max_tokens must be an integer of at least 1, got None"),
        ('{"at_ms": 1, "prompt_tokens": 1, "max_tokens": true}', "max_tokens"),
        ('{"at_ms": 1, "prompt_tokens": 1, "max_tokens": 1, "class": 3}', "class must be a non-empty text, got 3"),
        ('{"at_ms": 1, "prompt_tokens": 1, "max_tokens": 1, "prompt": "x"}', "unknown 'prompt'"),
    ],
)
def test_a_malformed_arrivals_file_is_refused_by_its_line(tmp_path: Path, line: str, said: str) -> None:
    file = write(tmp_path, '{"at_ms": 0, "prompt_tokens": 1, "max_tokens": 1}', line)
    with pytest.raises(ConfigError, match=r"arrivals\.jsonl:2: ") as error:
        workload(arrivals=file)
    assert said in str(error.value)


def test_arrivals_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        workload(arrivals=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="holds no request"):
        workload(arrivals=write(tmp_path, "", " "))


def test_explicit_options_change_a_preset() -> None:
    assert resolve_workload({"preset": "rosellm", "num_requests": 5}).num_requests == 5
    assert resolve_workload({"preset": "rosellm", "output_tokens": "7"}).max_new_tokens is None
    faster = resolve_workload({"preset": "rosellm", "request_rate": 9.0})
    assert (faster.submit_interval_ms, faster.request_rate, faster.prompt_repeats) == (None, 9.0, "1,1,1,64")
    assert resolve_workload({"preset": "interference", "prompt_tokens": "900"}).at_ms == "2000,8000"
    assert resolve_workload({"preset": "rosellm", "ignore_eos": False}).ignore_eos is False


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_workload(name: str) -> None:
    assert workload(preset=name).num_requests > 0


def test_without_a_schedule_it_is_a_closed_loop() -> None:
    assert workload().concurrency == 4
    assert starts(workload()) == [None] * 32
    assert workload(request_rate=1.0).concurrency is None
    assert workload(request_rate=1.0, concurrency=2).concurrency == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"request_rate": 1.0, "submit_interval_ms": 5.0}, "both set when requests arrive"),
        ({"at_ms": "1", "burst_size": 2, "burst_interval_ms": 1.0}, "both set when requests arrive"),
        ({"burst_size": 2}, "--burst-size and --burst-interval-ms go together"),
        ({"request_rate": 0.0}, "--request-rate must be more than 0"),
        ({"burstiness": 2.0}, "--burstiness needs --request-rate"),
        ({"max_new_tokens": 3, "output_tokens": "3"}, "give one of them"),
        ({"think_ms": 3.0}, "--think-ms is the pause between turns"),
        ({"num_requests": 0}, "--num-requests must be at least 1, got 0"),
        ({"submit_interval_ms": -1.0}, "--submit-interval-ms must be a number of at least 0, got -1.0"),
        ({"background": -1}, "--background must be at least 0, got -1"),
        ({"prompt_repeats": "1,,2"}, "--prompt-repeats must be integers of at least 1"),
        ({"prompt_repeats": "0"}, "--prompt-repeats must be integers of at least 1"),
        ({"at_ms": "1,-2"}, "--at-ms must be numbers of at least 0"),
        ({"at_ms": "1,2", "num_requests": 3}, "--num-requests must be at most 2 with this --at-ms, got 3"),
        ({"preset": "nothing"}, "--preset must be one of rosellm"),
    ],
)
def test_workloads_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        workload(**given)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"endpoint": "chat", "prompt_format": "ids"}, "--prompt-format must be text with --endpoint chat"),
        ({"turns": 2, "prompt_format": "ids"}, "--prompt-format must be text with --turns"),
        ({"timeout_s": 0.0}, "--timeout-s must be more than 0"),
        ({"warmup": -1}, "--warmup must be at least 0, got -1"),
    ],
)
def test_other_options_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        options_from(given)
    assert said in str(error.value)


def test_workload_and_metrics_know_no_http_and_no_event_loop() -> None:
    """A simulation shares them."""
    code = (
        "import sys, sluice.bench.workload, sluice.bench.metrics;"
        "print({'asyncio', 'http', 'msgspec', 'numpy', 'torch'} & set(sys.modules) or 'none')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "none"
