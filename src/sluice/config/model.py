"""Options of the model, its memory and the trace."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option


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
        "share of a GPU's memory for all but steps",
        unset="what the largest step leaves",
        more="The most that weights, KV and other contents of the GPU's memory may take together. The largest"
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
        "implementation: auto, native or transformers",
        more="auto: transformers, with our paged attention, where there is no native implementation of the checkpoint's"
        " architecture; slower, and needs the extra `transformers`.",
        choices=("auto", "native", "transformers"),
        sglang="--model-impl",
        vllm="--model-impl",
        metavar="IMPL",
    )
    attention_backend: str = option(
        "auto",
        "attention backend: auto, triton, flashinfer, native or reference",
        more="auto: triton on cuda, the compiled kernels (native) on cpu, and the reference, in plain torch, where they"
        " do not support the model. flashinfer needs its package and a CUDA compiler. See [gpu.md](gpu.md).",
        sglang="--attention-backend",
        vllm="--attention-backend",
        metavar="BACKEND",
    )
    kv_cache_dtype: str = option(
        "auto",
        "type of keys and values: auto, fp8_e4m3 or fp8_e5m2",
        more="auto: the model's dtype. Eight bits hold twice the tokens of a bfloat16 model, at some loss: e4m3 has"
        " three bits of mantissa and ends at 448, e5m2 two and 57344. They need --attention-backend triton.",
        sglang="--kv-cache-dtype",
        vllm="--kv-cache-dtype",
        metavar="DTYPE",
    )
    disable_cuda_graph: bool = option(
        False,
        "launch steps that only decode kernel by kernel",
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
        "debug: detect steps that read uninitialized data",
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
