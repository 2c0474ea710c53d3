"""PrefixIndex: which prefixes a replica probably has in its cache, by digests of blocks of tokens."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

DIGEST_BYTES = 8


def block_digests(tokens: Sequence[int], block_tokens: int, extra_key: str = "") -> Iterator[bytes]:
    """Yield a digest for each whole block: of its tokens, of all tokens before it, and of the namespace."""
    ids, digest = array("i", tokens), extra_key.encode()
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        digest = blake2b(digest + ids[start : start + block_tokens].tobytes(), digest_size=DIGEST_BYTES).digest()
        yield digest


class PrefixIndex:
    """A bounded set of digests, least recently sent blocks leave first.

    A digest stands for a whole prefix, so the tree of prefixes needs no links. A block is as recent as the latest
    prompt through it, and the blocks of one prompt are the more recent the nearer they are to its beginning: none
    leaves before those behind it.

    Args:
        capacity: most blocks.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, digests: Sequence[bytes]) -> int:
        """Return how many of a prompt's first blocks are in the set."""
        for index, digest in enumerate(digests):
            if digest not in self._digests:
                return index
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> None:
        """Note that a prompt was sent."""
        for digest in reversed(digests[: self._capacity]):
            self._digests[digest] = None
            self._digests.move_to_end(digest)
        while len(self._digests) > self._capacity:
            self._digests.popitem(last=False)
