"""The shadow model of block diffusion: what a pass over an open block fills in is a hash of all that it sees.

What a page holds of a token stands for the whole of its block: a page whose block was computed when positions of it
were masked, or were others, is noticed by the next chunk that reads it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

from sluice.types import Chunk, SamplingParams

MASK = (1 << 20) - 1
"""The input at positions that have no token yet. Tokens are below it."""
SURE = 0.6
"""Share of the drawn tokens whose confidence is not above the threshold."""


def block_oracle(
    prompt: Sequence[int], sampling: SamplingParams, *, sample_index: int, vocab_size: int, block_size: int
) -> tuple[int, ...]:
    """Return the output that a request must have over the shadow model of block diffusion, under every schedule. The
    arguments are those of `oracle`.

    >>> from sluice.testing import resolved
    >>> block_oracle((5, 6, 7), resolved(max_tokens=6), sample_index=0, vocab_size=256, block_size=4)
    (247, 88, 69, 137, 73, 204)
    """
    assert sampling.max_tokens is not None and sampling.seed is not None, sampling
    tokens, end = list(prompt), len(prompt) + sampling.max_tokens
    while len(tokens) < end:
        known = len(tokens)
        start = known // block_size * block_size
        block = [*tokens[start:], *[MASK] * (start + block_size - known)]
        while MASK in block:
            block = denoised(tokens[:start], block, sampling.seed, sample_index, vocab_size)
        stops = (at for at in range(known - start, block_size) if block[at] in sampling.stop_token_ids)
        stop = next(stops, None)
        tokens[start:] = block if stop is None else block[: stop + 1]
        if stop is not None:
            break
    return tuple(tokens[len(prompt) : end])


def denoised(before: Sequence[int], block: Sequence[int], seed: int, sample_index: int, vocab_size: int) -> list[int]:
    """Return an open block after one more pass: at least one position more has its token."""
    seen = zlib.crc32(array("q", [*before, *block]).tobytes(), (seed * 31 + sample_index) & 0xFFFFFFFF)
    drawn = {at: _mixed(seen + 2 * at) % vocab_size for at, token in enumerate(block) if token == MASK}
    confidence = {at: _mixed(seen + 2 * at + 1) / 0x100000000 for at in drawn}
    surest = max(confidence, key=lambda at: (confidence[at], -at))
    return [
        drawn[at] if at in drawn and (at == surest or confidence[at] > SURE) else token
        for at, token in enumerate(block)
    ]


class ShadowBlocks:
    """The open blocks of a shadow runner's slots, and what its pages hold of blocks.

    Args:
        size: tokens of a block.
    """

    def __init__(self, size: int, vocab_size: int) -> None:
        self._size = size
        self._vocab_size = vocab_size
        self._open: dict[int, tuple[int, list[int]]] = {}
        """Slot -> where its open block begins, and the block's inputs."""

    def opened(self, slot: int) -> None:
        """Forget what a slot held: it is filled anew."""
        self._open.pop(slot, None)

    def inputs(self, chunk: Chunk) -> tuple[int, ...]:
        """Return what the pages hold of a chunk: each token with a hash of the inputs of its block."""
        assert chunk.start % self._size == chunk.end % self._size == 0, f"{chunk} is not of whole blocks"
        assert chunk.samples == (chunk.num_drafts > 0), f"{chunk} samples without an open block, or has one in vain"
        tokens = list(chunk.token_ids)
        if chunk.num_drafts:
            begins = chunk.end - self._size
            if self._open.get(chunk.slot, (-1, []))[0] != begins:
                self._open[chunk.slot] = begins, [*tokens[begins - chunk.start :], *[MASK] * chunk.num_drafts]
            tokens[begins - chunk.start :] = self._open[chunk.slot][1]
        assert len(tokens) == chunk.length, f"{chunk} has {len(tokens)} tokens"
        blocks = [tokens[at : at + self._size] for at in range(0, chunk.length, self._size)]
        return tuple(_held(token, block) for block in blocks for token in block)

    def brought(
        self, chunk: Chunk, held: Sequence[int], sampling: SamplingParams, sample_index: int
    ) -> tuple[int, ...]:
        """Run a pass over the open block of a chunk. Return its tokens if it is whole now, () if it is not.

        Args:
            held: what the pages hold up to the chunk's end.
        """
        assert sampling.seed is not None, sampling
        begins, block = self._open[chunk.slot]
        before = [each % (MASK + 1) for each in held[:begins]]
        for at in range(0, begins, self._size):
            whole = before[at : at + self._size]
            right = [_held(token, whole) for token in whole]
            assert list(held[at : at + self._size]) == right, f"{chunk} reads a block at {at} that was not whole"
        block = denoised(before, block, sampling.seed, sample_index, self._vocab_size)
        self._open[chunk.slot] = begins, block
        return () if MASK in block else tuple(block[self._size - chunk.num_drafts :])


def _held(token: int, block: Sequence[int]) -> int:
    """Return what a page holds of a token of a block."""
    return zlib.crc32(array("q", block).tobytes()) * (MASK + 1) + token


def _mixed(value: int) -> int:
    """Return 32 bits of a hash."""
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16
