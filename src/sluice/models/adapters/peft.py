"""Reads the folders that PEFT saves: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from sluice.models.adapters.adapter import AdapterError, own_names, parts_by_path
from sluice.models.adapters.saved_modules import refuse_changed
from sluice.models.adapters.stored import StoredAdapter, StoredMatrix, StoredPair
from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.decoder import Decoder
from sluice.types.adapters import AdapterLimits

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
ENDS = (".lora_A.weight", ".lora_B.weight")
WHOLE = (".weight", ".bias")
"""Ends of the names of weights of the model itself."""
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "target_parameters": ([],),
    "alora_invocation_tokens": ([],),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "kasa_config": (),
    "monteclora_config": (),
    "arrow_config": (),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
"""Fields that are not supported, with the values at which they change nothing. Other initialisations than these change
the weights of the base model, too."""
LARGEST_CONFIG = 1 << 20
"""Bytes."""
MOST_REPEATS = 3
"""Repetitions in an expression of `rank_pattern` or `alpha_pattern`: with many, a search takes forever."""


def read_peft(folder: Path, model: Decoder, limits: AdapterLimits, base: Path | None = None) -> StoredAdapter:
    """Read an adapter of PEFT.

    Args:
        base: the model's folder, if it is one of Hugging Face.

    Raises:
        AdapterError: a file is missing or broken, the config asks for what is not supported, or a tensor is of no layer
            of the model that adapters may change.
    """
    config_bytes = _content(folder / CONFIG, LARGEST_CONFIG)
    try:
        config = Fields.read(folder / CONFIG)
        _refuse_unsupported(config)
        tensors, digest = _tensors(folder / WEIGHTS, config_bytes, _most_bytes(model, limits))
        modules = {
            name: value
            for name, value in tensors.items()
            if name.startswith(PREFIX) and name.endswith(WHOLE) and not name.endswith(ENDS)
        }
        refuse_changed({name.removeprefix(PREFIX): value for name, value in modules.items()}, base, model.rules)
        pairs = _pairs({name: value for name, value in tensors.items() if name not in modules}, model)
        return _stored(config, pairs, digest)
    except CheckpointError as error:
        raise AdapterError(str(error)) from None


def _refuse_unsupported(config: Fields) -> None:
    if config.text("peft_type") != "LORA":
        raise config.error("peft_type", "LORA")
    for name, neutral in NEUTRAL.items():
        value = config.get(name)
        if value is not None and value not in neutral:
            accepted = " or ".join(map(repr, neutral)) or "null"
            raise AdapterError(f"{config.source}: {name} = {value!r:.100} is not supported; accepted: {accepted}")


def _most_bytes(model: Decoder, limits: AdapterLimits) -> int:
    """Return the bytes of the largest file of an adapter of a model, with generous names."""
    parts = parts_by_path(model.config).values()
    pairs = sum((each.in_features + each.out_features) * limits.max_lora_rank * 8 + 1024 for each in parts)
    spec = model.config.spec
    return pairs + 2 * spec.vocab_size * spec.hidden_size * 4  # embedding and head may be there as well


def _content(path: Path, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > most:
            raise AdapterError(f"{path.name} has {size} bytes, and an adapter of this model has at most {most}")
        return path.read_bytes()
    except FileNotFoundError:
        what = "; pickled weights are not read, because they can run code" * (path.name == WEIGHTS)
        raise AdapterError(f"{path.parent} holds no {path.name}{what}") from None
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from None


def _tensors(path: Path, config: bytes, most: int) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of a file, and the digest of it and of the config."""
    content = _content(path, most)
    digest = hashlib.sha256(hashlib.sha256(config).digest())
    digest.update(content)
    try:
        return load(content), digest.hexdigest()
    except SafetensorError as error:
        raise AdapterError(f"{path.name} is not a readable safetensors file: {error}") from None


def _pairs(tensors: Mapping[str, torch.Tensor], model: Decoder) -> dict[str, tuple[str, StoredPair]]:
    """Return the pairs by layer, each with the layer's name in the config's patterns."""
    known = parts_by_path(model.config)
    found: dict[str, tuple[str, StoredPair]] = {}
    for name, value in tensors.items():
        end = next((end for end in ENDS if name.endswith(end)), None)
        if end is None or not name.startswith(PREFIX):
            raise AdapterError(
                f"{WEIGHTS}: tensor {name} is not supported; accepted: names as {PREFIX}[layer].lora_A.weight"
            )
        theirs = name.removeprefix(PREFIX).removesuffix(end)
        layer = model.rules.inner(theirs)
        if layer not in known:
            layers = ", ".join(own_names(known))
            raise AdapterError(
                f"{WEIGHTS}: tensor {name} is of no layer of {model.spec.architecture} that adapters may change:"
                f" {layers}, in {model.config.spec.num_layers} layers"
            )
        _, pair = found.setdefault(layer, (theirs, StoredPair()))
        pair.put(StoredMatrix(name, value), is_a=end == ENDS[0])
    return found


def _stored(config: Fields, pairs: Mapping[str, tuple[str, StoredPair]], digest: str) -> StoredAdapter:
    alpha, rank = config.number("lora_alpha", 8.0), config.integer("r", 8)
    ranks, alphas = _Pattern(config, "rank_pattern"), _Pattern(config, "alpha_pattern")
    is_root = config.flag("use_rslora", False)
    scales, of_layers = {}, {}
    for layer, (theirs, _) in pairs.items():
        own_rank = ranks.number(theirs, rank)
        of_layers[layer] = int(own_rank)
        scales[layer] = alphas.number(theirs, alpha) / (math.sqrt(own_rank) if is_root else own_rank)
    of_pairs = {layer: pair for layer, (_, pair) in pairs.items()}
    return StoredAdapter(WEIGHTS, digest, alpha, of_pairs, scales, of_layers)


class _Pattern:
    """Numbers for the layers whose names match, each by the first expression that does."""

    def __init__(self, config: Fields, name: str) -> None:
        section = config.section(name)
        self._numbers = {} if section is None else dict(self._read(section))

    @staticmethod
    def _read(section: Fields) -> Iterator[tuple[re.Pattern[str], float]]:
        for key in section:
            number = section.number(key)
            if re.search(r"\)[*+?{]", key) or sum(map(key.count, "*+{")) > MOST_REPEATS:
                raise AdapterError(
                    f"{section.source}: {key!r:.100} is not supported: an expression has at most {MOST_REPEATS}"
                    " repetitions, and none of a group"
                )
            try:
                yield re.compile(rf"(.*\.)?({key})$"), number
            except re.error as error:
                raise AdapterError(f"{section.source}: {key!r:.100} is no regular expression: {error}") from None

    def number(self, layer: str, default: float) -> float:
        """Return the number for a layer of the base model."""
        return next((number for key, number in self._numbers.items() if key.match(layer)), default)
