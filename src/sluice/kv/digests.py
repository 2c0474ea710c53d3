"""Digests: the names of pages that hold across processes.

The digest of a page covers its namespace and all tokens up to its end, so equal digests mean equal KV on equal weights,
and a router can tell which pages of a prompt an engine holds without knowing the engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def digest_behind(parent: bytes, key: bytes, extra_key: bytes) -> bytes:
    """Return the digest of a page.

    Args:
        parent: digest of the page before it; empty for the first one.
        key: the tokens of the page, four bytes each in the machine's order.
        extra_key: the namespace in UTF-8. The first page alone is salted with it, the others through that one.
    """
    if parent:
        return blake2b(parent + key, digest_size=DIGEST_BYTES).digest()
    salt = blake2b(extra_key, digest_size=blake2b.SALT_SIZE).digest()
    return blake2b(key, digest_size=DIGEST_BYTES, salt=salt).digest()


def page_digests(tokens: Sequence[int], page_size: int, extra_key: str = "") -> Iterator[bytes]:
    """Yield the digests of the full pages of a context, in order.

    Args:
        tokens: its token ids, from the beginning on.
        page_size: tokens of a page.
        extra_key: its namespace.
    """
    known, digest, namespace = array("i", tokens), b"", extra_key.encode()
    for start in range(0, len(known) - page_size + 1, page_size):
        digest = digest_behind(digest, known[start : start + page_size].tobytes(), namespace)
        yield digest
