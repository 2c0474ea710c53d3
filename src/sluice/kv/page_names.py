"""What names a page wherever it lies: a digest of its namespace and of all tokens up to its end."""

from __future__ import annotations

from array import array
from hashlib import blake2b

from sluice.kv.prefix import Node
from sluice.types import PageKey

DIGEST_BYTES = 16


def digest_of(node: Node) -> bytes:
    """Of a node whose parents have theirs."""
    parent = node.parent
    assert parent is not None, f"{node} has no parent"
    if parent.copies is not None:
        return _digest(parent.copies.digest, node.key, b"")
    return _digest(b"", node.key, parent.key)


def key_of(node: Node) -> PageKey:
    """The name of a published node."""
    parent, top = node.parent, node.parent
    assert node.copies is not None and parent is not None and top is not None, f"{node} was never published"
    while top.parent is not None:
        top = top.parent
    return PageKey(
        node.copies.digest,
        b"" if parent.copies is None else parent.copies.digest,
        _tokens(node.key),
        top.key.decode(),
    )


def key_behind(parent: bytes, key: bytes, extra_key: str) -> PageKey:
    """Of a page of tokens `key` behind one of digest `parent`, empty if there is none."""
    return PageKey(_digest(parent, key, extra_key.encode()), parent, _tokens(key), extra_key)


def _tokens(key: bytes) -> tuple[int, ...]:
    tokens = array("i")
    tokens.frombytes(key)
    return tuple(tokens)


def _digest(parent: bytes, key: bytes, extra_key: bytes) -> bytes:
    """Of the tokens `key` behind those of digest `parent`; the first page's is salted with its namespace."""
    if parent:
        return blake2b(parent + key, digest_size=DIGEST_BYTES).digest()
    return blake2b(key, digest_size=DIGEST_BYTES, salt=_salt(extra_key)).digest()


def _salt(extra_key: bytes) -> bytes:
    return blake2b(extra_key, digest_size=16).digest()
