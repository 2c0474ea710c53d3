"""The weights of a GGUF file under the names of `config.json`'s architecture, as they are stored or dequantised."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

from sluice.models.base import DOWN, GATE_UP, CausalLM
from sluice.models.block_types import BLOCK_TYPES
from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.base import Rows, WeightFormat
from sluice.models.formats.gguf_config import METHOD
from sluice.models.formats.gguf_families import NAMES
from sluice.models.formats.gguf_fields import DRAFTING
from sluice.models.formats.gguf_file import GGUFTensor, tensors_of
from sluice.models.formats.gguf_names import GGUFNames
from sluice.models.formats.gguf_open import fields_of, open_gguf
from sluice.models.formats.gguf_rope import FREQUENCY_FACTORS, LONG_FACTORS
from sluice.models.quantized import QuantizedWeight
from sluice.models.registry import ARCHITECTURES
from sluice.models.spec import BLOCKS, INT4, holds
from sluice.models.stacked import check_experts
from sluice.models.weights import StoredTensor, weight_files
from sluice.text.gguf.model import GGUFModel

PERMUTED = ("self_attn.q_proj", "self_attn.k_proj")
"""Layers whose rows some architectures have in another order (`GGUFNames.is_permuted`)."""

MODULES: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
}
"""Modules of a model and of its layers -> their usual names in GGUF."""
EXPERTS: Mapping[str, tuple[str, ...]] = {
    "ffn_gate_exps": ("gate_proj",),
    "ffn_up_exps": ("up_proj",),
    "ffn_gate_up_exps": GATE_UP,
    "ffn_down_exps": DOWN,
}
"""Tensors of all experts of a layer -> what they hold of each expert."""
EXPERT = re.compile(r"(?P<experts>.*experts)\.(?P<number>\d+)\.(?P<module>.+)")
BARE = (".scale", ".ssm_a", ".ssm_d", ".bias")
"""Ends of the names of tensors behind which no part is named."""
LAYER = re.compile(r"layers\.(?P<number>\d+)\.(?P<module>.+)")
BLOCK = re.compile(r"blk\.(?P<number>\d+)\.(?P<module>.+)\.(?P<part>weight|bias)")


class GGUF(WeightFormat):
    """A checkpoint made of a GGUF file (`gguf_folder.py`).

    Args:
        types: quantisation of the matrices -> their number, the most frequent one first.
    """

    name = METHOD
    holds_sums = True

    def __init__(self, types: Mapping[str, object]) -> None:
        self._types = types
        has_blocks = any(name in BLOCK_TYPES for name in types)
        self.kinds = (*((BLOCKS,) if has_blocks else ()), *((INT4,) if "Q4_0" in types else ()))

    @classmethod
    def read(cls, section: Fields) -> GGUF:
        """Read `quantization_config`.

        Raises:
            CheckpointError: it is not what `gguf_config` writes.
        """
        types = section.section("types")
        if types is None:
            raise section.error("types", "the types of a GGUF file's matrices")
        return cls({name: types.get(name) for name in types})

    @property
    def description(self) -> str:
        return "GGUF, " + ", ".join(f"{kind} ({count})" for kind, count in self._types.items())

    @property
    def level(self) -> str:
        return next(iter(self._types), self.name)

    def tensors(self, folder: Path, model: CausalLM, dtype: torch.dtype, rows: Rows) -> Iterator[StoredTensor]:
        path, *_ = weight_files(folder)  # the first part of a split file knows the others
        file = open_gguf(path.readlink() if path.is_symlink() else path)  # by the name that the user knows
        # Memory is slow when it is used for the first time, so all weights are dequantised in the same.
        memory = torch.empty(max(tensor.numel // _divisor(tensor) for tensor in tensors_of(file)), dtype=dtype)
        parameters = dict(model.named_parameters())
        for name, tensor in _named(file, model):
            if not rows(name):
                yield StoredTensor(name, tensor.file, torch.empty(tensor.shape, device="meta"), tensor.nbytes)
                continue
            order = order_of(name, tensor.shape[0], model)
            kept = _kept(tensor, order, model.spec.quantization)
            value = _values(tensor, parameters[name], dtype, order, memory) if kept is None else kept
            yield StoredTensor(name, tensor.file, value, tensor.nbytes)


def _divisor(tensor: GGUFTensor) -> int:
    """Return into how many a tensor is divided that holds all experts of a layer."""
    module = tensor.name.rpartition(".")[0].rpartition(".")[2]
    return tensor.shape[0] if module in EXPERTS else 1


def _named(file: GGUFModel, model: CausalLM) -> Iterator[tuple[str, GGUFTensor]]:
    """Iterate over the tensors that are weights of a model, with the parameters that they are.

    Raises:
        CheckpointError: a tensor is none of its weights, or has another number of experts.
    """
    names = _names(model)
    for tensor in tensors_of(file):
        if tensor.name in (FREQUENCY_FACTORS, *LONG_FACTORS.values()):
            continue
        found = names.get(tensor.name)
        if found is None:
            if model.ignores(_module_of(tensor.name, model)) or _is_drafting(tensor.name, model, file):
                continue
            raise CheckpointError(
                f"{tensor.file}: unexpected tensor {tensor.name}: {model.spec.architecture} has no such weight"
            )
        if isinstance(found, str):
            yield found, tensor
            continue
        if isinstance(found, tuple):
            yield from ((name, tensor) for name in found)
            continue
        experts = check_experts(tensor.file, tensor.name, tensor.shape[0], model.spec)
        if tensor.shape[1] % len(found):
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} has the shape {list(tensor.shape)}, which {len(found)} layers of"
                " equal size do not share"
            )
        parameters = (name.format(expert) for expert in range(experts) for name in found)
        yield from zip(parameters, tensor.experts(len(found)), strict=True)


def _values(
    tensor: GGUFTensor, parameter: torch.Tensor, dtype: torch.dtype, order: torch.Tensor | None, memory: torch.Tensor
) -> torch.Tensor:
    """Return the values for a parameter: of one that is held in a wider dtype in that, and vectors that the file gives
    a second dimension without it."""
    wide = torch.promote_types(dtype, parameter.dtype)
    values = tensor.dequantized(wide, order, memory if wide == dtype else None)
    return values.flatten() if parameter.ndim == 1 else values


def _kept(tensor: GGUFTensor, order: torch.Tensor | None, quantization: str) -> QuantizedWeight | None:
    """Return the numbers of a matrix as they are stored; None if a model of this quantisation does not hold such."""
    if holds(quantization, BLOCKS):
        return tensor.blocks(order)
    return tensor.four_bits(order) if holds(quantization, INT4) else None


def _names(model: CausalLM) -> dict[str, str | tuple[str, ...] | list[str]]:
    """Return the names of a GGUF file's tensors -> those of the model's parameters.

    Tensors of all experts have lists of what they hold of each, with {} for its number.
    """
    names: dict[str, str | tuple[str, ...] | list[str]] = {}
    modules = {**MODULES, **_special(model).modules}
    in_layers = {**modules, **_special(model).in_layers}
    for parameter in dict(model.named_parameters()):
        stem, _, part = parameter.rpartition(".")
        if part not in ("weight", "bias"):  # a parameter of the layer itself
            stem, part = parameter, "weight"
        layer, expert = LAYER.fullmatch(stem), EXPERT.fullmatch(stem)
        if layer is not None and expert is not None:
            if expert["number"] == "0" and expert["module"] == DOWN[0]:
                for theirs, ours in EXPERTS.items():
                    held = [f"{expert['experts']}.{{}}.{each}.{part}" for each in ours]
                    names[f"blk.{layer['number']}.{theirs}.{part}"] = held
            continue
        found = modules[stem] if layer is None else f"blk.{layer['number']}.{in_layers[layer['module']]}"
        name = found if found.endswith(BARE) else f"{found}.{part}"
        other = names.get(name)
        names[name] = (other, parameter) if isinstance(other, str) else parameter
    return names


def layer_names(model: CausalLM, layers: Iterable[str]) -> dict[str, str]:
    """Return the names of layers in a GGUF file -> those in the model."""
    modules = {**MODULES, **_special(model).modules}
    names = {}
    for name in layers:
        layer = LAYER.fullmatch(name)
        assert layer is not None, f"{name} is no layer"
        names[f"blk.{layer['number']}.{modules[layer['module']]}"] = name
    return names


def _module_of(tensor: str, model: CausalLM) -> str:
    """Return the name that a weight of a layer would have in the model; the tensor's own if there is no such module."""
    part = BLOCK.fullmatch(tensor)
    modules = {theirs: ours for ours, theirs in {**MODULES, **_special(model).modules}.items()}
    if part is None or part["module"] not in modules:
        return tensor
    return f"layers.{part['number']}.{modules[part['module']]}.{part['part']}"


def _is_drafting(tensor: str, model: CausalLM, file: GGUFModel) -> bool:
    """Return whether a tensor is of the layers behind the model's that draft tokens."""
    part = re.match(r"blk\.(\d+)\.", tensor)
    fields = fields_of(file)
    layers = fields.get(f"{fields.text('general.architecture')}.{DRAFTING}") or 0
    return part is not None and bool(layers) and int(part[1]) >= model.spec.num_layers


def _special(model: CausalLM) -> GGUFNames:
    """Return what is special in the files of a model's family."""
    name = ARCHITECTURES[model.spec.architecture].gguf
    assert name is not None, f"{model.spec.architecture} in a GGUF file"
    return NAMES[name]


RATES = ("state.in_proj_b", "state.in_proj_a")
"""Matrices that one tensor may hold (`GGUFNames.has_rates_by_head`)."""


def _rates(module: str, model: CausalLM) -> torch.Tensor:
    """Return the rows of one of `RATES` in the tensor that holds both: for each k head those of its value heads."""
    state = model.spec.state
    assert state is not None, "a model without states"
    rows = torch.arange(2 * state.value_heads).view(state.key_heads, len(RATES), -1)
    return rows[:, int(module.endswith(RATES[1]))].flatten()


def order_of(name: str, rows: int, model: CausalLM) -> torch.Tensor | None:
    """Return the stored row of each row of a weight, or of each element of a bias; None if they are in order."""
    module = name.rpartition(".")[0]
    if _special(model).has_rates_by_head and module.endswith(RATES):
        return _rates(module, model)
    if not _special(model).is_permuted or not module.endswith(PERMUTED):
        return None
    half = model.spec.head_dim // 2
    if rows % (2 * half):
        raise CheckpointError(f"tensor {name} has {rows} rows, which heads of {2 * half} do not divide")
    return torch.arange(rows).view(-1, half, 2).transpose(1, 2).flatten()
