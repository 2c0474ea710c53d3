"""Embeddings are transformers' hidden states, whatever runs beside them and however the prompt is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_models
from sluice import LLM, SamplingParams
from sluice.text.vectors import unit_vector
from sluice.types.request_limits import LimitError

PROMPTS = [tiny_models.prompt(length, seed=length) for length in (1, 9, 16, 41)]
OPTIONS = {"max_total_tokens": 512, "page_size": 8, "dtype": "float32"}


def reference(folder: Path, prompts: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
    """What transformers gives: the last layer's normed state of each last token."""
    model = tiny_models.load_reference(folder, torch.float32).base_model
    with torch.inference_mode():
        states = [model(torch.tensor([list(prompt)])).last_hidden_state[0, -1] for prompt in prompts]
    return [unit_vector(state.numpy().tobytes()) for state in states]


def vectors(llm: LLM, prompts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    return np.stack([each.vector for each in llm.embed(prompts)])


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_they_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """A state before the norm, of another token or of another row has the right form, and finds the wrong documents.
    The second call finds its prompts in the cache, and must compute the last token of each all the same."""
    folder = tiny_models.save(family, tmp_path)
    expected = np.stack(reference(folder, PROMPTS))
    for chunk in (8, 24, 64):
        with LLM(folder, chunked_prefill_size=chunk, **OPTIONS) as llm:
            for _ in range(2):
                np.testing.assert_allclose(vectors(llm, PROMPTS), expected, atol=1e-5)
            assert [each.num_cached_tokens for each in llm.embed(PROMPTS)] == [0, 8, 8, 40]
            (cut,) = llm.embed(PROMPTS[1], dimensions=3)
    np.testing.assert_allclose(cut.vector, expected[1][:3] / np.linalg.norm(expected[1][:3]), atol=1e-5)


def test_streams_and_embeddings_do_not_disturb_each_other(tmp_path: Path) -> None:
    """In one step some rows sample, some embed and some are scored: each must get its own hidden state."""
    folder = tiny_models.save("qwen3", tmp_path)
    scored = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, prompt_logprobs=1)
    with LLM(folder, chunked_prefill_size=8, enable_prefix_caching=False, **OPTIONS) as llm:
        (alone,) = llm.generate([PROMPTS[3]], scored)
        stream = llm.stream(PROMPTS[2], SamplingParams(max_tokens=60, temperature=0, ignore_eos=True))
        next(stream)
        found = vectors(llm, PROMPTS)
        (beside,) = llm.generate([PROMPTS[3]], scored)
        assert beside == alone
        assert len([*stream]) == 59
    np.testing.assert_allclose(found, np.stack(reference(folder, PROMPTS)), atol=1e-5)


def test_a_context_longer_than_the_device_is_embedded(tmp_path: Path) -> None:
    """Offloaded chunks are computed apart from the rest, and end their request with a row of their own."""
    folder = tiny_models.save("llama", tmp_path)
    prompt = tiny_models.prompt(100, seed=5)
    options = {
        "max_total_tokens": 64,
        "page_size": 8,
        "kv_disk": str(tmp_path / "kv"),
        "kv_disk_bytes": 1 << 22,
        "chunked_prefill_size": 16,
    }
    with LLM(folder, dtype="float32", **options) as llm:
        np.testing.assert_allclose(vectors(llm, [prompt])[0], reference(folder, [prompt])[0], atol=1e-5)


def test_a_checkpoint_without_a_head_only_embeds(tmp_path: Path) -> None:
    """As Qwen3-Embedding is published: the architecture below the head, and names without a prefix."""
    folder = tiny_models.save("qwen3", tmp_path)
    expected = reference(folder, PROMPTS)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Qwen3Model"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name.removeprefix("model."): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with LLM(folder, **OPTIONS) as llm:
        np.testing.assert_allclose(vectors(llm, PROMPTS), np.stack(expected), atol=1e-5)
        with pytest.raises(LimitError, match=r"generates nothing: the checkpoint has no lm_head\.weight"):
            llm.generate([PROMPTS[0]])


@pytest.mark.parametrize(
    ("pooling", "module", "refused"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "Normalize", None),
        ({"pooling_mode": "lasttoken"}, "Normalize", None),
        ({"pooling_mode_mean_tokens": True}, "Normalize", "pooling by mean_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_lasttoken": True}, "Normalize", "by cls_token and lasttoken"),
        ({"pooling_mode_lasttoken": True, "include_prompt": False}, "Normalize", "include_prompt"),
        ({"pooling_mode_lasttoken": True}, "Dense", "a module Dense"),
    ],
)
def test_another_pooling_is_refused(
    pooling: dict[str, object], module: str, refused: str | None, tmp_path: Path
) -> None:
    """Vectors that a model was not made to give look like any others."""
    folder = tiny_models.save("qwen3", tmp_path)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), (f"2_{module}", module)]
    modules = [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with LLM(folder, **OPTIONS) as llm:
        assert llm.generate([PROMPTS[0]], SamplingParams(max_tokens=1))
        if refused is None:
            assert len(llm.embed([PROMPTS[0]])) == 1
        else:
            with pytest.raises(LimitError, match=refused):
                llm.embed([PROMPTS[0]])
