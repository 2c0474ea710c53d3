"""The answers of the routes that describe the server."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.types import Bound, Regime, Tier
from sluice.types.footprint import Footprint


class Status(msgspec.Struct):
    status: str
    """`ok`, or what the server is doing instead."""


class Loading(msgspec.Struct):
    """How far an engine is loaded."""

    part: str
    done: int
    total: int | None
    """None: it is unknown."""
    seconds: float
    """Seconds since its process was started."""


class EngineHealth(msgspec.Struct, kw_only=True):
    pid: int | None
    restarts: int
    silent_seconds: float
    """Seconds since its last sign of life."""
    phase: str | UnsetType = UNSET
    loading: Loading | UnsetType = UNSET
    step: int | UnsetType = UNSET
    steps_done: int | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    """Tokens computed in the steps done, prompts included."""


class Health(Status):
    engine: EngineHealth


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    """When the server was started, in Unix seconds."""
    owned_by: str
    max_model_len: int
    """vLLM's addition, here the most tokens of one request."""
    parent: str | UnsetType = UNSET
    """vLLM's addition: the model, of which this is an adapter."""


class ModelList(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


class ModelInfo(msgspec.Struct):
    """SGLang's description of the model."""

    model_path: str
    tokenizer_path: str
    is_generation: bool
    max_total_num_tokens: int
    """Tokens that the KV pool holds."""
    context_length: int
    """Context length of the model, in tokens."""


class TokenizerInfo(msgspec.Struct):
    """vLLM's description of the tokenizer, by which lm-eval uses it from afar."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    vocab_size: int
    model_max_length: int
    chat_template: str | None


class Version(msgspec.Struct):
    version: str


class CacheFlushed(msgspec.Struct):
    success: bool
    cached_pages: int
    """Pages that stay cached, because requests use them."""


class EffectiveOption(msgspec.Struct):
    value: str | float | bool | None
    """None: no limit, or unknown, as the reason says."""
    reason: str
    group: str
    flag: str


class Recovery(msgspec.Struct):
    """Counts of recoveries since the server began."""

    replayed_requests: int
    replayed_tokens: int
    ended_requests: int
    """Requests ended because engines died of them."""
    last_resume_seconds: float | None


class TierState(msgspec.Struct):
    """How full a tier behind the device is, and its copies since the engine started, in pages."""

    tier: Tier
    total: int
    used: int
    stored: int
    failed_stores: int
    loaded: int
    failed_loads: int
    lost: int
    retired: int


class StepPace(msgspec.Struct):
    """What a step was expected to take, in microseconds."""

    regime: Regime
    target: int
    """Microseconds that it might take."""
    predicted: int
    at_quantile: int
    is_infeasible: bool


class RegimeTimes(msgspec.Struct):
    """Predicted and measured times of the steps of one kind, in seconds, and the sum of their differences."""

    steps: int
    predicted: float
    measured: float
    error: float


class ItlState(msgspec.Struct):
    """How steps keep the ITL target, in seconds."""

    target: float
    margin: float
    regimes: dict[Regime, RegimeTimes]
    late: dict[str, int]
    """Steps that took longer than a feasible target, by how much."""
    infeasible: int


class ClassTargets(msgspec.Struct):
    """Targets of a priority class, in seconds."""

    ttft_target: float
    itl_target: float | None
    """Null without an ITL target."""


class LastStep(msgspec.Struct):
    step: int
    rows: int
    tokens: int
    decode_rows: int
    prefill_rows: int
    prefill_tokens: int
    bound_by: Bound
    """The limit that kept the step from holding more."""
    failed: bool
    seconds: float
    micros: int
    """What it added to the time between the tokens of a stream."""
    pace: StepPace | None
    """Null without an ITL target."""
    drafted: int
    """Drafts of its rows."""
    accepted: int
    """Drafts that were accepted."""


class PromptState(msgspec.Struct):
    """How far a prompt is read that takes more than one step."""

    request_id: int
    """Id at the engine, as in the log and in `X-Sluice-Engine-Request`."""
    read: int
    """Tokens that are computed, or were cached."""
    total: int
    seconds_left: float | None
    """Expected seconds until it is read; null while that is not known."""


class RingState(msgspec.Struct):
    """What was loaded for contexts longer than the device since the engine started."""

    bytes: int
    seconds: float
    """Seconds spent loading."""
    waited: float
    """Seconds in which a context had to wait because its blocks had not come."""
    bounds_bytes: int
    """What a sparse policy keeps of pages now."""


class AdapterState(msgspec.Struct):
    """An adapter beside the model."""

    name: str
    """Empty if it was unloaded and is still in use, or in its place."""
    digest: str
    users: int
    """Requests that wait for their turn or run."""
    held: int
    """Requests that wait until it is loaded."""


class ServerInfo(msgspec.Struct):
    """Every option with its reason, and the state of the engine at the end of its step."""

    model: str
    model_path: str
    served_model_name: str
    """The name of the model again: routers of SGLang look for it under these names."""
    config: dict[str, EffectiveOption]
    engine_pid: int | None
    engine_restarts: int
    recovery: Recovery
    disabled_tiers: dict[Tier, str]
    """Why the engine serves without a tier."""
    running: int
    waiting: int
    compiling: int
    """Requests whose grammar is compiled."""
    held: int
    """Requests whose adapter is not loaded."""
    adapters: list[AdapterState]
    """Adapters that are loaded, or waited for."""
    free_pages: int
    cached_pages: int
    total_pages: int
    partial: int
    preemptions: int
    loading: int
    records: int
    """Records of recurrent states, of a model that has such states."""
    used_records: int
    """Those that a cached prefix has, or that are being made."""
    window_pages: int
    """Pages of layers with a window, of a model that has some of its own for them."""
    used_window_pages: int
    """Those that running requests hold."""
    tiers: list[TierState]
    retractions: int
    memory: Footprint
    """Bytes by part."""
    priority_classes: dict[str, ClassTargets]
    """Empty unless requests are ordered by deadline."""
    prompts: list[PromptState]
    """Prompts that are being read."""
    ring: RingState
    itl: ItlState | None
    """None without a target, and before the first step."""
    last_step: LastStep | None
