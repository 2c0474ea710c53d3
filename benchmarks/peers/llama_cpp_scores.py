"""What llama.cpp says of windows of tokens. Runs in a Python that has llama-cpp-python, and imports nothing of ours.

It reads `{"model": path, "kv": "f16" or "q8_0", "windows": [[id, ..], ..]}` from standard input, and writes
`{"logprobs": [..], "likeliest": [..]}`: of all tokens but the first of each window.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np

TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


def main() -> None:
    request = json.load(sys.stdin)
    kv, parts = TYPES[request["kv"]], request["windows"]
    llama = llama_cpp.Llama(
        request["model"],
        n_ctx=max(map(len, parts)),
        logits_all=True,
        flash_attn=True,
        type_k=kv,
        type_v=kv,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
    )
    logprobs, likeliest = [], []
    for part in parts:
        llama.reset()
        llama.eval(part)
        logits = np.asarray(llama.scores[: len(part) - 1], dtype=np.float64)
        highest = logits.max(1, keepdims=True)
        normal = highest[:, 0] + np.log(np.exp(logits - highest).sum(1))
        logprobs += (logits[np.arange(len(part) - 1), part[1:]] - normal).tolist()
        likeliest += logits.argmax(1).tolist()
    json.dump({"logprobs": logprobs, "likeliest": likeliest}, sys.stdout)


if __name__ == "__main__":
    main()
