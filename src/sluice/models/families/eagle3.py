"""EAGLE-3: a layer that guesses tokens from a target's hidden states (Li et al., "EAGLE-3", 2025).

For a token at position p it reads the token's embedding and the target's state at p - 1: what enters a low, a middle
and a high layer there, joined by `fc`. Its output guesses the token at p + 1, and is its state for the guess after it,
where the target has not been yet.

A key is written at its token's position p, so that it depends on no later token, and requests with equal prefixes
share it. Position 0 has no state before it, and trained heads have no key for it. Its key and value are zeros here,
and `without_zero_key` takes them out of the sum again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.families.eagle3_config import NUM_STATES, Eagle3Config
from sluice.models.fp8_rows import plain
from sluice.models.layers import MLP, RMSNorm, Rotary, new_embedding
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.ops import Angles, Ops
from sluice.parallel.member import ALONE


class Eagle3Attention(nn.Module):
    """Attention over the head's own keys, from inputs of twice the hidden size."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        spec, dtype = config.layer.spec, config.layer.spec.dtype
        hidden, head_dim = spec.hidden_size, spec.head_dim
        self.head_counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.spec = spec.attention
        self.q_proj, self.k_proj, self.v_proj = (
            EmptyLinear(2 * hidden, heads * head_dim, bias=config.layer.qkv_bias, dtype=dtype)
            for heads in self.head_counts
        )
        self.o_proj: Layer = EmptyLinear(spec.num_heads * head_dim, hidden, bias=config.layer.output_bias, dtype=dtype)

    def pack(self, packer: Packer) -> None:
        """Join q, k and v into one layer."""
        self.qkv_proj = packer.linear(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = packer.linear(self.o_proj)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(
        self, x: torch.Tensor, angles: Angles, batch: ForwardBatch, kv: PagedKV, attention: Attention, ops: Ops
    ) -> torch.Tensor:
        """[N, 2 * hidden_size] to [R, hidden_size], of the tokens at `batch.logit_rows`."""
        projected = self.qkv_proj(x) * (batch.positions > 0)[:, None]
        q, k, v = projected.unflatten(-1, (-1, self.spec.head_dim)).split(self.head_counts, dim=1)
        q = ops.rotate_and_store(q, k, v, angles, None, kv, batch.kv_slots)
        if not len(batch.logit_rows):  # only the keys and values are wanted
            return x.new_empty((0, x.shape[1] // 2))
        out, lse = attention.attend(q, kv, batch, self.spec, need_lse=True)
        assert lse is not None, "asked for"
        rows = batch.logit_rows
        mixed: torch.Tensor = self.o_proj(without_zero_key(out[rows], lse[rows]).flatten(1))
        return mixed


def without_zero_key(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Take one key of zeros, with a value of zeros, out of attention.

    Such a key has the score 0 with every query, so that the sum of the weights is larger by 1 with it.

    Args:
        out: [N, heads, head_dim], attended with the key.
        lse: [N, heads], at least 0.

    Returns:
        [N, heads, head_dim] in the dtype of `out`; zeros where a query saw no other key.
    """
    others = -torch.expm1(-lse)
    weighted = out.to(lse.dtype) / others.clamp(min=torch.finfo(lse.dtype).eps)[..., None]
    return weighted.to(out.dtype)


class Eagle3Layer(nn.Module):
    """The layer between `fc` and the head."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer, spec = config.layer, config.layer.spec
        hidden, eps, dtype = spec.hidden_size, layer.norm_eps, spec.dtype
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.self_attn = Eagle3Attention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.mlp = MLP(layer, ALONE)
        self._norm_before_residual = config.norm_before_residual

    def pack(self, packer: Packer) -> None:
        self.self_attn.pack(packer)
        self.mlp.pack(packer)

    def forward(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        angles: Angles,
        batch: ForwardBatch,
        kv: PagedKV,
        attention: Attention,
        ops: Ops,
    ) -> torch.Tensor:
        """Return the output [R, hidden_size] of the tokens at `batch.logit_rows`.

        Args:
            embedded: [N, hidden_size], embeddings of the step's tokens.
            states: [N, hidden_size], the state before each token.
        """
        normed = plain(ops.norm(states, self.hidden_norm.norm))
        residual = normed if self._norm_before_residual else states
        both = torch.cat((plain(ops.norm(embedded, self.input_layernorm.norm)), normed), dim=-1)
        attended = self.self_attn(both, angles, batch, kv, attention, ops)
        x, normed_rows = ops.add_norm(residual[batch.logit_rows], attended, self.post_attention_layernorm.norm)
        out: torch.Tensor = x + self.mlp(normed_rows, ops)
        return out


class Eagle3(nn.Module):
    """An EAGLE-3 head. It keeps nothing of any request.

    Args:
        has_embedding: whether it has an embedding of its own; else it is given the target's.
    """

    embed_tokens: Layer | None
    target_ids: torch.Tensor | None
    """[draft_vocab_size] int64, the token of each guess; None: the same."""

    def __init__(self, config: Eagle3Config, *, has_embedding: bool) -> None:
        super().__init__()
        self.config = config
        spec, dtype = config.layer.spec, config.layer.spec.dtype
        self.fc: Layer = EmptyLinear(NUM_STATES * config.target_hidden_size, spec.hidden_size, bias=False, dtype=dtype)
        self.midlayer = Eagle3Layer(config)
        self.norm = RMSNorm(spec.hidden_size, config.layer.norm_eps, dtype)
        self.lm_head: Layer = EmptyLinear(spec.hidden_size, config.draft_vocab_size, bias=False, dtype=dtype)
        self.embed_tokens = new_embedding(spec.vocab_size, spec.hidden_size, dtype) if has_embedding else None
        self.rotary = Rotary(config.rope, spec.head_dim, dtype)
        self.register_buffer("target_ids", None)
        self.ops = Ops()

    def use(self, ops: Ops) -> None:
        """Compute the small operations with `ops`."""
        self.ops = ops

    def pack(self, packer: Packer) -> None:
        """Pack the weights, once, after they are loaded."""
        self.fc = packer.linear(self.fc)
        self.midlayer.pack(packer)
        self.lm_head = packer.linear(self.lm_head)
        if self.embed_tokens is not None:
            self.embed_tokens = packer.embedding(self.embed_tokens)

    def joined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the target's states [N, hidden_size] as the head reads them, from those of `target_layers`."""
        out: torch.Tensor = self.fc(torch.cat(tuple(states), dim=-1))
        return out

    def forward(
        self, batch: ForwardBatch, states: torch.Tensor, kv: Sequence[PagedKV], attention: Attention
    ) -> torch.Tensor:
        """Write the KV of a step's tokens, and return the states [R, hidden_size] of those at `batch.logit_rows`.

        Args:
            states: [N, hidden_size], of the token before each; any finite values at position 0.
        """
        assert self.embed_tokens is not None, "the head has no embedding, and was not given its target's"
        embedded = self.embed_tokens(batch.input_ids)
        angles = self.rotary(batch.positions)
        (pages,) = kv
        out: torch.Tensor = self.midlayer(embedded, states, angles, batch, pages, attention, self.ops)
        return out

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, vocab_size] of states [R, hidden_size]; -inf for tokens that it cannot guess."""
        own: torch.Tensor = self.lm_head(plain(self.ops.norm(states, self.norm.norm)))
        if self.target_ids is None:
            return own
        logits = own.new_full((len(own), self.config.layer.spec.vocab_size), -torch.inf)
        return logits.index_copy_(1, self.target_ids, own)
