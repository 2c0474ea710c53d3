"""What is constant in a decoder: the sizes of its layers, and how they are computed. Families read it from a config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sluice.models.experts import ExpertActivation
from sluice.models.rope import Rope
from sluice.models.router import Router
from sluice.models.spec import ModelSpec


class QKNorm(Enum):
    """What the norms of q and k, which some models apply before the rotation, extend over."""

    NONE = "none"
    HEAD = "head"
    """Each head by itself."""
    ROW = "row"
    """All heads of a token together."""


class StateKind(Enum):
    """Kinds of layers with a recurrent state."""

    SHORT_CONV = "short convolution"
    MAMBA2 = "Mamba-2"
    GATED_DELTA = "gated delta net"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsPlan:
    """A mixture of experts."""

    router: Router
    inner_size: int
    """Elements between the matrices of an expert."""
    is_gated: bool = True
    """Whether experts have a gate."""
    activation: ExpertActivation
    has_bias: bool = False
    """Whether the layers of experts have biases."""
    shared_size: int = 0
    """Elements between the matrices of an MLP that every token passes besides; 0: there is none."""
    has_shared_gate: bool = False
    """Whether a number of each token, through a sigmoid, is the factor of that MLP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """A layer with a recurrent state, in the place of attention. Sizes of its state are those of `ModelSpec.state`."""

    kind: StateKind
    inner_size: int
    """Outputs of a token behind the recurrence or convolution, before the last matrix."""
    groups: int = 1
    """Mamba-2: parts of the inner size that the norm behind the recurrence extends over."""
    conv_bias: bool = False
    proj_bias: bool = False
    norm_eps: float = 1e-6
    """Of the norm behind the recurrence."""
    time_step_limit: tuple[float, float] = (0.0, float("inf"))
    """Mamba-2: bounds of the time step."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What may differ between the layers of a model."""

    scale: float
    """Factor of q.k."""
    window: int | None = None
    """Latest positions that a query sees; None is all."""
    rope: Rope | None = None
    """None: q and k are not rotated."""
    head_dim: int | None = None
    """None: the model's. Layers that differ in this, or in the next two, are those of `ModelSpec.unequal_kv`."""
    num_kv_heads: int | None = None
    """None: the model's."""
    donor: int | None = None
    """The layer whose keys and values it reads; None: it has its own."""
    inner_size: int | None = None
    """Elements between the matrices of its MLP; None: the model's."""
    has_values: bool = True
    """Whether a matrix computes v. Otherwise v is what k is before its norm and rotation."""
    experts: ExpertsPlan | None = None
    """None: it has none."""
    has_mlp: bool = True
    """Whether it has an MLP, beside experts if there are some."""
    has_mixer: bool = True
    """Whether it has attention, or what has a state in its place. A layer without it has an MLP or experts alone."""
    state: StatePlan | None = None
    """What is in the place of its attention; None: attention. A layer with a state has no keys and values."""

    @property
    def has_kv(self) -> bool:
        """Whether it has keys and values, its own or another layer's."""
        return self.has_mixer and self.state is None

    @property
    def has_moe(self) -> bool:
        """Whether a mixture of experts is in the place of its MLP."""
        return self.experts is not None and not self.has_mlp


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Factor `1 + beta * ln(1 + floor(position / length))` of a rotated query."""

    beta: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder whose layers are attention, or what has a state in its place, and an MLP."""

    spec: ModelSpec
    layers: tuple[LayerPlan, ...]
    inner_size: int
    """Elements between the matrices of the MLP."""
    activation: str
    """A key of `ops.ACTIVATIONS`."""
    norm_eps: float
    tied: bool
    """The head is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: QKNorm = QKNorm.NONE
    rotary_dim: int | None = None
    """Leading elements of a head that are rotated; None is all."""
    query_growth: QueryGrowth | None = None
    softcap: float | None = None
    """Scores of attention become `softcap * tanh(score / softcap)`."""
    has_sinks: bool = False
    """Whether each head's softmax has a further term, a weight, that no value belongs to."""
    has_output_gate: bool = False
    """Whether the matrix of q gives a gate behind each head's query, whose sigmoid multiplies the head's output."""
    value_norm: bool = False
    """Whether v is normalised per head, without a weight."""
    extra_size: int = 0
    """Elements of what each layer gets of each token beside the residual."""
    extra_vocab_size: int = 0
    is_fused: bool = False
    """The checkpoint stores q, k and v as one matrix, and gate and up as another."""
    is_gated: bool = True
    """Whether the MLP has a gate."""
    is_layer_norm: bool = False
    """Whether norms are layer norms with a bias, and not root mean square norms."""
    embedding_scale: float = 1.0
    """Factor of the embeddings."""
    residual_scale: float = 1.0
    """Factor of what attention and MLP add to the residual."""
    logit_divisor: float = 1.0
    logit_softcap: float | None = None
    """Logits become `softcap * tanh(logit / softcap)`."""
