"""Flags of vLLM and SGLang that are no options of Sluice: what each sets here, or why it is refused.

Flags that mean the same as one of our options are that option's aliases instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sluice.config.base import ConfigError, flag
from sluice.config.json_flag import JsonFlag, fields_of_flag
from sluice.config.kv_events import KvEventsConfig
from sluice.config.speculative import SpeculativeConfig
from sluice.types import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag that is on or off, and sets one of our options to a value. None: Sluice works that way anyway."""

    option: str
    on: str | int | bool | None
    off: str | int | bool | None
    includes: str | None = None
    """A value of the option that may be given beside the flag, which goes further."""

    def translated(self, name: str, value: Any) -> tuple[str, Any] | None:
        """Return the option and its value; None if there is nothing to set.

        Raises:
            ConfigError: the value is not true or false.
        """
        if not isinstance(value, bool):
            raise ConfigError(f"{flag(name)} must be true or false, got {value!r}")
        chosen = self.on if value else self.off
        return None if chosen is None else (self.option, chosen)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A flag for something that Sluice does in one way, or not at all."""

    accepted: tuple[str | int | bool, ...]
    """The values that ask for what Sluice does anyway."""
    otherwise: str
    """What to do instead of sending another value."""
    short: str = ""
    """The flag's short form."""
    takes_value: bool = True
    """Whether a value follows the flag on the command line. Others are on or off."""

    def translated(self, name: str, value: Any) -> None:
        """Accept a value that changes nothing.

        Raises:
            ConfigError: any other value.
        """
        if any(str(value).lower() == str(known).lower() for known in self.accepted):
            return
        values = " or ".join(f"{flag(name)} {str(known).lower()}" for known in self.accepted)
        only = f"only {values} is supported" if self.takes_value and values else "it is not supported"
        raise ConfigError(f"{flag(name)} {value}: {only}; {self.otherwise}")


NO_EXPERTS = "--tp-size shares every layer evenly between devices"
TEXT_ONLY = "models of text alone are served"
NO_TREES = "guesses are a chain; --speculative-num-steps sets how many there are"
EXACT = "a guess counts if it is the token that would have come"
BY_NAME = "--lora-modules NAME=PATH loads an adapter, and requests name it as their model"
ALL_LOADED = "adapters stay in host memory until they are unloaded"
NO_TRANSFER = "leave it out; prefill and decode share one engine"
NO_CLIENT_CERTIFICATES = "clients send API keys and no certificates; a proxy in front can check these"
REQUEST_LOG = "--log-level info logs one line for every call"


def _on_or_off(accepted: tuple[bool, ...], otherwise: str) -> Fixed:
    return Fixed(accepted, otherwise, takes_value=False)


FOREIGN: Mapping[str, Switch | Fixed | JsonFlag] = {
    "enable_mixed_chunk": Switch("schedule", "mixed", "prefill-first"),
    "disable_radix_cache": Switch("enable_prefix_caching", False, True),
    "enable_chunked_prefill": Switch("chunked_prefill_size", None, -1),
    "disable_overlap_schedule": Switch("enable_overlap", False, True),
    "enable_dynamic_chunking": Switch("dynamic_chunking", 0, None),
    "enable_priority_scheduling": Switch("schedule_policy", "priority", None, includes="fcfs"),
    # Devices and processes
    "data_parallel_size": Fixed((1,), "start one server for each replica", "-dp"),
    "dp_size": Fixed((1,), "start one server for each replica"),
    "ep_size": Fixed((1,), NO_EXPERTS),
    "enable_expert_parallel": _on_or_off((False,), NO_EXPERTS),
    "enable_dp_attention": _on_or_off((False,), NO_EXPERTS),
    "api_server_count": Fixed((1,), "one process serves HTTP"),
    "pp_async_batch_depth": Fixed((0,), "--depth sets the steps in flight"),
    "pp_max_micro_batch_size": Fixed((), "streams are divided evenly among the steps in flight"),
    # Checkpoints
    "trust_remote_code": _on_or_off((True, False), "code of a checkpoint never runs"),
    "load_format": Fixed(("auto", "safetensors"), "convert the weights to safetensors"),
    "tokenizer_mode": Fixed(("auto", "hf", "fast"), "the checkpoint's tokenizer is used, by the tokenizers library"),
    "skip_tokenizer_init": _on_or_off((False,), "send token ids as prompts; they need no tokenizer"),
    "hf_overrides": Fixed(("{}",), "change the checkpoint's config.json"),
    "json_model_override_args": Fixed(("{}",), "change the checkpoint's config.json"),
    "rope_scaling": Fixed((), "write it into the checkpoint's config.json"),
    "task": Fixed(("auto", "generate", "embed", "embedding"), "every model generates and embeds"),
    "runner": Fixed(("auto", "generate", "pooling"), "every model generates and embeds"),
    "is_embedding": _on_or_off((True, False), "every model generates and embeds"),
    "language_model_only": _on_or_off((True,), TEXT_ONLY),
    "limit_mm_per_prompt": Fixed(("{}",), TEXT_ONLY),
    # Adapters
    "lora": Fixed((), BY_NAME),
    "lora_scaled": Fixed((), f"{BY_NAME}; its own scale counts"),
    "max_cpu_loras": Fixed((), ALL_LOADED),
    "max_loaded_loras": Fixed((), ALL_LOADED),
    "fully_sharded_loras": _on_or_off((False,), "adapters are divided as the layers are that they change"),
    "lora_dtype": Fixed(("auto",), "adapters have the dtype of the model"),
    "lora_target_modules": Fixed(("all",), "adapters may change every linear layer"),
    "lora_backend": Fixed((), "leave it out"),
    "lora_eviction_policy": Fixed(("lru",), "the adapter that was used least recently gives up its place"),
    # Memory
    "swap_space": Fixed((0,), "--kv-host-bytes keeps KV in host memory, --kv-disk on a disk"),
    "cpu_offload_gb": Fixed((0,), "weights stay on the device"),
    "num_gpu_blocks_override": Fixed((), "--max-total-tokens sets the size of the KV pool"),
    "kv_cache_memory_bytes": Fixed((), "--max-total-tokens sets the size of the KV pool"),
    "enable_hierarchical_cache": _on_or_off((False,), "--kv-host-bytes keeps KV in host memory"),
    "hicache_size": Fixed((0,), "--kv-host-bytes keeps KV in host memory"),
    "hicache_ratio": Fixed((), "--kv-host-bytes keeps KV in host memory"),
    "kv_events_config": JsonFlag(
        fields_of_flag("--kv-events-config", KvEventsConfig), accepted=MappingProxyType({"publisher": ("zmq",)})
    ),
    "kv_transfer_config": Fixed((), NO_TRANSFER),
    "disaggregation_mode": Fixed(("null",), NO_TRANSFER),
    # Steps
    "stream_interval": Fixed((1,), "every token is sent as soon as it is known"),
    "sampling_backend": Fixed(("pytorch",), "leave it out"),
    "grammar_backend": Fixed(("llguidance", "none"), "leave it out; llguidance holds answers to grammars"),
    "structured_outputs_config": Fixed(("{}",), "leave it out; llguidance holds answers to grammars"),
    "guided_decoding_backend": Fixed(("auto", "guidance"), "leave it out; llguidance holds answers to grammars"),
    "constrained_json_whitespace_pattern": Fixed((), "send guided_whitespace_pattern with each request"),
    "constrained_json_disable_any_whitespace": Fixed((True, False), "", takes_value=False),
    "compilation_config": Fixed((), "--disable-cuda-graph and --cuda-graph-max-bs control CUDA graphs", "-O"),
    "enable_torch_compile": _on_or_off((False,), "leave it out; fused kernels are used where there are any"),
    "max_seq_len_to_capture": Fixed((), "leave it out; CUDA graphs hold contexts of every length"),
    "speculative_config": JsonFlag(fields_of_flag("--speculative-config", SpeculativeConfig), "-sc"),
    "speculative_eagle_topk": Fixed((1,), NO_TREES),
    "speculative_ngram_min_bfs_breadth": Fixed((1,), NO_TREES),
    "speculative_ngram_max_bfs_breadth": Fixed((1,), NO_TREES),
    "speculative_accept_threshold_single": Fixed((1, "1.0"), EXACT),
    "speculative_accept_threshold_acc": Fixed((1, "1.0"), EXACT),
    "max_logprobs": Fixed((MAX_LOGPROBS,), f"up to {MAX_LOGPROBS} alternatives of a token are given"),
    # The server
    "allow_credentials": _on_or_off((False,), "leave it out; the server uses no cookies"),
    "allowed_methods": Fixed(('["*"]',), "leave it out; pages may send GET, HEAD and POST"),
    "allowed_headers": Fixed(('["*"]',), "leave it out; pages may send every header"),
    "ssl_ca_certs": Fixed((), NO_CLIENT_CERTIFICATES),
    "ssl_cert_reqs": Fixed((0,), NO_CLIENT_CERTIFICATES),
    "ssl_keyfile_password": Fixed((), "decrypt the key: openssl pkey -in key.pem -out plain.pem"),
    "enable_ssl_refresh": _on_or_off((False,), "start the server again when there is another certificate"),
    "enable_metrics": _on_or_off((True,), "/metrics is always served"),
    "disable_log_stats": _on_or_off((True,), "/metrics and /server_info show them"),
    "disable_log_requests": _on_or_off((True,), REQUEST_LOG),
    "enable_log_requests": _on_or_off((False,), REQUEST_LOG),
    "log_requests": _on_or_off((False,), REQUEST_LOG),
    "uvicorn_log_level": Fixed((), REQUEST_LOG),
    "log_level_http": Fixed((), REQUEST_LOG),
    "response_role": Fixed(("assistant",), "leave it out"),
    "enable_auto_tool_choice": _on_or_off((True, False), "the model may always choose, if a request says so"),
}
