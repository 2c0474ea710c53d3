"""Options of the model, its memory and the trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.config.base import option

QUANTIZATIONS = ("none", "int8", "int4", "compressed-tensors", "fp8", "gptq", "awq", "mxfp4", "gguf")
"""none: plain weights; int8, int4, fp8: quantised while they are loaded; formats of checkpoints (`models.formats`),
of which fp8 is one, too."""


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it is computed."""

    model: str = option(
        "",
        "folder, GGUF file or hub id of a checkpoint",
        unset="SmolLM2-135M-Instruct",
        more="Of a hub id that holds GGUF files, OWNER/NAME:Q4_0 takes the one whose name ends so, and"
        " OWNER/NAME:FILE.gguf the one of that name.",
        aliases=("model_path",),
        sglang="--model-path",
        vllm="MODEL",
        metavar="MODEL",
    )
    tokenizer: str | None = option(
        None,
        "folder or hub id of the tokenizer",
        unset="the model's own",
        more="Its files are the tokenizer's and the chat template's of a checkpoint.",
        aliases=("tokenizer_path",),
        sglang="--tokenizer-path",
        vllm="--tokenizer",
        metavar="MODEL",
    )
    revision: str | None = option(
        None,
        "branch, tag or commit of the model on the hub",
        unset="main",
        more="Needs a MODEL that is a hub id.",
        sglang="--revision",
        vllm="--revision",
        metavar="NAME",
    )
    download_dir: str | None = option(
        None,
        "folder for downloads from the hub",
        unset="the cache of huggingface_hub",
        sglang="--download-dir",
        vllm="--download-dir",
        metavar="FOLDER",
    )
    context_length: int | None = option(
        None,
        "maximum tokens of a request, prompt and output together",
        unset="the model's context",
        more="At most the model's context. A smaller value also makes the KV pool smaller where it would otherwise hold"
        " --max-running-requests requests of full length.",
        aliases=("max_model_len",),
        sglang="--context-length",
        vllm="--max-model-len",
        positive=True,
    )
    generation_config: str = option(
        "auto",
        "sampling settings of the model: auto, none or a folder",
        more="What a request gets for temperature, top_p, top_k, min_p, repetition_penalty and max_tokens if it leaves"
        " them open. auto: from the checkpoint's generation_config.json, where `do_sample: false` means temperature 0."
        " A folder: from that file in it. none: the API's defaults.",
        aliases=("sampling_defaults",),
        spellings={"vllm": "none", "openai": "none", "model": "auto"},
        sglang="--sampling-defaults",
        vllm="--generation-config",
        metavar="FOLDER",
    )
    override_generation_config: str | None = option(
        None,
        "sampling settings in place of the model's, as JSON",
        unset="none",
        more="For example '{\"temperature\": 0.6}'. The fields are those of generation_config.json; null: open.",
        vllm="--override-generation-config",
        metavar="JSON",
    )
    seed: int | None = option(
        None,
        "seed of the requests that give none",
        unset="random for every request",
        more="The same requests in the same order then get the same answers.",
        aliases=("random_seed",),
        sglang="--random-seed",
        vllm="--seed",
    )
    dtype: str = option(
        "auto",
        "data type: auto, float64, float32, bfloat16 or float16",
        more="For weights, KV cache and computation. auto: the checkpoint's type, or float32 where torch computes"
        " without compiled kernels on a CPU that has no fast products of 16 bits.",
        choices=("auto", "float64", "float32", "bfloat16", "float16"),
        spellings={"half": "float16", "float": "float32"},
        sglang="--dtype",
        vllm="--dtype",
        metavar="TYPE",
    )
    device: str = option(
        "auto",
        "device: auto, cpu, cuda or cuda:N",
        more="auto: cuda if there is a GPU, else cpu.",
        sglang="--device",
        metavar="DEVICE",
    )
    mem_fraction_static: float | None = option(
        None,
        "fraction of GPU memory for weights and KV",
        unset="what steps leave free",
        more="The rest is for the activations of a step. Sluice runs the largest possible step at the start to measure"
        " what it needs, and refuses a fraction that leaves less.",
        sglang="--mem-fraction-static",
        metavar="SHARE",
    )
    gpu_memory_utilization: float | None = option(
        None,
        "fraction of GPU memory for all that the engine takes",
        unset="what steps leave free",
        more="As --mem-fraction-static, but the activations of a step and CUDA graphs count too.",
        vllm="--gpu-memory-utilization",
        metavar="SHARE",
    )
    threads: int | None = option(
        None,
        "compute threads on cpu",
        unset="physical cores, or OMP_NUM_THREADS",
        more="Of each rank. Only the cores that this process may use count: CPU affinity, cpusets and container limits"
        " are respected. Ranks of one machine divide them.",
        positive=True,
    )
    cpu_kernels: str = option(
        "auto",
        "CPU kernels: auto, an instruction set, or torch",
        more="auto: the best instruction set that the processor has. The compiled kernels support bfloat16 and"
        " float32, with head sizes and page sizes that are multiples of 16. Everything else runs on torch, and so does"
        " an installation without a C++ compiler.",
        choices=("auto", "amx", "avx512-bf16", "avx512-vnni", "avx512", "avx2", "scalar", "torch"),
        metavar="LEVEL",
    )
    quantization: str | None = option(
        None,
        "quantise weights to int8, int4 or fp8, or name how the checkpoint's are quantised",
        unset="as the checkpoint says",
        more="int8: the weights of linear layers, embedding and head are quantised while they are loaded, which halves"
        " their memory and the time of a decode. int4: those of linear layers take four bits, in groups of 32 with one"
        " scale, and embedding and head int8. Both need --device cpu. fp8: those of linear layers, on a GPU. The other"
        " methods need not be set, as the checkpoint says them: one that is quantised in another way, or not at all, is"
        " refused. A CPU multiplies the weights of a GGUF file as they are stored; none dequantises them, and int8 and"
        " int4 quantise them again. See [quantization.md](quantization.md) for what is computed as it is stored, and"
        " what is dequantised to --dtype.",
        choices=QUANTIZATIONS,
        spellings={
            "gptq_marlin": "gptq",
            "awq_marlin": "awq",
            "w8a8_int8": "compressed-tensors",
            "w8a8_fp8": "compressed-tensors",
        },
        short="-q",
        sglang="--quantization",
        vllm="--quantization",
        metavar="METHOD",
    )
    model_impl: str = option(
        "auto",
        "model implementation: auto, native or transformers",
        more="auto: native if Sluice implements the architecture, else transformers' implementation with Sluice's"
        " paged attention. The latter is slower and needs the extra `transformers`.",
        choices=("auto", "native", "transformers"),
        sglang="--model-impl",
        vllm="--model-impl",
        metavar="IMPL",
    )
    attention_backend: str = option(
        "auto",
        "attention backend: auto, triton, flashinfer, native or reference",
        more="auto: triton on cuda, and native (the compiled kernels) on cpu; reference (plain torch) if these do not"
        " support the model. flashinfer needs its package and a CUDA compiler. See [gpu.md](gpu.md).",
        spellings={"FLASHINFER": "flashinfer", "TRITON_ATTN": "triton", "torch_native": "reference"},
        sglang="--attention-backend",
        vllm="--attention-backend",
        metavar="BACKEND",
    )
    kv_cache_dtype: str = option(
        "auto",
        "type of the KV cache: auto, int8, fp8_e4m3 or fp8_e5m2",
        more="auto: the model's dtype. In eight bits the same memory holds about twice the tokens of bfloat16, at some"
        " loss of precision. int8: with a scale for each token and KV head; needs --attention-backend native or"
        " reference ([quantization.md](quantization.md#kv-in-int8)). fp8: e4m3 has 3 bits of mantissa and a maximum of"
        " 448, e5m2 has 2 bits and a maximum of 57344; needs --attention-backend triton.",
        spellings={"fp8": "fp8_e4m3"},
        sglang="--kv-cache-dtype",
        vllm="--kv-cache-dtype",
        metavar="DTYPE",
    )
    disable_cuda_graph: bool = option(
        False,
        "do not use CUDA graphs",
        more="By default, steps on cuda that hold only decodes are replayed as CUDA graphs, which takes much less time"
        " on the host than launching each kernel.",
        aliases=("enforce_eager",),
        sglang="--disable-cuda-graph",
        vllm="--enforce-eager",
    )
    cuda_graph_max_bs: int | None = option(
        None,
        "largest batch size with a CUDA graph",
        unset="max-running-requests, at most 256",
        more="Graphs are captured for 1, 2, 4, 8, 16, 24, ... requests up to this size. A step is padded to the next"
        " size.",
        aliases=("max_cudagraph_capture_size",),
        sglang="--cuda-graph-max-bs",
        vllm="--max-cudagraph-capture-size",
        positive=True,
    )
    debug_uninitialized_reads: bool = option(
        False,
        "debug: detect steps that read uninitialized data",
        more="Slots whose request has not sampled, and inputs of a step that have been read, are filled with an"
        " invalid value; blocks of block diffusion are marked as open or not. If a step reads that value, or a block"
        " that is not open, its request ends with an error.",
    )

    @property
    def cache(self) -> Path | None:
        """Folder for downloads; None for the default of `huggingface_hub`."""
        return None if self.download_dir is None else Path(self.download_dir)


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool."""

    page_size: int | None = option(
        None,
        "tokens per KV page",
        unset="32 on cpu, 64 on cuda",
        more="A power of two. Prefixes are shared, and prompts are cut into chunks, in whole pages. If you do not set"
        " it, it is made smaller where other sizes require it.",
        aliases=("block_size",),
        sglang="--page-size",
        vllm="--block-size",
        positive=True,
    )
    max_total_tokens: int | None = option(
        None,
        "size of the KV pool in tokens",
        unset="what fits into memory",
        sglang="--max-total-tokens",
        positive=True,
    )
    enable_prefix_caching: bool = option(
        True,
        "reuse the KV cache of prompts that begin alike",
        sglang="--disable-radix-cache",
        vllm="--enable-prefix-caching",
    )
    kv_host_bytes: int | None = option(
        None,
        "bytes of host memory for KV behind the pool",
        unset="none",
        more="On a CPU it needs --max-total-tokens. The ranks of a machine share it evenly. See [tiers.md](tiers.md).",
        positive=True,
    )
    kv_disk: str | None = option(
        None,
        "file on a disk to cache KV in, behind memory",
        unset="no file",
        more="The file stays when the server ends, and the next server finds the prefixes in it. Only one engine can"
        " use it at a time. It holds prompts, as token ids and as KV; only its owner can read it. See"
        " [tiers.md](tiers.md).",
        metavar="FILE",
    )
    kv_disk_bytes: int | None = option(
        None,
        "size of the --kv-disk file in bytes",
        unset="8 GiB",
        more="The space is allocated at the start. Needs --kv-disk.",
        positive=True,
    )
    kv_write_policy: str | None = option(
        None,
        "when KV is copied to host memory and disk",
        unset="write-through",
        more="write-through: as soon as a page is full. write-back: when the page is evicted from the tier above."
        " selective: when the page is used a second time. Needs --kv-host-bytes or --kv-disk.",
        choices=("write-through", "write-back", "selective"),
        aliases=("hicache_write_policy",),
        spellings={
            "write_through": "write-through",
            "write_back": "write-back",
            "write_through_selective": "selective",
        },
        sglang="--hicache-write-policy",
        metavar="POLICY",
    )


@dataclass(frozen=True)
class OffloadConfig:
    """Contexts that do not fit on the device; they need host memory or a disk as a tier behind it."""

    offload_above: int | None = option(
        None,
        "offload requests with more tokens than this",
        unset="size of the KV pool",
        more="Counts prompt and output together. The KV of an offloaded request is in host memory or on the disk. It"
        " takes little device memory at any length, but is served more slowly; other requests run beside it. Needs"
        " --kv-host-bytes or --kv-disk. See [long-contexts.md](long-contexts.md).",
        positive=True,
    )
    ring_blocks: int | None = option(
        None,
        "blocks of the ring buffer for offloaded requests",
        unset="8",
        more="Their KV passes through this buffer on the device. Attention uses at most half of the blocks while the"
        " others load. With 1 block, loading and attention take turns.",
        positive=True,
    )
    ring_block_tokens: int | None = option(
        None,
        "tokens in a block of the ring buffer",
        unset="1024; on a CPU by measured speed",
        more="A multiple of --page-size. A block holds the KV of these tokens in one layer. On a CPU, how fast blocks"
        " load is measured at the start: a block should take 0.2 ms to load. A chunk that computes longer with a block"
        " than a step may take attends to parts of it.",
        positive=True,
    )
    sparse_policy: str | None = option(
        None,
        "attention of offloaded requests: full, window:SINKS:RECENT, quest:BUDGET, or import:MODULE:NAME",
        unset="full",
        more="full: exact attention to all tokens. window: decodes attend only to the first SINKS and the last RECENT"
        " tokens, in whole pages, and to what is on the device. quest:BUDGET[:LAYER]: from layer LAYER (2) on,"
        " decodes attend to BUDGET tokens, in whole pages: the first 64, the last 256, and the pages whose keys may"
        " score highest. import: the SparsePolicy that NAME of a Python module makes when it is called with the page"
        " size. Prompts attend to all their tokens, unless such a policy selects for them too.",
        metavar="POLICY",
    )


@dataclass(frozen=True)
class TraceConfig:
    """Files that an engine writes about its steps."""

    trace: str | None = option(
        None,
        "file to record every step and every request in",
        unset="no trace",
        more="An existing file is replaced. `sluice trace FILE` summarizes it, `sluice replay FILE` plans its steps"
        " again. See [trace.md](trace.md).",
        metavar="FILE",
    )
    trace_token_ids: bool = option(
        True,
        "record token ids in the trace",
        more="If off, only their numbers are recorded, and the trace cannot be replayed. Needs --trace.",
    )
    cost_model: str | None = option(
        None,
        "file that keeps what --itl-target learns",
        unset="learnt anew",
        more="Read at the start, written while the engine runs and at its end, so a later engine, or one that is"
        " started in the place of another, knows from its first step how long steps take. What was learnt on another"
        " machine, or of another model, dtype, number of threads or kernels, is left alone. Needs --itl-target.",
        metavar="FILE",
    )
