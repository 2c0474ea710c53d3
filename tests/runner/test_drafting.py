"""The runner's own drafter: it decides how many tokens a step brings, and never which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_eagle3
import tiny_models
from drafted import Answer, Guess, Planner
from ranks import FakeGrammar
from slow import products, slow
from sluice.assembly.drafting import DraftSetup
from sluice.attention.reference import ReferenceAttention, ReferenceBackend
from sluice.device.queues import plain_host_buffer
from sluice.device.transport import staged_transport
from sluice.models.base import PagedLM
from sluice.models.families.eagle3 import Eagle3
from sluice.models.families.eagle3_loader import load_eagle3
from sluice.models.linear import Packer
from sluice.models.loader import load_model
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.drafting.layout import FOLLOW_AFTER
from sluice.runner.drafting.nets import DraftModel, DraftNet, Eagle3Net
from sluice.runner.drafting.pages import DraftSizes
from sluice.runner.features.grammars import NO_GRAMMARS, GrammarMasks
from sluice.runner.forwards import EagerForwards
from sluice.runner.grammar.base import CompiledGrammars
from sluice.runner.graphs import DecodeGraphs
from sluice.runner.logit_ops import TORCH_LOGIT_OPS
from sluice.runner.runner import TorchRunner
from sluice.testing.device import StaticAttention, late_queues, recorded_steps
from sluice.types import SamplingParams, Submit

CPU = torch.device("cpu")
PAGE, PAGES, SLOTS, MAX_TOKENS = 4, 128, 8, 16
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3},
    {"seed": 4, "temperature": 0.8, "top_k": 20, "logprobs": 2},
    {"seed": 5, "temperature": 1.2, "top_p": 0.9},
    {"seed": 6, "min_p": 0.05},
    {"seed": 7, "temperature": 0.0, "max_tokens": 3},
]
PENALIZED: list[dict[str, Any]] = [
    {"temperature": 0.0, "frequency_penalty": 1.2, "repetition_penalty": 1.4, "logprobs": 1},
    {"seed": 8, "logit_bias": {5: 6.0, 9: 6.0}, "min_tokens": 9, "stop_token_ids": (5, 9)},
]


def submits(changes: Sequence[dict[str, Any]]) -> list[Submit]:
    params = {"max_tokens": MAX_TOKENS, "seed": 0}
    return [
        Submit(i, tiny_models.prompt(1 + 5 * i, i), SamplingParams(**params | each)) for i, each in enumerate(changes)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `target`, `other` (another model of its vocabulary) and `head`."""
    folder = tmp_path_factory.mktemp("drafting")
    tiny_eagle3.target().save_pretrained(folder / "target")
    tiny_eagle3.target(num_hidden_layers=5).save_pretrained(folder / "other")
    tiny_eagle3.make(folder / "head")
    return folder


def load(folder: Path) -> PagedLM:
    return load_model(folder, dtype="float64", device=CPU, progress=False)[0]


@pytest.fixture(scope="module")
def target(folders: Path) -> PagedLM:
    return load(folders / "target")


def setup_of(kind: str, target: PagedLM, folders: Path) -> DraftSetup:
    net: DraftNet
    if kind == "head":
        head = load_eagle3(folders / "head", target, CPU, Packer())
        net, module, spec = Eagle3Net(head), head, head.config.layer.spec
    else:
        model = target if kind == "target" else load(folders / kind)
        net, module, spec = DraftModel(model), model, model.spec
    sizes = DraftSizes(spec.kv_layers, net.state_size, spec.dtype)
    return DraftSetup(net, module, sizes, ReferenceBackend())


def state_of(target: PagedLM, scratch_pages: int = 0, grammars: CompiledGrammars = NO_GRAMMARS) -> DeviceState:
    """State whose KV is NaN where nothing was written, and which notices tokens that were not sampled."""
    sizes = {"num_slots": SLOTS, "num_pages": PAGES, "page_size": PAGE, "row_pages": PAGES}
    shape = DeviceShape.of(target.spec, CPU, **sizes, scratch_pages=scratch_pages)
    state = DeviceState(shape, watched=True, new_grammars=partial(GrammarMasks, grammars=grammars))
    for layer in state.kv:
        layer.k.fill_(torch.nan)
        layer.v.fill_(torch.nan)
    return state


def runner_of(
    target: PagedLM, setup: DraftSetup | None = None, grammars: CompiledGrammars = NO_GRAMMARS
) -> TorchRunner:
    state, attention = state_of(target, grammars=grammars), ReferenceAttention()
    if setup is None:
        return TorchRunner(target, state, attention)
    drafter = setup.open(state, None, lambda: None, TORCH_LOGIT_OPS)
    forwards = EagerForwards(setup.over(target, drafter), state, attention)
    return TorchRunner(target, state, attention, forwards=forwards, drafter=drafter)


def always(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
    return (0,) * at_most


def at_times(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
    """Different numbers, and none at times."""
    return (0,) * min(at_most, (submit.request_id + 3 * len(outputs)) % 5)


def drafted(
    runner: TorchRunner, asked: Sequence[Submit], guess: Guess = always, most: int = 4
) -> tuple[Planner, list[Answer]]:
    planner = Planner(runner, PAGES, PAGE, most=most, in_runner=True)
    return planner, planner.run(asked, guess)


def plain(answers: list[Answer]) -> list[object]:
    return [
        (each.tokens, each.error, [(one.token_id, round(one.logprob, 9)) for one in each.logprobs]) for each in answers
    ]


@pytest.fixture(scope="module")
def without_drafts(target: PagedLM) -> list[object]:
    return plain(Planner(runner_of(target), PAGES, PAGE).run(submits([*SAMPLINGS, *PENALIZED])))


@products(kind=["target", "other", "head"], guess=[at_times, always])
def test_no_drafter_changes_an_answer(
    kind: str, guess: Guess, target: PagedLM, folders: Path, without_drafts: list[object]
) -> None:
    asked = submits([*SAMPLINGS, *PENALIZED])
    planner, found = drafted(runner_of(target, setup_of(kind, target, folders)), asked, guess)
    assert plain(found) == without_drafts
    assert planner.drafted > 50


@pytest.mark.parametrize("guess", [slow(always), at_times])
def test_the_target_itself_guesses_every_token(guess: Guess, target: PagedLM, folders: Path) -> None:
    """At any temperature, since a draft is drawn with the noise of its position; wherever a step is cut; and where
    decodes without drafts came before."""
    planner, _ = drafted(runner_of(target, setup_of("target", target, folders)), submits(SAMPLINGS), guess)
    assert planner.accepted == planner.drafted > 40


def test_a_grammar_follows_what_the_runner_guesses(
    target: PagedLM, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without masks behind them its guesses would all be wrong."""
    monkeypatch.setattr("sluice.runner.features.grammars.PATIENCE", 60.0)
    grammar = FakeGrammar(tiny_models.VOCAB_SIZE)
    asked = [replace(each, grammar="any") for each in submits([*SAMPLINGS, *PENALIZED])]
    _, expected = drafted(runner_of(target, grammars=grammar), asked, lambda *_: ())
    planner, found = drafted(runner_of(target, setup_of("target", target, folders), grammar), asked)
    assert plain(found) == plain(expected)
    assert planner.accepted > 10


def test_decodes_without_drafts_are_caught_up(target: PagedLM, folders: Path) -> None:
    """The drafter lacks fewer tokens than `FOLLOW_AFTER` when drafts are wanted, and computes them then."""
    rows = []

    class Counting(DraftModel):
        def forward(self, batch, states, kv, attention):  # type: ignore[no-untyped-def]
            rows.extend(batch.q_lens)
            return super().forward(batch, states, kv, attention)

    def late(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
        return (0,) * at_most if len(outputs) >= FOLLOW_AFTER + 20 else ()

    setup = replace(setup_of("target", target, folders), net=Counting(target))
    asked = submits([{"max_tokens": FOLLOW_AFTER + 50}, {"seed": 9, "max_tokens": FOLLOW_AFTER + 50}])
    planner, _ = drafted(runner_of(target, setup), asked, late)
    assert planner.accepted == planner.drafted > 30
    # Of each request: 64 tokens in one row, the 20 or so behind them in another, and then no row of more than a few.
    assert sum(rows) < 2 * (FOLLOW_AFTER + 60)
    assert max(rows) == FOLLOW_AFTER
    assert len([count for count in rows if count > 8]) == 4


def test_heads_guess_as_the_reference_does(target: PagedLM, folders: Path) -> None:
    """From the target's states of all known tokens, also of accepted drafts; then from states of its own."""
    setup, guesses, known = setup_of("head", target, folders), list[int](), list[list[int]]()
    assert isinstance(setup.module, Eagle3)

    class Recording(Eagle3Net):
        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            logits = super().logits(hidden)
            guesses.append(int(logits.argmax()))
            return logits

    def recorded(submit: Submit, outputs: Sequence[int], at_most: int) -> Sequence[int]:
        known.append([*submit.prompt, *outputs])
        return (0,) * at_most

    (asked,) = [Submit(0, tiny_models.prompt(10), SamplingParams(temperature=0.0, seed=0, max_tokens=40))]
    setup = replace(setup, net=Recording(setup.module))
    planner, (answer,) = drafted(runner_of(target, setup), [asked], recorded, most=3)
    assert planner.accepted > 0

    text = [*asked.prompt, *answer.tokens]
    model = tiny_models.load_reference(folders / "target", torch.float64)
    with tiny_models.exact(torch.float64), torch.inference_mode():
        states = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    reference = tiny_eagle3.Reference(folders / "head", model.get_input_embeddings().weight.detach())
    joined = reference.joined([states[layer][0] for layer in setup.module.config.target_layers])
    for tokens in known:
        inputs, hidden = tokens[1:], joined[: len(tokens) - 1]
        for _ in range(min(3, 40 - (len(tokens) - 10) - 1)):
            out = reference.hidden(inputs, hidden)[-1:]
            inputs = [*inputs, int(reference.logits(out).argmax())]
            hidden = torch.cat((hidden, out))
            assert guesses.pop(0) == inputs[-1], f"behind {len(tokens)} tokens"
    assert not guesses


@pytest.mark.parametrize(("kind", "eager"), [slow("target", ()), ("head", ("copies", "results"))])
def test_captured_steps_and_late_queues(kind: str, eager: Sequence[str], target: PagedLM, folders: Path) -> None:
    """Decodes without drafts are replayed from graphs, which note tokens and states as eager ones do; and nothing waits
    for the host, or runs ahead of what it needs. As many guesses are right as in eager steps."""
    asked, setup = submits([*SAMPLINGS, *PENALIZED]), setup_of(kind, target, folders)
    plainly, expected = drafted(runner_of(target, setup), asked, at_times)
    state, attention = state_of(target, scratch_pages=1), StaticAttention()
    drafter = setup.open(state, None, lambda: None, TORCH_LOGIT_OPS)
    model = setup.over(target, drafter)
    graphs = DecodeGraphs(EagerForwards(model, state, attention), model, state, attention, recorded_steps, (1, 4, 8))
    graphs.capture_all()
    transport = staged_transport(late_queues(eager), CPU, plain_host_buffer, num_buffers=2)
    runner = TorchRunner(target, state, attention, transport=transport, forwards=graphs, drafter=drafter)
    planner, found = drafted(runner, asked, at_times)
    assert plain(found) == plain(expected)
    assert (planner.drafted, planner.accepted) == (plainly.drafted, plainly.accepted)
