"""What llama.cpp answers to prompts of tokens. Runs in a Python that has llama-cpp-python, and imports nothing of ours.

It reads `{"model": path, "max_tokens": n, "requests": [{"ids": [id, ..], "schema": {..} or null}, ..]}` from standard
input, and writes `{"version": "..", "texts": [..]}`. Answers are greedy, and fit the schema by llama.cpp's own grammar
of it.
"""

from __future__ import annotations

import json
import sys

import llama_cpp


def main() -> None:
    request = json.load(sys.stdin)
    longest = max(len(each["ids"]) for each in request["requests"])
    llama = llama_cpp.Llama(
        request["model"], n_ctx=longest + request["max_tokens"], n_threads=1, n_threads_batch=1, verbose=False
    )
    texts = []
    for each in request["requests"]:
        schema = each["schema"]
        grammar = None if schema is None else llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
        answer = llama.create_completion(
            each["ids"], max_tokens=request["max_tokens"], temperature=0.0, repeat_penalty=1.0, grammar=grammar
        )
        texts.append(answer["choices"][0]["text"])
    json.dump({"version": llama_cpp.__version__, "texts": texts}, sys.stdout)


if __name__ == "__main__":
    main()
