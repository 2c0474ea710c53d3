"""The Llama family: Llama 2, 3 and 3.x, Mistral, Qwen2, Qwen3. Parameters carry Hugging Face's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from sluice.attention.base import AttentionBackend, ForwardBatch, LayerKV
from sluice.models.base import CausalLM, WeightRules
from sluice.models.hf_config import CheckpointConfig
from sluice.models.layers import GatedMLP, RMSNorm, Rotary, rotate
from sluice.models.llama_config import LlamaConfig, read_llama_config
from sluice.models.spec import ModelSpec


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions; q and k are normalised per head first in Qwen3."""

    def __init__(self, config: LlamaConfig, window: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, head_dim, qkv_bias = config.hidden_size, config.head_dim, config.qkv_bias
        q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.window = window
        self.q_proj = nn.Linear(hidden, q_size, bias=qkv_bias, dtype=dtype)
        self.k_proj = nn.Linear(hidden, kv_size, bias=qkv_bias, dtype=dtype)
        self.v_proj = nn.Linear(hidden, kv_size, bias=qkv_bias, dtype=dtype)
        self.o_proj = nn.Linear(q_size, hidden, bias=config.output_bias, dtype=dtype)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else nn.Identity()

    def forward(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv: LayerKV,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """[N, hidden_size] to the same; `angles` are cos and sin of the batch's positions."""
        q = rotate(self.q_norm(self._heads(self.q_proj(x))), *angles)
        k = rotate(self.k_norm(self._heads(self.k_proj(x))), *angles)
        kv.store(batch.kv_slots, k, self._heads(self.v_proj(x)))
        out, _ = attention.attend(q, kv, batch, scale=self.scale, window=self.window)
        return self.o_proj(out.flatten(1))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class LlamaLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual."""

    def __init__(self, config: LlamaConfig, window: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = LlamaAttention(config, window, dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.mlp = GatedMLP(hidden, config.inner_size, config.activation, bias=config.mlp_bias, dtype=dtype)

    def forward(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        kv: LayerKV,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """[N, hidden_size] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), angles, batch, kv, attention)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(CausalLM):
    """A decoder of the Llama family."""

    rules = WeightRules(prefix="model.", ignored=("rotary_emb.inv_freq",))

    def __init__(self, config: LlamaConfig, spec: ModelSpec) -> None:
        super().__init__()
        dtype = spec.dtype
        self.spec = spec
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.rotary = Rotary(config.rope, config.head_dim, dtype)
        self.layers = nn.ModuleList(LlamaLayer(config, window, dtype) for window in config.windows)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> Self:
        """See `CausalLM.from_checkpoint`."""
        config = read_llama_config(checkpoint.architecture, checkpoint.fields)
        spec = ModelSpec(
            architecture=checkpoint.architecture,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=checkpoint.eos_token_ids,
            dtype=dtype,
        )
        return cls(config, spec)

    @property
    def tied(self) -> bool:
        """See `CausalLM.tied`."""
        return self.lm_head is None

    def forward(self, batch: ForwardBatch, kv: Sequence[LayerKV], attention: AttentionBackend) -> torch.Tensor:
        """See `CausalLM.forward`."""
        x = self.embed_tokens(batch.input_ids)
        angles = self.rotary(batch.positions)
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            x = layer(x, angles, batch, layer_kv, attention)
        return self.norm(x[batch.logit_rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.logits`."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(hidden, head.weight)
