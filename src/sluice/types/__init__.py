"""The vocabulary: what passes between the scheduler, the engine and the runner.

A request is two counters and a step closes the gap between them. A step is one immutable `BatchPlan`, and its outcome
is one `BatchResult`. Everything here is plain data: no tensor, no clock, no text.
"""

from sluice.types.adapters import NO_ADAPTERS, AdapterInfo, AdapterLimits, AdapterSwap, AdapterUse
from sluice.types.experts import DENSE, ExpertCounts
from sluice.types.plan import BatchPlan, Chunk, ChunkSlice, NewSlot, PlanError, PredictedStep, Regime
from sluice.types.result import (
    BatchResult,
    CachedTokens,
    Drafted,
    FinishReason,
    Occupancy,
    Output,
    RowError,
    TokenLogprobs,
)
from sluice.types.sampling import (
    MAX_BIAS,
    MAX_LOGPROB_IDS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_SAMPLES,
    MAX_TOKEN_ID,
    MAX_TOP_K,
    REPETITION_PENALTIES,
    SEED_RANGE,
    SamplingDefaults,
    SamplingParams,
    seed_source,
)
from sluice.types.scheduler_limits import (
    CACHED_SHARE,
    CHUNKS_BY_TIME,
    CLASS_NAMES,
    DEFAULT_CLASS,
    ITL_AUTO,
    NGRAM,
    Bound,
    ClassName,
    DraftLimits,
    Group,
    NgramLimits,
    OffloadLimits,
    Priority,
    PriorityClass,
    SchedulerLimits,
    StateLimits,
    WindowLimits,
    WorkItems,
)
from sluice.types.submit import NO_SAMPLING, Submit, namespace_of, parts_of
from sluice.types.tiers import (
    CopyDone,
    PageCopy,
    PageKey,
    PageOffer,
    StoredPage,
    Tier,
    TierLimits,
    TierUse,
    why_none_longer,
)
