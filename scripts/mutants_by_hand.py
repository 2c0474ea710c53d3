"""Bugs someone could really write, planted one at a time by `mutate.py`.

Each is (file below src/sluice, old text, new text, the bug). The old text occurs exactly once in the file; a test holds
that, so a patch is brought up to date with the code it patches.
"""

from __future__ import annotations

BY_HAND: tuple[tuple[str, str, str, str], ...] = (
    (
        "kv/prefix.py",
        "return node.refs == 0 and node.used == used and not node.children and node.page >= 0",
        "return node.used == used and not node.children and node.page >= 0",
        "a page that a running request holds is evicted",
    ),
    (
        "scheduler/state.py",
        "if request.place is Place.DRAINING and request.in_flight == 0:",
        "if request.place is Place.DRAINING:",
        "pages of an aborted request go back while another of its steps is still on the device",
    ),
    (
        "kv/manager.py",
        "full = computed // self.page_size",
        "full = self.pages_for(computed)",
        "a half-computed page becomes visible to other requests",
    ),
    (
        "kv/prefix.py",
        "if key in parent.children:\n                break",
        "if key in parent.children:\n                continue",
        "a twin publishes its pages behind a page it has skipped",
    ),
    (
        "kv/prefix.py",
        "            parent.refs = 1\n",
        "            parent.refs = 0\n",
        "a page that its own request still uses counts as held by nobody",
    ),
    (
        "kv/prefix.py",
        "return [*left, *pages[max(len(path), count) :]]",
        "return [*left, *pages[count:]]",
        "pages behind the last full one are given back although the tree owns them, or not at all",
    ),
    (
        "kv/prefix.py",
        "        del parent.children[node.key]\n",
        "",
        "an evicted page is still found",
    ),
    (
        "kv/prefix.py",
        "page, node.page = node.page, -1",
        "page = node.page",
        "an evicted node is offered for eviction again",
    ),
    (
        "kv/prefix.py",
        "root = self._roots[extra_key] = Node",
        'root = self._roots[""] = Node',
        "all tenants share one namespace",
    ),
    (
        "kv/manager.py",
        "return self.pool.num_free + self.tree.num_evictable",
        "return self.pool.num_free + self.tree.num_pages",
        "pages in use are promised to others",
    ),
    (
        "kv/manager.py",
        "self.pool.give(self.tree.evict(count - self.pool.num_free))",
        "self.tree.evict(count - self.pool.num_free)",
        "evicted pages are lost",
    ),
    (
        "kv/manager.py",
        "        self.tree.unlock(lease.path)\n        lease.path, lease.pages = [], []",
        "        lease.path, lease.pages = [], []",
        "a finished request holds its cached pages for ever",
    ),
    (
        "scheduler/batch.py",
        "row = tuple(lease.pages) if start == request.cached else ()",
        "row = ()",
        "the pages of a cached prefix never reach the device",
    ),
    (
        "scheduler/batch.py",
        "samples = end == known + request.pending",
        "samples = end >= request.prompt_len",
        "a prompt recomputed after a retraction samples in its middle",
    ),
    (
        "scheduler/batch.py",
        "token_ids=tuple(request.tokens[start : min(end, known)])",
        "token_ids=tuple(request.tokens[start : min(end, request.prompt_len)])",
        "outputs are not given again after a retraction",
    ),
    (
        "scheduler/scheduler.py",
        "        self.state.kv.publish(request.lease, request.tokens, request.computed)\n",
        "",
        "nothing is shared while a request runs",
    ),
    (
        "scheduler/scheduler.py",
        "request.computed = chunk.end",
        "request.computed = request.scheduled",
        "pages count as computed while their step is still in flight",
    ),
    (
        "scheduler/scheduler.py",
        "if request.num_outputs >= request.max_tokens:",
        "if len(request.tokens) >= request.max_tokens:",
        "max_tokens counts the prompt",
    ),
    (
        "scheduler/scheduler.py",
        "if request is None or request.finish_reason is not None:\n            return []\n        return [self._end",
        "if request is None:\n            return []\n        return [self._end",
        "an abort after the end ends the request twice",
    ),
    (
        "scheduler/scheduler.py",
        "            request.pending -= chunk.samples\n            if request",
        "            if request",
        "a failed step leaves samples pending",
    ),
    (
        "scheduler/state.py",
        "            request.cached = request.computed = request.scheduled = 0\n",
        "            request.scheduled = 0\n",
        "a retracted request thinks it is still computed",
    ),
    (
        "scheduler/state.py",
        "        self.free_slots.append(request.slot)\n",
        "",
        "slots leak",
    ),
    (
        "scheduler/state.py",
        "request.prefill_end = len(request.tokens)",
        "request.prefill_end = request.prompt_len",
        "outputs recomputed after a retraction count as decodes",
    ),
    (
        "scheduler/passes.py",
        "return request.pending <= lookahead and",
        "return request.pending <= lookahead + 1 and",
        "a request runs further ahead than allowed",
    ),
    (
        "scheduler/passes.py",
        "request.num_outputs + request.pending < request.max_tokens",
        "request.num_outputs < request.max_tokens",
        "lookahead plans tokens nobody wants",
    ),
    (
        "scheduler/passes.py",
        "while state.waiting and not state.partial:",
        "while state.waiting:",
        "a second prompt is started while one is half computed",
    ),
    (
        "scheduler/prefill.py",
        "        if needed > kv.available:\n"
        "            kv.release(lease, request.tokens, cached)\n"
        "            return AddResult.NO_TOKEN\n",
        "",
        "memory is not checked again after the prefix is locked",
    ),
    (
        "scheduler/prefill.py",
        "return max(0, left - left % self._state.kv.page_size)",
        "return max(0, left)",
        "a prompt is cut inside a page",
    ),
    (
        "scheduler/prefill.py",
        "path = kv.match(request.tokens, len(request.tokens) - 1,",
        "path = kv.match(request.tokens, len(request.tokens),",
        "a fully cached prompt leaves nothing to compute a logit from",
    ),
    (
        "scheduler/retract.py",
        "candidates = [r for r in (*state.partial.values(), *state.decoding.values()) if r is not oldest]",
        "candidates = [*state.partial.values(), *state.decoding.values()]",
        "even the oldest request may be retracted, for ever",
    ),
    (
        "scheduler/retract.py",
        "needy.discard(victim.id)",
        "pass",
        "the victim's own want is still counted",
    ),
    (
        "scheduler/queue.py",
        "insort(self._requests, request, key=lambda waiting: waiting.id)",
        "self._requests.append(request)",
        "a retracted request goes to the end of the queue",
    ),
    (
        "engine/engine.py",
        "            while self.in_flight:\n                self._commit_oldest()\n",
        "",
        "a failed launch ends requests whose earlier step is still in flight, out of order",
    ),
    (
        "engine/engine.py",
        "(plan is None or len(self.in_flight) >= self.depth)",
        "len(self.in_flight) >= self.depth",
        "with nothing to plan the loop spins for ever",
    ),
    (
        "engine/engine.py",
        "block=self.is_idle",
        "block=False",
        "an idle engine spins",
    ),
)
