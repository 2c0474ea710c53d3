"""KVManager against a slow model: the cache is a set of token prefixes, and each is as recent as its last use."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slow import examples
from sluice.kv.manager import KVManager, ResidentLease

Key = tuple[str, tuple[int, ...]]
"""A cached page by what is in it: namespace and all tokens from the beginning to its end."""


@dataclass
class CacheModel:
    """The obvious version: cached prefixes with holder counts and times of last use, searched in full every time."""

    page_size: int
    refs: dict[Key, int] = field(default_factory=dict)
    used: dict[Key, int] = field(default_factory=dict)

    def keys(self, tokens: tuple[int, ...], count: int, extra_key: str) -> list[Key]:
        return [(extra_key, tokens[: (index + 1) * self.page_size]) for index in range(count)]

    def match(self, tokens: tuple[int, ...], limit: int, extra_key: str) -> list[Key]:
        keys = self.keys(tokens, limit // self.page_size, extra_key)
        hits = [key in self.refs for key in keys]
        return keys[: [*hits, False].index(False)]

    def evictable(self) -> int:
        return sum(refs == 0 for refs in self.refs.values())

    def oldest_leaves(self) -> list[Key]:
        """The unheld leaves with the earliest last use: any of them may go next."""
        leaves = [
            key
            for key, refs in self.refs.items()
            if refs == 0 and not any(self.is_child(other, key) for other in self.refs)
        ]
        first = min(self.used[key] for key in leaves)
        return [key for key in leaves if self.used[key] == first]

    def is_child(self, child: Key, parent: Key) -> bool:
        return child[0] == parent[0] and child[1][: len(parent[1])] == parent[1] and len(child[1]) > len(parent[1])


@dataclass
class Holder:
    """A live request on both sides."""

    lease: ResidentLease
    tokens: tuple[int, ...]
    extra_key: str
    path: list[Key]
    computed: int
    pages: int


class KVMachine(RuleBasedStateMachine):
    """acquire, extend, publish, release and flush in any order on both sides."""

    @initialize(page_size=st.sampled_from([1, 2, 4]), num_pages=st.integers(3, 14))
    def build(self, page_size: int, num_pages: int) -> None:
        self.kv = KVManager(num_pages=num_pages, page_size=page_size)
        self.model = CacheModel(page_size)
        self.holders: list[Holder] = []
        self.tick = 0

    def now(self) -> int:
        self.tick += 1
        return self.tick

    @rule(data=st.data(), extra_key=st.sampled_from(["", "", "tenant"]))
    def acquire(self, data: st.DataObject, extra_key: str) -> None:
        size = self.kv.page_size
        tokens = tuple(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=5 * size)))
        limit = len(tokens) - 1
        path = self.kv.match(array("i", tokens), limit, extra_key)
        expected = self.model.match(tokens, limit, extra_key)
        assert len(path) == len(expected)
        lease = self.kv.acquire(path, extra_key)
        now = self.now()
        for key in expected:
            self.model.refs[key] += 1
            self.model.used[key] = now
        self.holders.append(Holder(lease, tokens, extra_key, expected, len(expected) * size, len(expected)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        size = self.kv.page_size
        room = (holder.pages + self.kv.available) * size
        target = min(len(holder.tokens), room)
        if target <= holder.computed:
            return
        target = data.draw(st.integers(holder.computed + 1, target))
        missing = max(0, -(-target // size) - holder.pages)
        assert holder.lease.missing(target) == missing
        before = list(holder.lease.pages)
        added = holder.lease.extend(target)
        assert len(added) == missing
        assert holder.lease.pages == before + list(added)
        holder.pages += missing

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        upper = min(len(holder.tokens), holder.pages * self.kv.page_size)
        holder.computed = data.draw(st.integers(min(holder.computed, upper), upper))
        holder.lease.publish(array("i", holder.tokens), holder.computed)
        for key in self.model.keys(holder.tokens, holder.computed // self.kv.page_size, holder.extra_key):
            if key in holder.path:
                continue
            if key in self.model.refs:
                break
            self.model.refs[key] = 1
            self.model.used[key] = self.tick
            holder.path.append(key)
        assert len(holder.lease.path) == len(holder.path)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        holder.lease.release(array("i", holder.tokens), holder.computed)
        for key in self.model.keys(holder.tokens, holder.computed // self.kv.page_size, holder.extra_key):
            if key not in holder.path:
                self.model.refs.setdefault(key, 0)
                self.model.used[key] = self.tick
        now = self.now()
        for key in holder.path:
            self.model.refs[key] -= 1
            self.model.used[key] = now

    @rule()
    def flush(self) -> None:
        assert self.kv.flush() == self.model.evictable()
        self.model.refs = {key: refs for key, refs in self.model.refs.items() if refs}

    @invariant()
    def caches_are_equal(self) -> None:
        """The tree holds the same as the model, after evicting what had to be evicted, oldest leaves first."""
        if not hasattr(self, "kv"):
            return
        cached = self.cached_by_tree()
        while len(self.model.refs) > len(cached):
            candidates = [key for key in self.model.oldest_leaves() if key not in cached]
            assert candidates, f"{set(self.model.refs) - cached.keys()} left before {self.model.oldest_leaves()}"
            del self.model.refs[candidates[0]]
        assert cached == self.model.refs
        assert self.kv.tree.num_evictable == self.model.evictable()
        private = [page for holder in self.holders for page in holder.lease.private_pages]
        assert len(set(private)) == len(private)
        assert self.kv.pool.num_free + len(private) + len(cached) == self.kv.num_pages
        for holder in self.holders:
            assert holder.lease.reclaimable() == len(holder.lease.private_pages) + sum(
                self.model.refs[key] == 1 for key in holder.path
            )

    def cached_by_tree(self) -> dict[Key, int]:
        cached: dict[Key, int] = {}
        for node in self.kv.tree.nodes():
            chain, top = [], node
            while top.parent is not None:
                chain.append(tuple(array("i", top.key)))
                top = top.parent
            cached[top.key.decode(), tuple(token for key in reversed(chain) for token in key)] = node.refs
        return cached


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(examples(300), stateful_step_count=40)
