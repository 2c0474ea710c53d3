"""Every option, once: its name, default, help and group.

The command line, `LLM(...)` and the documentation are built from these dataclasses. `resolve.resolve` fills what
was left open and refuses what cannot be honoured; nothing downstream guesses a default.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sluice.types import SchedulerLimits

CHUNKING_OFF = (-1, 0)
MAX_PAGE_SIZE = 1024
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


class ConfigError(ValueError):
    """An option, or a combination of options, that cannot be honoured."""


@dataclass(frozen=True, slots=True)
class Option:
    """How one field shows itself to users."""

    help: str
    """One line, for `--help`."""
    more: str = ""
    """What else there is to know, for the documentation."""
    unset: str = ""
    """What an open option comes to, in words; needed where the default is None."""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Other names that are accepted: those of the other engines, where they mean the same."""
    sglang: str = ""
    """SGLang's flag for the same thing, if it has one."""
    vllm: str = ""
    """vLLM's."""
    metavar: str = "N"
    positive: bool = False
    """Set values must be integers of at least 1."""
    secret: bool = False
    """The value is shown to nobody."""


def option(default: Any, help: str, **rest: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, **rest)})


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is computed."""

    model: str = option(
        "",
        "folder or hub id of a Hugging Face checkpoint",
        unset="the bundled model",
        sglang="--model-path",
        vllm="MODEL",
        metavar="MODEL",
    )
    dtype: str = option(
        "auto",
        "type: auto, float64, float32, bfloat16 or float16",
        more="Of weights, KV and computation alike. auto: what the checkpoint says.",
        choices=("auto", "float64", "float32", "bfloat16", "float16"),
        sglang="--dtype",
        vllm="--dtype",
        metavar="TYPE",
    )
    device: str = option(
        "auto",
        "device: auto, cpu, cuda or cuda:N",
        more="auto: cuda if there is one.",
        sglang="--device",
        metavar="DEVICE",
    )
    mem_fraction_static: float | None = option(
        None,
        "share of a GPU's memory for all but what steps need",
        unset="what the largest step leaves",
        more="Weights, KV and whatever else is in the GPU's memory already may take so much of it together. The largest"
        " step is run at the start to see what it takes; a share that leaves less is refused.",
        sglang="--mem-fraction-static",
        metavar="SHARE",
    )
    threads: int | None = option(
        None,
        "threads that compute, on cpu",
        unset="physical cores, or OMP_NUM_THREADS",
        more="Cores are those that this process may use: its affinity, its cpuset and its container's share count.",
        positive=True,
    )
    cpu_kernels: str = option(
        "auto",
        "what computes on a cpu: auto, a level of the compiled kernels, or torch",
        more="auto: the best level that the processor has. The kernels take bfloat16 and float32, heads and pages of"
        " multiples of 16; all else, and an installation without a C++ compiler, runs on torch.",
        choices=("auto", "amx", "avx512-bf16", "avx512", "avx2", "scalar", "torch"),
        metavar="LEVEL",
    )
    model_impl: str = option(
        "auto",
        "whose code computes it: auto, native or transformers",
        more="auto: transformers, with our paged attention, where there is no native implementation of the checkpoint's"
        " architecture; slower, and needs the extra `transformers`.",
        choices=("auto", "native", "transformers"),
        sglang="--model-impl",
        vllm="--model-impl",
        metavar="IMPL",
    )
    attention_backend: str = option(
        "auto",
        "what attends: auto, triton, flashinfer, native or reference",
        more="auto: triton on cuda, the compiled kernels (native) on cpu, and the reference, in plain torch, where they"
        " do not take the model. flashinfer needs its package and a CUDA compiler. See [gpu.md](gpu.md).",
        sglang="--attention-backend",
        vllm="--attention-backend",
        metavar="BACKEND",
    )
    kv_cache_dtype: str = option(
        "auto",
        "what keys and values are kept in: auto, fp8_e4m3 or fp8_e5m2",
        more="auto: the model's dtype. Eight bits hold twice the tokens of a bfloat16 model, at some loss: e4m3 has"
        " three bits of mantissa and ends at 448, e5m2 two and 57344. They need --attention-backend triton.",
        sglang="--kv-cache-dtype",
        vllm="--kv-cache-dtype",
        metavar="DTYPE",
    )
    disable_cuda_graph: bool = option(
        False,
        "run the steps that only decode kernel by kernel",
        more="On cuda they are replayed as graphs otherwise, which takes the host a fraction of the time.",
        aliases=("enforce_eager",),
        sglang="--disable-cuda-graph",
        vllm="--enforce-eager",
    )
    cuda_graph_max_bs: int | None = option(
        None,
        "most rows of a step that is replayed as a graph",
        unset="max-running-requests, at most 256",
        more="Graphs are captured for 1, 2, 4, 8, 16, 24, ... rows up to it; a step is padded to the next.",
        sglang="--cuda-graph-max-bs",
        vllm="--max-cudagraph-capture-size",
        positive=True,
    )
    debug_uninitialized_reads: bool = option(
        False,
        "debug: notice when a step reads what was not written",
        aliases=("poison_unread",),
        more="A slot of the device holds poison until its request sampled, and again once that was read; so does what"
        " a step has read of its inputs. A request whose step reads it ends with an error.",
    )


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool."""

    page_size: int | None = option(
        None,
        "tokens per KV page",
        unset="32 on cpu, 64 on cuda",
        more="A power of two. Prefixes are shared, and prompts are cut, in whole pages. Left open it shrinks to fit"
        " into the other sizes.",
        aliases=("block_size",),
        sglang="--page-size",
        vllm="--block-size",
        positive=True,
    )
    max_total_tokens: int | None = option(
        None,
        "size of the KV pool in tokens",
        unset="from free memory",
        sglang="--max-total-tokens",
        positive=True,
    )
    enable_prefix_caching: bool = option(
        True,
        "reuse the KV of equal prompt beginnings",
        sglang="--disable-radix-cache",
        vllm="--enable-prefix-caching",
    )
    kv_host_bytes: int | None = option(
        None,
        "host memory for KV that the device has no room for",
        unset="none",
        more="On a GPU, whose memory is another. See [tiers.md](tiers.md).",
        positive=True,
    )
    kv_disk: str | None = option(
        None,
        "file for KV that memory has no room for",
        unset="no file",
        more="One engine uses it at a time, and it outlives the engine: a restart finds its prefixes again. It holds"
        " prompts, as tokens and as KV, and is readable by its owner alone. See [tiers.md](tiers.md).",
        metavar="FILE",
    )
    kv_disk_bytes: int | None = option(
        None,
        "size of this file",
        unset="8 GiB",
        more="Taken at the start. Needs a file.",
        positive=True,
    )
    kv_write_policy: str | None = option(
        None,
        "when KV is copied to these tiers",
        unset="write-through",
        more="write-through: as soon as a page is full and computed. write-back: when the tier above has no room for it"
        " any more. selective: when it is used a second time. Needs a tier.",
        choices=("write-through", "write-back", "selective"),
        sglang="--hicache-write-policy",
        metavar="POLICY",
    )


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold."""

    schedule: str = option(
        "mixed",
        "what shares a step",
        more="mixed: decodes and prefill chunks share a step, decodes first, so a running stream never waits for a"
        " prompt. prefill-first: prefill goes before decodes, and they share no step.",
        choices=("mixed", "prefill-first"),
        sglang="--enable-mixed-chunk",
    )
    chunked_prefill_size: int | None = option(
        None,
        "prefill tokens of a step; -1: off",
        unset="128 on cpu (256 with AMX), 2048 on cuda",
        more="Longer prompts are cut, in whole pages. With -1 or 0 prompts are never cut.",
        sglang="--chunked-prefill-size",
    )
    dynamic_chunking: int | None = option(
        None,
        "shrink chunks as contexts grow; 0: by the model",
        unset="off",
        more="The number is the position at which a prompt token takes twice as long as the first one, as attention has"
        " as much to do there as all else; 0 computes it from the model's sizes. A chunk deep in a prompt then takes"
        " as long as one of chunked-prefill-size tokens at its beginning, or a quarter of its tokens if that is more.",
        sglang="--enable-dynamic-chunking",
        metavar="POSITION",
    )
    max_batch_tokens: int | None = option(
        None,
        "tokens of a step, decodes too",
        unset="chunk + running requests",
        more="Decodes come off it first, so it must be larger than max-running-requests. Left open it is"
        " chunked-prefill-size + max-running-requests.",
        aliases=("max_num_batched_tokens",),
        vllm="--max-num-batched-tokens",
        positive=True,
    )
    max_running_requests: int | None = option(
        None,
        "requests on the device at once",
        unset="64 on cpu, 256 on cuda",
        aliases=("max_num_seqs",),
        sglang="--max-running-requests",
        vllm="--max-num-seqs",
        positive=True,
    )
    max_prefill_tokens: int | None = option(
        None,
        "tokens of a step that prefills",
        unset="no such limit",
        more="Decodes come off it. The next prompt in order waits rather than exceed it; one that is larger than all of"
        " it goes alone, cut if prompts may be cut.",
        sglang="--max-prefill-tokens",
        positive=True,
    )
    long_prefill_token_threshold: int | None = option(
        None,
        "prefill tokens of one request in a step",
        unset="no such limit",
        vllm="--long-prefill-token-threshold",
        positive=True,
    )
    max_prefill_requests: int | None = option(
        None,
        "requests prefilled in one step",
        unset="no such limit",
        aliases=("prefill_max_requests",),
        sglang="--prefill-max-requests",
        positive=True,
    )
    max_partial_prefills: int | None = option(
        None,
        "prompts half computed at once",
        unset="4",
        more="1: one after the other. More: short prompts overtake long ones, and whoever came first has half of every"
        " step. Left open it is 1 if prompts are never cut.",
        aliases=("max_num_partial_prefills",),
        vllm="--max-num-partial-prefills",
        positive=True,
    )
    reserve: str = option(
        "ratio",
        "memory counted for running outputs",
        more="full: all that running requests may make, so nobody is ever retracted. ratio: a share of it that sinks"
        " while memory lasts and rises when it does not.",
        choices=("ratio", "full"),
    )
    schedule_conservativeness: float | None = option(
        None,
        "scales the share of --reserve ratio",
        unset="1",
        more="0 counts no output.",
        sglang="--schedule-conservativeness",
        metavar="X",
    )
    schedule_policy: str = option(
        "fcfs",
        "order of waiting requests",
        more="fcfs: arrival. lpm: longest prefix match, whoever has most of its prompt cached. priority: the request's"
        " priority, larger values first, then arrival. Under all of them what was sent back goes first, and nobody"
        " waits for ever.",
        choices=("fcfs", "lpm", "priority"),
        aliases=("scheduling_policy",),
        sglang="--schedule-policy",
        vllm="--scheduling-policy",
    )
    schedule_low_priority_values_first: bool = option(
        False,
        "smaller priorities go first",
        more="Needs the policy priority.",
        sglang="--schedule-low-priority-values-first",
    )
    enable_priority_preemption: bool = option(
        False,
        "running requests may make way for higher priorities",
        more="Needs the policy priority. Who makes way goes on later, with what it has.",
    )
    max_queued_requests: int | None = option(
        None,
        "requests that may wait",
        unset="no such limit",
        more="Whoever comes while so many wait is refused at once, with status 503 and a `Retry-After`. Retracted"
        " requests wait however many there are.",
        aliases=("max_num_queued_reqs",),
        sglang="--max-queued-requests",
        vllm="--max-num-queued-reqs",
        positive=True,
    )
    max_queued_tokens: int | None = option(
        None,
        "uncached tokens that may wait",
        unset="no such limit",
        more="What is still to be prefilled of all prompts, cached beginnings left out: it bounds the time to the first"
        " token. A prompt is refused if it would exceed it, unless nothing waits.",
        aliases=("max_num_queued_tokens",),
        vllm="--max-num-queued-tokens",
        positive=True,
    )
    enable_overlap: bool = option(
        False,
        "plan a step while the one before runs",
        more="The same as --depth 2 --lookahead 1.",
        aliases=("async_scheduling",),
        vllm="--async-scheduling",
    )
    depth: int | None = option(
        None,
        "steps in flight at once",
        unset="1",
        more="1: synchronous. 2: the next step is launched before the one before is waited for.",
        positive=True,
    )
    lookahead: int | None = option(
        None,
        "unread samples of a planned request",
        unset="0",
        more="How many samples of a request may still be on their way when its next token is planned; at most"
        " depth - 1.",
    )

    def limits(self) -> SchedulerLimits:
        """What the scheduler needs of it, once resolved."""
        chunk, batch, running = self.chunked_prefill_size, self.max_batch_tokens, self.max_running_requests
        partial, lookahead = self.max_partial_prefills, self.lookahead
        assert chunk is not None and batch is not None and running is not None, f"not resolved: {self}"
        assert partial is not None and lookahead is not None, f"not resolved: {self}"
        scale = self.schedule_conservativeness
        return SchedulerLimits(
            schedule=self.schedule,
            chunked_prefill_size=chunk,
            max_batch_tokens=batch,
            max_running_requests=running,
            lookahead=lookahead,
            max_prefill_tokens=self.max_prefill_tokens or 0,
            long_prefill_token_threshold=self.long_prefill_token_threshold or 0,
            max_prefill_requests=self.max_prefill_requests or 0,
            max_partial_prefills=partial,
            reserve=self.reserve,
            conservativeness=1.0 if scale is None else scale,
            policy=self.schedule_policy,
            low_priority_values_first=self.schedule_low_priority_values_first,
            priority_preemption=self.enable_priority_preemption,
            max_queued_requests=self.max_queued_requests or 0,
            max_queued_tokens=self.max_queued_tokens or 0,
            dynamic_chunking=self.dynamic_chunking or 0,
        )


@dataclass(frozen=True)
class OffloadConfig:
    """Contexts longer than the device, which need a tier behind it."""

    offload_above: int | None = option(
        None,
        "tokens above which a request's KV stays on the tier",
        unset="what the KV pool holds",
        more="Prompt and output together. Such a request takes little of the device, however long it is, and is served"
        " more slowly; others are served beside it. See [long-contexts.md](long-contexts.md).",
        positive=True,
        aliases=("stream_above",),
    )
    ring_blocks: int | None = option(
        None,
        "blocks of KV that long contexts pass through",
        unset="8",
        more="At most half of them are attended to while the others load; a ring of one loads and attends in turn.",
        positive=True,
    )
    ring_block_tokens: int | None = option(
        None,
        "tokens of such a block",
        unset="1024",
        more="A multiple of page-size. A block holds one layer of so many tokens.",
        positive=True,
    )
    sparse_policy: str | None = option(
        None,
        "what a long context attends to: full, or window:SINKS:RECENT",
        unset="full",
        more="full: everything, exactly. window: while it decodes, so many tokens of its beginning and so many of its"
        " end, in whole blocks, and what is on the device; a prompt sees all of itself.",
        metavar="POLICY",
    )


@dataclass(frozen=True)
class TraceConfig:
    """The record of every step."""

    trace: str | None = option(
        None,
        "file for a line on every step and every input",
        unset="no trace",
        more="An old one is replaced. `sluice trace FILE` shows it, `sluice replay FILE` plans it again. See"
        " [trace.md](trace.md).",
        metavar="FILE",
    )
    trace_token_ids: bool = option(
        True,
        "the trace holds token ids",
        more="Without, only how many there are, and the trace cannot be replayed. Needs a trace.",
    )


@dataclass(frozen=True)
class ServerConfig:
    """Where and how HTTP is served."""

    host: str = option("127.0.0.1", "address to listen on", sglang="--host", vllm="--host", metavar="HOST")
    port: int = option(8000, "port to listen on; 0 picks a free one", sglang="--port", vllm="--port")
    served_model_name: str | None = option(
        None,
        "name of the model in the API",
        unset="the model's own name",
        sglang="--served-model-name",
        vllm="--served-model-name",
        metavar="NAME",
    )
    api_key: str | None = option(
        None,
        "key that every request must carry",
        unset="no key is needed",
        more="As `Authorization: Bearer KEY`; only `/health`, `/ready` and `/live` need none. Other users of a machine"
        " can read a command line: a file is better.",
        sglang="--api-key",
        vllm="--api-key",
        metavar="KEY",
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "file with such keys, one a line",
        unset="none",
        more="Any of them will do. It is read at the start.",
        metavar="FILE",
    )
    max_request_bytes: int = option(
        32 << 20,
        "largest body of a request, in bytes",
        more="A larger one is answered 413, before it is read if its size is declared.",
        positive=True,
    )
    log_level: str = option(
        "warning",
        "messages on standard error: debug, info, warning or error",
        more="info: one line for every call, without what was said, and one for every chunk of a prompt that is cut.",
        choices=LOG_LEVELS,
        sglang="--log-level",
        metavar="LEVEL",
    )
    log_format: str = option(
        "text",
        "form of these messages: text or json",
        more="json: one object a line. Both carry the id of the call, which clients send or receive as `X-Request-Id`.",
        choices=LOG_FORMATS,
        metavar="FORM",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector for a span on every call",
        unset="no spans",
        more="OTLP over HTTP; without a path, `/v1/traces` is added. Needs the extra `otel`.",
        sglang="--otlp-traces-endpoint",
        vllm="--otlp-traces-endpoint",
        metavar="URL",
    )
    max_engine_restarts: int = option(
        10,
        "engines started again in 10 minutes",
        more="An engine that dies, or is stuck, is replaced and every request goes on ([recovery](recovery.md)). With"
        " more deaths the server ends with status 1; 0: with the first.",
    )
    heartbeat_timeout: float = option(
        5.0,
        "seconds without a sign of life of the engine",
        more="Then it is replaced. It gives one in every layer, and every second while it waits; so at least 2.",
        metavar="SECONDS",
    )
    step_timeout: float = option(
        600.0, "seconds of one wait for the device", more="Then the engine is replaced.", metavar="SECONDS"
    )
    start_timeout: float = option(
        1800.0, "seconds in which the model must be loaded", more="Downloads included.", metavar="SECONDS"
    )
    drain_timeout: float = option(
        30.0,
        "seconds to finish what runs after SIGTERM",
        more="New requests get 503 meanwhile. 0: what runs is cut off.",
        metavar="SECONDS",
    )
    enable_fault_injection: bool = option(False, "allow --inject-fault", more="For tests: never where it matters.")
    inject_fault: str | None = option(
        None,
        "faults, as crash@20,slow@40=60",
        unset="none",
        more="Needs enable-fault-injection. crash, hang, alloc, nan or drop with @STEP, slow@STEP=SECONDS; see"
        " [recovery](recovery.md).",
        metavar="FAULTS",
    )


def threads_from_environment() -> int | None:
    """What OMP_NUM_THREADS says, by which libraries that compute are told; None if it says nothing."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdecimal() and int(first) > 0 else None


GROUPS: Mapping[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "offload": OffloadConfig,
    "trace": TraceConfig,
    "server": ServerConfig,
}
ENGINE_GROUPS = ("model", "cache", "scheduler", "offload", "trace")


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is told. Options left `None` are open until `resolved`."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    offload: OffloadConfig = OffloadConfig()
    trace: TraceConfig = TraceConfig()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """Build from flat option names (dashes or underscores, aliases allowed).

        Raises:
            ConfigError: a name that is no engine option (named, with the known ones), or a bad value.
        """
        values: dict[str, dict[str, Any]] = {group: {} for group in ENGINE_GROUPS}
        for name, value in canonical(options).items():
            values[_group_of(name)][name] = value
        config = cls(**{group: GROUPS[group](**values[group]) for group in ENGINE_GROUPS})
        for group in ENGINE_GROUPS:
            check_values(getattr(config, group))
        return config


@dataclass(frozen=True, slots=True)
class Switch:
    """Another engine's flag that sets one of our options to a value."""

    option: str
    on: str | bool
    off: str | bool


SWITCHES: Mapping[str, Switch] = {
    "enable_mixed_chunk": Switch("schedule", "mixed", "prefill-first"),
    "disable_radix_cache": Switch("enable_prefix_caching", False, True),
}


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Engine options under our own names: dashes, aliases and switches resolved.

    Raises:
        ConfigError: a name that is no engine option, an option given twice, or a switch that is not true or false.
    """
    groups = [GROUPS[group] for group in ENGINE_GROUPS]
    known = {name for group in groups for name, _ in options_of(group)}
    aliases = {alias: name for group in groups for name, meta in options_of(group) for alias in meta.aliases}
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = given.replace("-", "_")
        if (switch := SWITCHES.get(name)) is not None:
            if not isinstance(value, bool):
                raise ConfigError(f"{flag(name)} must be true or false, got {value!r}")
            name, value = switch.option, switch.on if value else switch.off
        name = aliases.get(name, name)
        if name not in known:
            raise ConfigError(f"unknown option {given!r}; known: {', '.join(sorted(known))}")
        if name in found:
            raise ConfigError(f"option {name!r} is given twice")
        found[name] = value
    return found


def _group_of(name: str) -> str:
    return next(group for group in ENGINE_GROUPS if any(name == item.name for item in fields(GROUPS[group])))


def flag(name: str) -> str:
    """An option's flag on the command line."""
    return "--" + name.replace("_", "-")


def options_of(group: type) -> Iterator[tuple[str, Option]]:
    """The (field name, Option) pairs of one group, in order."""
    for item in fields(group):
        yield item.name, item.metadata["option"]


def check_values(group: Any) -> None:
    """Each value alone: choices, integers, signs.

    Raises:
        ConfigError: naming the option, its value and what would be accepted.
    """
    for item in dataclasses.fields(group):
        meta: Option = item.metadata["option"]
        value = getattr(group, item.name)
        shown = flag(item.name)
        if value is None and item.default is None:
            continue
        if meta.choices and value not in meta.choices:
            raise ConfigError(f"{shown} must be one of {', '.join(meta.choices)}, got {value!r}")
        if "bool" in item.type:
            if not isinstance(value, bool):
                raise ConfigError(f"{shown} must be true or false, got {value!r}")
        elif "float" in item.type:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{shown} must be a number of at least 0, got {value!r}")
        elif "int" in item.type:
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{shown} must be an integer, got {value!r}")
            if meta.positive and value < 1:
                raise ConfigError(f"{shown} must be at least 1, got {value}")
        elif not isinstance(value, str):
            raise ConfigError(f"{shown} must be a text, got {value!r}")
