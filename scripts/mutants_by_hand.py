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
        "            self.state.kv.publish(lease, request.tokens, end)\n",
        "            pass\n",
        "nothing is shared while a request runs",
    ),
    (
        "scheduler/scheduler.py",
        "request.computed = end",
        "request.computed = request.scheduled",
        "pages count as computed while their step is still in flight",
    ),
    (
        "scheduler/scheduler.py",
        "elif start + count >= request.max_tokens:",
        "elif len(request.tokens) >= request.max_tokens:",
        "max_tokens counts the prompt",
    ),
    (
        "scheduler/scheduler.py",
        "if request is None or request.finish_reason is not None:\n            return []\n        if reason is",
        "if request is None:\n            return []\n        if reason is",
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
        "if adder.is_full() or (state.partial and not limits.long_prefill_token_threshold):",
        "if adder.is_full():",
        "a second prompt is started while one is half computed",
    ),
    (
        "scheduler/prefill.py",
        "            self.note(Bound.KV_PAGES)\n"
        "            kv.release(lease, request.tokens, len(request.path) * kv.page_size)\n"
        "            return AddResult.NO_TOKEN\n",
        "            pass\n",
        "memory is not checked again after the prefix is locked",
    ),
    (
        "scheduler/prefill.py",
        "return max(0, wanted - wanted % self._state.kv.page_size), cut_by",
        "return max(0, wanted), cut_by",
        "a prompt is cut inside a page",
    ),
    (
        "scheduler/retract.py",
        "candidates = [r for r in state.running() if r is not oldest]",
        "candidates = list(state.running())",
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
        "insort(self._requests, request, key=self.rank)",
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
    (
        "scheduler/prefill.py",
        "may_cut = may_cut and len(state.partial) < self._limits.max_partial_prefills",
        "may_cut = len(state.partial) < self._limits.max_partial_prefills",
        "a younger prompt takes the place the oldest waits for",
    ),
    (
        "scheduler/prefill.py",
        "floor = 0 if self._num_prompts else self._state.kv.page_size",
        "floor = 0",
        "decodes use up the prefill budget and prompts starve",
    ),
    (
        "scheduler/prefill.py",
        "self._limits.max_prefill_tokens - used)",
        "self._limits.max_prefill_tokens)",
        "decodes do not come off the prefill budget",
    ),
    (
        "scheduler/prefill.py",
        "wanted >= limits.long_prefill_token_threshold:",
        "extend_len < limits.long_prefill_token_threshold:",
        "the cap on one prompt's share does nothing",
    ),
    (
        "scheduler/prefill.py",
        "if left < extend_len and self._is_left_whole(extend_len):",
        "if False:",
        "a prompt over the prefill budget is cut behind others",
    ),
    (
        "scheduler/prefill.py",
        "        self._num_prompts += 1\n",
        "",
        "the number of prompts in a step is not limited",
    ),
    (
        "scheduler/prefill.py",
        "            self._reserved = None\n            result = self.add_one_req(request, at_most, may_cut=may_cut)",
        "            result = self.add_one_req(request, at_most, may_cut=may_cut)",
        "memory freed by a preemption is not seen",
    ),
    (
        "scheduler/reserve.py",
        "return request.retractions >= PROTECT_AFTER",
        "return False",
        "a request may be retracted without end",
    ),
    (
        "scheduler/reserve.py",
        "        if request.place is Place.PARTIAL:\n            return known\n",
        "",
        "a half-computed prompt reserves output it does not make yet",
    ),
    (
        "scheduler/reserve.py",
        "share = 1.0 if request.is_prefilling else self.ratio",
        "share = 0.0",
        "nothing is reserved for the output of running requests",
    ),
    (
        "scheduler/retract.py",
        "        state.reservation.retracted(state.running())\n",
        "        pass\n",
        "the share reserved does not rise after a retraction",
    ),
    (
        "scheduler/retract.py",
        "below = [r for r in state.running() if level(r) > level(request)]",
        "below = [r for r in state.running() if level(r) >= level(request)]",
        "equal priorities preempt each other for ever",
    ),
    (
        "scheduler/retract.py",
        "if state.draining or not below:",
        "if not below:",
        "one preemption after another for the same want",
    ),
    (
        "scheduler/fair.py",
        "        if is_due(state, request):\n            adder.add_partial(request, at_most=state.kv.page_size)\n",
        "        pass\n",
        "a half-computed prompt may wait without end",
    ),
    (
        "scheduler/fair.py",
        "return max(room // 2, state.kv.page_size, room",
        "return max(0, room",
        "short prompts starve a long one",
    ),
    (
        "scheduler/fair.py",
        "may_admit = offer(adder, first, guaranteed(state, adder, rest)) not in NO_ROOM",
        "may_admit = bool(offer(adder, first, guaranteed(state, adder, rest)))",
        "small prompts keep taking the memory a large one waits for",
    ),
    (
        "scheduler/twins.py",
        "if end > request.cacheable or",
        "if end > request.cacheable + kv.page_size or",
        "a request is held back for a page it could not use",
    ),
    (
        "scheduler/queue.py",
        "self._promoted.update(request.id for request in late)",
        "pass",
        "a request of low priority waits for ever",
    ),
    (
        "scheduler/queue.py",
        "self._sign = 1 if limits.low_priority_values_first else -1",
        "self._sign = 1",
        "higher values of priority do not go first",
    ),
    (
        "scheduler/state.py",
        "        if request.finish_reason is FinishReason.ERROR:\n"
        "            self.kv.discard(request.lease)\n"
        "        else:\n"
        "            self.kv.release(request.lease, request.tokens, request.computed)\n",
        "        self.kv.release(request.lease, request.tokens, request.computed)\n",
        "the NaNs of a failed request stay in the cache",
    ),
    (
        "scheduler/scheduler.py",
        "        self.state.kv.flush()\n",
        "",
        "pages of a lost device are still found",
    ),
    (
        "kv/prefix.py",
        "while path and path[-1].page < 0:",
        "while False:",
        "an evicted page is found again through an old match",
    ),
    (
        "scheduler/request.py",
        "return len(self.tokens) - 1 if self.num_told == self.num_targets else self.num_told",
        "return len(self.tokens) - 1",
        "prompt logprobs of tokens that come from the cache are never told",
    ),
    (
        "scheduler/scheduler.py",
        "of_targets = of_targets[request.num_told - chunk.start :]",
        "of_targets = of_targets[:]",
        "after a retraction prompt logprobs are told a second time",
    ),
    (
        "scheduler/scheduler.py",
        "tokens, of_tokens = tokens[:count], of_tokens[:count]",
        "tokens = tokens[:count]",
        "logprobs go on behind the token that ended the request",
    ),
    (
        "scheduler/request.py",
        "if self.num_told < last else ()",
        "",
        "prompt tokens whose logprobs were told are scored again",
    ),
)
