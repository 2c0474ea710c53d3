"""EAGLE-3 heads: states handed out by targets, logits against a slow reference, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_eagle3
import tiny_models
from paged import Row, empty_kv, forward_batch
from sluice.attention.reference import ReferenceAttention
from sluice.models.checkpoint import CheckpointError
from sluice.models.families.eagle3 import Eagle3
from sluice.models.families.eagle3_loader import load_eagle3
from sluice.models.families.llama import Llama
from sluice.models.linear import Packer
from sluice.models.loader import load_model

CPU = torch.device("cpu")
TEXT = tiny_models.prompt(23, 5)


def load_target(folder: Path) -> Llama:
    model = load_model(folder, dtype="float64", device=CPU, progress=False)[0]
    assert isinstance(model, Llama)
    return model


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_eagle3.target().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def states(target_folder: Path) -> list[torch.Tensor]:
    """What enters each layer of the target over `TEXT`, as transformers computes it."""
    reference = tiny_models.load_reference(target_folder, torch.float64)
    with tiny_models.exact(torch.float64), torch.inference_mode():
        out = reference(torch.tensor([list(TEXT)]), output_hidden_states=True, use_cache=False)
    return [each[0] for each in out.hidden_states]


@torch.inference_mode()
def test_targets_hand_out_what_enters_layers(target_folder: Path, states: list[torch.Tensor]) -> None:
    """The residuals, not what was normed or is still to be added; and of all tokens, not of those with logits alone."""
    model, layers = load_target(target_folder), (0, 2, 3, 6)
    kv = [empty_kv(6, 4, 2, 8, torch.float64) for _ in range(tiny_eagle3.TARGET_LAYERS)]
    batch = forward_batch([Row(TEXT, 0, range(6))], 4)
    hidden, ours = model.forward_with_states(batch, kv, ReferenceAttention(), layers)
    assert hidden.shape == (1, 32)
    for layer, state in zip(layers, ours, strict=True):
        torch.testing.assert_close(state, states[layer], rtol=0, atol=1e-9)


def logits_of(head: Eagle3, states: torch.Tensor, cuts: tuple[int, ...]) -> torch.Tensor:
    """Return the logits of a head after each token of `TEXT` but the first, and after two more tokens 7.

    The text is computed in chunks. The second of the two follows a state of the head's own.

    Args:
        states: [len(TEXT), hidden_size], the target's.
    """
    kv = [empty_kv(9, 4, tiny_eagle3.KV_HEADS, tiny_eagle3.HEAD_DIM, torch.float64)]
    pages, attention, logits = [3, 5, 0, 8, 1, 2, 7, 6], ReferenceAttention(), []
    tokens, before = [*TEXT, 7], torch.cat((torch.full_like(states[:1], 3.0), states))
    hidden = states[:0]
    for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        batch = forward_batch([Row(tokens[start:end], start, pages, logits=range(end - start))], 4)
        hidden = head.forward(batch, before[start:end], kv, attention)
        logits.append(head.logits(hidden))
    batch = forward_batch([Row([7], len(tokens), pages)], 4)
    logits.append(head.logits(head.forward(batch, hidden[-1:], kv, attention)))
    return torch.cat(logits)[1:]


VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "own embedding": {"embedding": True},
    "whole vocabulary": {"draft_vocab_size": None},
    "norm before residual": {"norm_before_residual": True, "architectures": ["Eagle3LlamaForCausalLM"]},
    "named layers": {"eagle_aux_hidden_state_layer_ids": [0, 4, 6]},
    "named layers, SGLang": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 3, 5]}},
}
LAYERS = {"named layers": (0, 4, 6), "named layers, SGLang": (0, 4, 6)}


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_logits_are_those_of_the_reference(
    variant: str, target_folder: Path, states: list[torch.Tensor], tmp_path: Path
) -> None:
    """In float64, in chunks, over shuffled pages: the first position has no key, and guesses go on from own states."""
    folder = tiny_eagle3.make(tmp_path / "head", **VARIANTS[variant])
    target = load_target(target_folder)
    head = load_eagle3(folder, target, CPU, Packer())
    assert head.config.target_layers == LAYERS.get(variant, (2, 3, 4))
    reference = tiny_eagle3.Reference(folder, target.get_parameter("embed_tokens.weight"))
    read = [states[layer] for layer in head.config.target_layers]
    joined = reference.joined(read)
    torch.testing.assert_close(head.joined(read), joined, rtol=0, atol=1e-9)

    tokens, known = [*TEXT[1:], 7, 7], joined
    own = reference.hidden(tokens[:-1], joined)[-1:]
    wanted = reference.logits(reference.hidden(tokens, torch.cat((known, own))))
    assert float(wanted[wanted.isfinite()].std()) > 0.1
    torch.testing.assert_close(logits_of(head, joined, (1, 4, 15)), wanted, rtol=0, atol=1e-9)


def refusal(target_folder: Path, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_eagle3(folder, load_target(target_folder), CPU, Packer())
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 40}, ("40", "32")),
        ({"target_hidden_size": 64}, ("64", "32")),
        ({"vocab_size": 200}, ("200", "131")),
        ({"draft_vocab_size": 132}, ("132", "131")),
        ({"num_hidden_layers": 2}, ("num_hidden_layers", "2")),
        ({"eagle_aux_hidden_state_layer_ids": [2, 12, 20]}, ("[2, 12, 20]", "7")),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}, ("[1, 2, 6]", "7")),
        ({"eagle_config": {"use_aux_hidden_state": False}}, ("use_aux_hidden_state", "False")),
        ({"architectures": ["LlamaForCausalLM"]}, ("LlamaForCausalLM", "LlamaForCausalLMEagle3")),
    ],
)
def test_heads_of_other_targets_are_refused(
    changes: dict[str, Any], named: tuple[str, ...], target_folder: Path, tmp_path: Path
) -> None:
    """A head that does not fit would guess at random, or crash in the first step."""
    message = refusal(target_folder, tiny_eagle3.make(tmp_path / "head", **changes))
    assert all(each in message for each in named), message


def test_targets_without_three_layers_apart_are_refused(tmp_path: Path) -> None:
    tiny_models.llama(num_hidden_layers=6).save_pretrained(tmp_path / "target")
    message = refusal(tmp_path / "target", tiny_eagle3.make(tmp_path / "head"))
    assert "has 6 layers" in message
    assert "7 or more" in message


def test_targets_that_hand_out_no_states_are_refused(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "target")
    target = load_model(folder, dtype="float64", device=CPU, progress=False, implementation="transformers")[0]
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM \(transformers\) does not"):
        load_eagle3(tiny_eagle3.make(tmp_path / "head"), target, CPU, Packer())


def broken(name: str, value: torch.Tensor | None) -> tiny_eagle3.Tensors:
    weights = tiny_eagle3.tensors(tiny_eagle3.config())
    weights.pop(name, None)
    return weights if value is None else weights | {name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fc.weight", None, "lacks the tensor fc.weight"),
        ("d2t", None, "lacks the tensor d2t, but guesses 70 of 131"),
        ("d2t", torch.zeros(70, dtype=torch.int64) + 62, "70 different tokens of 131"),
        ("d2t", torch.zeros(69, dtype=torch.int64), "70 integers"),
        ("midlayer.extra.weight", torch.ones(3), "unexpected tensor midlayer.extra.weight"),
        ("norm.weight", torch.ones(31), r"shape \(31,\), config.json requires \(32,\)"),
        ("norm.weight", torch.ones(32, dtype=torch.int64), "dtype torch.int64"),
    ],
)
def test_broken_heads_are_refused(
    name: str, value: torch.Tensor | None, message: str, target_folder: Path, tmp_path: Path
) -> None:
    folder = tiny_eagle3.save(tmp_path / "head", tiny_eagle3.config(), broken(name, value))
    with pytest.raises(CheckpointError, match=message):
        load_eagle3(folder, load_target(target_folder), CPU, Packer())


def test_heads_by_vllms_names_load_too(target_folder: Path, tmp_path: Path) -> None:
    """`layers.0` in the place of `midlayer`, as vLLM's speculators store it."""
    fields, weights = tiny_eagle3.config(), tiny_eagle3.tensors(tiny_eagle3.config())
    target = load_target(target_folder)
    tiny_eagle3.save(tmp_path / "a", fields, weights)
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in weights.items()}
    tiny_eagle3.save(tmp_path / "b", fields, renamed)
    first, second = (load_eagle3(tmp_path / name, target, CPU, Packer()) for name in "ab")
    for name, value in first.named_parameters():
        assert torch.equal(value, second.get_parameter(name)), name
