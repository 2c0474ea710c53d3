"""Nodes of the prefix tree: where each is, and the name of its page."""

from __future__ import annotations

from array import array

from sluice.kv.digests import digest_behind
from sluice.types import PageKey

NOWHERE = -1
"""Stands for a page that a node does not have."""


class TierCopies:
    """A node's copies on the tiers behind the device, by the tier's level, fastest first."""

    __slots__ = ("children", "gone", "hits", "is_loading", "is_suspect", "pages", "readers", "storing")

    def __init__(self, num_tiers: int) -> None:
        self.pages = [NOWHERE] * num_tiers
        """The page of each tier that holds the node."""
        self.storing = [False] * num_tiers
        """Whether a copy is on its way to the tier."""
        self.children = [0] * num_tiers
        """Children of the node that have a copy on the tier, or on the way to it."""
        self.is_loading = False
        """The copies are being read, to bring the node to the device: they may not be given up."""
        self.readers = 0
        """Offloaded requests that read the node where it is: its copies may not be given up."""
        self.is_suspect = False
        """A request that read the copies failed: no other may read them, and they are given up when none reads them."""
        self.hits = 0
        """Times the node was taken from the cache."""
        self.gone = False
        """The node has left the tree."""

    @property
    def is_read(self) -> bool:
        """Whether the copies are being read, so that they may not be overwritten."""
        return self.is_loading or self.readers > 0

    @property
    def is_stored(self) -> bool:
        """Whether a tier holds the node."""
        return any(page != NOWHERE for page in self.pages)

    @property
    def is_kept(self) -> bool:
        """Whether a tier holds the node, or will if nothing fails."""
        return self.is_stored or any(self.storing)


class Node:
    """A page of tokens whose KV is cached, on the device or on a tier."""

    __slots__ = (
        "children",
        "copies",
        "digest",
        "is_end",
        "key",
        "page",
        "parent",
        "record",
        "refs",
        "resident",
        "used",
        "window",
        "window_refs",
    )

    def __init__(self, key: bytes, page: int, parent: Node | None) -> None:
        self.key = key
        """The node's tokens as bytes; the namespace, for a root."""
        self.page = page
        """Page of the device; NOWHERE: it is on other tiers alone, or has left the tree."""
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.resident = 0
        """Children on the device."""
        self.copies: TierCopies | None = None
        """Copies on the tiers behind the device; None without tiers."""
        self.digest = b""
        """Digest of its namespace and of all tokens up to its end; empty until `digest_of` is asked, and of a root."""
        self.refs = 0
        """Leases whose path holds the node."""
        self.used = 0
        """Tick of the tree at which it was last used."""
        self.record = NOWHERE
        """Record of recurrent states behind the tokens up to its end; NOWHERE: it has none."""
        self.window = NOWHERE
        """Page of the layers with a window, if these have pages of their own; NOWHERE: a hole."""
        self.window_refs = 0
        """Leases whose window holds that page."""
        self.is_end = False
        """A request has ended or begun behind the node, or not far from there."""

    @property
    def has_left(self) -> bool:
        """Whether the node has left the tree. Without tiers it leaves with its page of the device."""
        return self.page < 0 if self.copies is None else self.copies.gone

    def __repr__(self) -> str:
        return f"Node(page={self.page}, refs={self.refs}, used={self.used}, children={len(self.children)})"


def copies_of(node: Node) -> TierCopies:
    """Return the copies of a node that was published while there were tiers."""
    assert node.copies is not None, f"{node} was never published"
    return node.copies


def parent_of(node: Node) -> Node:
    """Return the parent of a node that is no root."""
    assert node.parent is not None, f"{node} has no parent"
    return node.parent


def digest_of(node: Node) -> bytes:
    """Return the digest of a node. Its ancestors must have theirs."""
    if not node.digest:
        parent = parent_of(node)
        node.digest = digest_behind(parent.digest, node.key, b"" if parent.digest else parent.key)
    return node.digest


def namespace_of(node: Node) -> str:
    """Return the extra key under which a node is cached. Takes time for each of its ancestors."""
    while node.parent is not None:
        node = node.parent
    return node.key.decode()


def key_of(node: Node) -> PageKey:
    """Return the name of a published node."""
    return PageKey(node.digest, parent_of(node).digest, tokens_of(node.key), namespace_of(node))


def key_behind(parent: bytes, key: bytes, extra_key: str) -> PageKey:
    """Return the name of a page with the tokens `key` behind one of digest `parent`, which is empty for the first."""
    return PageKey(digest_behind(parent, key, extra_key.encode()), parent, tokens_of(key), extra_key)


def tokens_of(key: bytes) -> tuple[int, ...]:
    """Return the tokens of a page."""
    tokens = array("i")
    tokens.frombytes(key)
    return tuple(tokens)
