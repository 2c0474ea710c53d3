"""NaN logits to order: a row's request ends with an error, its neighbours get what they would have."""

from __future__ import annotations

import pytest

from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.config import EngineConfig
from sluice.engine.messages import Submit
from sluice.runner.features.base import BAD_LOGITS
from sluice.testing import ManualLink, resolved
from sluice.types import FinishReason
from sluice.types.faults import parse_faults

PROMPTS = [tuple(range(10 * n + 10, 10 * n + 30)) for n in range(4)]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load(EngineConfig.from_options({"max_total_tokens": 2048, "chunked_prefill_size": 32}), progress=False)


def played(loaded: LoadedModel, faults: str) -> ManualLink:
    link = ManualLink()
    engine = loaded.engine(link, loaded.runner(faults=parse_faults(faults)))
    link.put(*(Submit(i, prompt, resolved(8, seed=i)) for i, prompt in enumerate(PROMPTS)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    return link


@pytest.mark.parametrize("faults", ["nan@4", "nan@token:25", "nan@token:25,nan@4"])
def test_the_row_ends_and_the_others_go_on(loaded: LoadedModel, faults: str) -> None:
    expected, link = played(loaded, ""), played(loaded, faults)
    ends = [link.end(i) for i in range(len(PROMPTS))]
    failed = [i for i, end in enumerate(ends) if end.finish_reason is FinishReason.ERROR]
    holders = [i for i, prompt in enumerate(PROMPTS) if "token" in faults and 25 in prompt]
    assert set(holders) <= set(failed)
    assert len(failed) == len(holders) + ("@4" in faults)
    assert {ends[i].error for i in failed} == {BAD_LOGITS}
    for i in range(len(PROMPTS)):
        got = link.tokens(i)
        assert got == expected.tokens(i)[: len(got)]
        assert i in failed or len(got) == 8
