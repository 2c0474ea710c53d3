"""How long llama.cpp takes to load a model, for decode steps, and for a prompt: figures of `gguf_table.py`.

Runs in a Python that has llama-cpp-python, and imports nothing of ours. Its argument is the time at which it was
started, in seconds since the epoch. It reads the fields of `gguf_table.Work` from standard input.
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np


class Model:
    """A loaded model, and a batch of tokens."""

    def __init__(self, path: str, threads: int, tokens: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = tokens, tokens, 512, 9
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(tokens, 0, 1)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def compute(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute (token, position, sequence, wants logits); return the likeliest tokens after those that want them."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, sequence, wants
        if llama_cpp.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")
        wanted = [i for i, row in enumerate(rows) if row[3]]
        logits = [llama_cpp.llama_get_logits_ith(self.context, i) for i in wanted]
        return [int(np.ctypeslib.as_array(each, (self.vocabulary,)).argmax()) for each in logits]

    def prompt(self, ids: list[int], sequence: int) -> int:
        """Compute a prompt; return the likeliest token after it."""
        last = len(ids) - 1
        return self.compute([(token, i, sequence, i == last) for i, token in enumerate(ids)])[0]

    def step_ms(self, prompts: list[list[int]], steps: int) -> float:
        """Return the milliseconds of a decode of some sequences, after their prompts."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        tokens = [self.prompt(ids, sequence) for sequence, ids in enumerate(prompts)]
        start = time.perf_counter()
        for step in range(steps):
            rows = enumerate(zip(tokens, prompts, strict=True))
            tokens = self.compute([(token, len(ids) + step, sequence, True) for sequence, (token, ids) in rows])
        return 1000 * (time.perf_counter() - start) / steps


def private_mb() -> float:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line and line[0].isupper())
    return sum(int(fields[name].split()[0]) for name in ("Private_Dirty", "Private_Clean")) / 1000


def main() -> None:
    work = json.load(sys.stdin)
    model = Model(work["model"], work["threads"], work["tokens"])
    *eight, one, long = work["prompts"]
    model.prompt(one[:1], 0)
    found = {"start_s": time.time() - float(sys.argv[1])}
    model.prompt(long[:64], 1)
    found["batch_1_ms"] = model.step_ms([one], work["steps"])
    found["batch_8_ms"] = model.step_ms(eight, work["steps"])
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.context), True)
    start = time.perf_counter()
    model.prompt(long, 0)
    found["prefill_s"] = time.perf_counter() - start
    of_head = llama_cpp.llama_model_n_embd(model.model) / llama_cpp.llama_model_n_head(model.model)
    heads = llama_cpp.llama_model_n_layer(model.model) * llama_cpp.llama_model_n_head_kv(model.model)
    kv = 2 * 2 * of_head * heads * work["tokens"] / 1e6
    print(json.dumps(found | {"memory_mb": private_mb() - kv}))


if __name__ == "__main__":
    main()
