"""The report of `sluice quantize`: what quantisation changes in the weights, and in what the model makes of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from sluice.cli.quantize.source import PlainCheckpoint
from sluice.cli.quantize.text_quality import TextQuality, read_text, windows_of
from sluice.models.checkpoint import CheckpointError
from sluice.models.filler import Kind
from sluice.text.tokenizer_files import load_tokenizer

BASE = "bfloat16"
"""What the schemes are compared with."""

AT_ONCE = 1 << 21
"""Elements that are compared at once."""


@dataclass(frozen=True, slots=True)
class Report:
    """What quantisation changes in a model."""

    weights: Sequence[WeightError]
    readings: Mapping[str, TextQuality]
    """Quality on the text, by value of `--quantization` and for `BASE`; empty without a text."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        weights = [{"name": name, "shape": shape, "relative_error": errors} for name, shape, errors in self.weights]
        if not self.readings:
            return {"weights": weights}
        base = self.readings[BASE]
        text = {
            name: {
                "perplexity": reading.perplexity,
                "next_token_found": reading.hit_share,
                "agreement": reading.agreement(base),
            }
            for name, reading in self.readings.items()
        }
        return {"weights": weights, "text": {"tokens": len(base.logprobs), "models": text}}


def windows_of_text(source: PlainCheckpoint, text: str) -> Sequence[Sequence[int]]:
    """Return the tokens of a text in pieces that the model can read.

    Raises:
        CheckpointError: the text is shorter than two tokens.
        TokenizerError: the checkpoint has no tokenizer.
    """
    token_ids = load_tokenizer(source.folder, chat=False).encode(text)
    windows = windows_of(token_ids, source.model.spec.max_model_len)
    if not windows:
        raise CheckpointError(f"--text must hold at least two tokens, got {len(token_ids)}")
    return windows


def make_report(source: PlainCheckpoint, quantizations: Sequence[str], text: str | None, *, progress: bool) -> Report:
    """Compare quantised models with the one in bfloat16.

    Args:
        quantizations: values of `--quantization`.
        text: read by every one of them; None: weights alone are compared.

    Raises:
        CheckpointError: a weight cannot be quantised, or the text is shorter than two tokens.
        TokenizerError: the checkpoint has no tokenizer.
    """
    readings = {}
    windows: Sequence[Sequence[int]] = [] if text is None else windows_of_text(source, text)
    weights = weight_errors(source, quantizations, progress=progress)
    if text is not None:
        readings = {
            name: read_text(source.folder, windows, quantization=quantization, progress=progress)
            for name, quantization in ((BASE, "none"), *((each, each) for each in quantizations))
        }
    return Report(weights, readings)


def table(report: Report) -> str:
    """Return the report as lines of text."""
    names = list(report.weights[0].errors)
    width = max(len(weight.name) for weight in report.weights)
    lines = [_line("weight", width, "shape", [f"{name} error" for name in names])]
    for weight in report.weights:
        shape = " x ".join(map(str, weight.shape))
        lines.append(_line(weight.name, width, shape, [f"{error:.3%}" for error in weight.errors.values()]))
    means = [sum(weight.errors[name] for weight in report.weights) / len(report.weights) for name in names]
    lines.append(_line("mean", width, "", [f"{mean:.3%}" for mean in means]))
    return "\n".join(lines + (["", *_text_lines(report.readings)] if report.readings else []))


def _line(name: str, width: int, shape: str, values: Sequence[str]) -> str:
    return f"{name:<{width}}  {shape:>15}" + "".join(f"  {value:>12}" for value in values)


def _text_lines(readings: Mapping[str, TextQuality]) -> list[str]:
    base = readings[BASE]
    found = list(readings.values())
    rows = {
        f"{len(base.logprobs)} tokens": list(readings),
        "perplexity": [f"{reading.perplexity:.4f}" for reading in found],
        "change": [f"{reading.perplexity / base.perplexity - 1:+.2%}" for reading in found],
        "next token found": [f"{reading.hit_share:.2%}" for reading in found],
        f"same as {BASE}": [f"{reading.agreement(base):.2%}" for reading in found],
    }
    return [f"{name:<20}" + "".join(f"  {value:>10}" for value in values) for name, values in rows.items()]


class WeightError(NamedTuple):
    """The errors of one weight."""

    name: str
    """Name in the checkpoint."""
    shape: tuple[int, int]
    errors: Mapping[str, float]
    """Norm of the difference over the norm of the weight, by value of `--quantization`."""


def weight_errors(source: PlainCheckpoint, quantizations: Sequence[str], *, progress: bool) -> list[WeightError]:
    """Quantise every weight that `--quantization` would, a slice at a time.

    Raises:
        CheckpointError: a file or a weight is broken.
    """
    kinds = {quantization: source.kinds(quantization) for quantization in quantizations}
    found = []
    for weight in tqdm(source.weights(), desc="comparing weights", unit="", leave=False, disable=not progress):
        try:
            errors = {name: relative_error(weight.value, kind[weight.inner_name]) for name, kind in kinds.items()}
        except ValueError as error:
            raise CheckpointError(f"tensor {weight.name} cannot be quantised: {error}") from None
        outputs, inputs = weight.value.shape
        found.append(WeightError(weight.name, (outputs, inputs), errors))
    return found


def relative_error(weight: torch.Tensor, kind: Kind) -> float:
    """Return the norm of what quantising changes in a weight [outputs, inputs], over the weight's norm."""
    changed = total = 0.0
    for rows in weight.split(max(1, AT_ONCE // weight.shape[1])):
        wide = rows.float()
        difference = kind.quantize(rows).dense(torch.float32) - wide
        changed += float(difference.double().square().sum())
        total += float(wide.double().square().sum())
    return float((changed / total) ** 0.5) if total else 0.0
