"""What is refused of the options that were given: those that contradict each other, or would have no effect."""

from __future__ import annotations

from sluice.assembly.speculation import refuse_drafting_ranks, refuse_speculation
from sluice.config import CHUNKING_OFF, ConfigError, EngineConfig, ModelConfig, itl_micros, kv_event_settings


def refuse_contradictions(config: EngineConfig, device_type: str) -> None:
    """Check the options against each other and the device.

    Args:
        config: with a policy.
        device_type: "cpu" or "cuda".

    Raises:
        ConfigError: a combination that cannot be honoured, by name and value.
    """
    _refuse_whole_prompts(config)
    _refuse_without_effect(config)
    _refuse_target(config)
    _refuse_slices(config)
    refuse_speculation(config.speculative)
    kv_event_settings(config.kv_events, has_prefix_cache=config.cache.enable_prefix_caching)
    refuse_drafting_ranks(config)
    _refuse_graphs_of_a_cpu(config.model, device_type)
    _refuse_fraction(config, device_type)


def _refuse_whole_prompts(config: EngineConfig) -> None:
    """Refuse options about chunks where prompts are never cut."""
    scheduler, partial = config.scheduler, config.scheduler.max_partial_prefills
    if scheduler.chunked_prefill_size not in CHUNKING_OFF:
        return
    of_chunks = {
        "--long-prefill-token-threshold": scheduler.long_prefill_token_threshold,
        "--dynamic-chunking": scheduler.dynamic_chunking,
        "--max-partial-prefills": partial if (partial or 1) > 1 else None,
        "--itl-target": scheduler.itl_target if itl_micros(scheduler.itl_target) else None,
    }
    for name, value in of_chunks.items():
        if value is not None:
            raise ConfigError(
                f"{name} {value} needs prompts that may be cut, but --chunked-prefill-size is"
                f" {scheduler.chunked_prefill_size}"
            )


def _refuse_without_effect(config: EngineConfig) -> None:
    """Refuse options that would have no effect beside the others."""
    scheduler, cache = config.scheduler, config.cache
    smoothing = scheduler.dynamic_chunking_smoothing
    if smoothing is not None and not 0 < smoothing <= 1:
        raise ConfigError(f"--dynamic-chunking-smoothing must be above 0 and at most 1, got {smoothing}")
    if smoothing is not None and scheduler.dynamic_chunking is None:
        raise ConfigError(f"--dynamic-chunking-smoothing {smoothing} needs --dynamic-chunking POSITION")
    if scheduler.dynamic_chunking is not None and scheduler.dynamic_chunking < 0:
        raise ConfigError(f"--dynamic-chunking must be a position, or 0, got {scheduler.dynamic_chunking}")
    policy = scheduler.schedule_policy
    if scheduler.schedule_low_priority_values_first and policy != "priority":
        raise ConfigError(f"--schedule-low-priority-values-first needs --schedule-policy priority, got {policy!r}")
    if scheduler.enable_priority_preemption and policy not in ("priority", "deadline"):
        raise ConfigError(f"--enable-priority-preemption needs --schedule-policy priority or deadline, got {policy!r}")
    if not config.trace.trace_token_ids and config.trace.trace is None:
        raise ConfigError("--no-trace-token-ids needs a trace (--trace FILE)")
    if scheduler.schedule_policy == "lpm" and not cache.enable_prefix_caching:
        raise ConfigError("--schedule-policy lpm needs the prefix cache, but it is off (--no-enable-prefix-caching)")
    if scheduler.reserve == "full" and scheduler.schedule_conservativeness is not None:
        raise ConfigError(
            f"--schedule-conservativeness {scheduler.schedule_conservativeness} needs --reserve ratio, got 'full'"
        )


def _refuse_target(config: EngineConfig) -> None:
    """Refuse an ITL target that cannot be kept, and options that need one."""
    scheduler, quantile = config.scheduler, config.scheduler.itl_quantile
    if not itl_micros(scheduler.itl_target):
        if quantile is not None:
            raise ConfigError(f"--itl-quantile {quantile} needs a target (--itl-target TIME)")
        if config.trace.cost_model is not None:
            raise ConfigError(f"--cost-model {config.trace.cost_model} needs a target (--itl-target TIME)")
        return
    shown = f"--itl-target {scheduler.itl_target}"
    if scheduler.schedule != "mixed":
        raise ConfigError(
            f"{shown} needs --schedule mixed, got {scheduler.schedule!r}: there prompts keep streams waiting"
        )
    if scheduler.dynamic_chunking is not None:
        raise ConfigError(
            f"--dynamic-chunking {scheduler.dynamic_chunking} has no effect with {shown}, which sizes every chunk by"
            f" the time it takes; give one of them"
        )
    if quantile is not None and not 0.5 <= quantile <= 0.999:
        raise ConfigError(f"--itl-quantile must be from 0.5 to 0.999, got {quantile}")


def _refuse_slices(config: EngineConfig) -> None:
    """Refuse chunks that are divided among steps where they cannot be."""
    size = config.scheduler.sliced_chunk_size
    if size is not None and size < 0:
        raise ConfigError(f"--sliced-chunk-size must be at least 1, or 0 for off, got {size}")
    if not size:
        return
    if not itl_micros(config.scheduler.itl_target):
        raise ConfigError(f"--sliced-chunk-size {size} needs a target (--itl-target TIME)")
    contradicted = contradicted_by(config)
    if contradicted is not None:
        raise ConfigError(f"--sliced-chunk-size {size} has no effect with {contradicted}; leave one of them out")


def contradicted_by(config: EngineConfig) -> str | None:
    """Return an option that keeps chunks from being divided among steps; None: there is none."""
    scheduler = config.scheduler
    if scheduler.max_prefill_tokens is not None:
        return f"--max-prefill-tokens {scheduler.max_prefill_tokens}"
    if scheduler.long_prefill_token_threshold is not None:
        return f"--long-prefill-token-threshold {scheduler.long_prefill_token_threshold}"
    return None


def _refuse_graphs_of_a_cpu(model: ModelConfig, device_type: str) -> None:
    graphs = {"--disable-cuda-graph": model.disable_cuda_graph, "--cuda-graph-max-bs": model.cuda_graph_max_bs}
    for name, value in graphs.items():
        if value and device_type != "cuda":
            shown = name if value is True else f"{name} {value}"
            raise ConfigError(f"{shown} needs --device cuda, got {device_type}")
    if model.disable_cuda_graph and model.cuda_graph_max_bs is not None:
        raise ConfigError(f"--cuda-graph-max-bs {model.cuda_graph_max_bs} has no effect with --disable-cuda-graph")


def _refuse_fraction(config: EngineConfig, device_type: str) -> None:
    tokens = config.cache.max_total_tokens
    static, whole = config.model.mem_fraction_static, config.model.gpu_memory_utilization
    if static is not None and whole is not None:
        raise ConfigError(f"--mem-fraction-static {static} and --gpu-memory-utilization {whole}: give one of them")
    name, fraction = ("--mem-fraction-static", static) if whole is None else ("--gpu-memory-utilization", whole)
    if fraction is None:
        return
    # What is static leaves room for activations; what is used may be everything.
    is_share = 0 < fraction < 1 if whole is None else 0 < fraction <= 1
    if not is_share:
        raise ConfigError(f"{name} must be a share between 0 and 1, got {fraction}")
    if device_type != "cuda":
        raise ConfigError(
            f"{name} {fraction} needs --device cuda, got {device_type}; there --max-total-tokens sets"
            f" the size of the KV pool"
        )
    if tokens is not None:
        raise ConfigError(f"{name} {fraction} has no effect with --max-total-tokens {tokens}")


def check_context(length: int | None, own: int) -> None:
    """Check `--context-length`.

    Args:
        length: its value, in tokens.
        own: the context of the model, in tokens.

    Raises:
        ConfigError: the model's context is shorter.
    """
    if length is not None and not 2 <= length <= own:
        raise ConfigError(f"--context-length must be from 2 to the model's context of {own} tokens, got {length}")
