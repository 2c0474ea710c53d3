"""Writes requests of every kind that the API has, each a function of a seed and its number.

Every request is greedy or has a seed, so its answer does not depend on the time or on the requests beside it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from any_checkpoint import VOCAB_SIZE, any_checkpoint

Fields = dict[str, Any]

FIRST_ID = 300
"""Token ids of the model from here on are words, or parts of them."""
LONG_TOKENS = 1100, 1700
"""Length of a prompt that the storm's pool, of 1,024 tokens, cannot hold: its request is offloaded."""
PREFIXES = 6
"""Prefixes that several prompts have in common."""
PREFIX_TOKENS = 160
WORDS = ("water", "rises", "gate", "stays", "river", "stone", "garden", "password", "code", "under", "bridge", "green")
STOPS = ["the", " is", ".", "e b", "stone"]
LONG = "long prompt"
"""The label of a request that is offloaded."""

NATIVE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
"""Fields that have another name in the `sampling_params` of `/generate`."""
OUTSIDE_SAMPLING = {"priority": "priority", "cache_salt": "extra_key", "timeout": "timeout", "stream": "stream"}
"""Fields that stand beside `sampling_params`, and their names there."""


@dataclass(frozen=True)
class StormRequest:
    """One request of the storm."""

    name: str
    """Seed and number, from which the same request can be written again."""
    path: str
    body: Mapping[str, Any]
    labels: tuple[str, ...]
    """The API, then every feature that the request uses."""

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def is_long(self) -> bool:
        return LONG in self.labels

    def content(self) -> bytes:
        return json.dumps(self.body).encode()


def requests_of(seed: int, count: int) -> list[StormRequest]:
    """Write the first `count` requests of a seed."""
    return [request_of(seed, number) for number in range(count)]


def request_of(seed: int, number: int) -> StormRequest:
    """Write one request. The APIs take turns, so that a short storm has all of them."""
    name = f"{seed}:{number}"
    draw = random.Random(name)
    write = WRITERS[number % len(WRITERS)]
    path, body, labels = write(draw)
    return StormRequest(name, path, body, labels)


def _completion(draw: random.Random) -> tuple[str, Fields, tuple[str, ...]]:
    prompt, labels = _prompt(draw)
    fields, chosen = _sampling(draw)
    body = {"prompt": prompt} | fields
    labels += chosen
    kind = draw.choice(["plain", "stream", "stream", "logprobs", "stream logprobs", "prompt logprobs", "echo"])
    if "stream" in kind:
        body["stream"] = True
        if draw.random() < 0.5:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": draw.random() < 0.5}
    if "logprobs" in kind and kind != "prompt logprobs":
        body["logprobs"] = draw.randint(0, 5)
    if kind == "prompt logprobs":
        body["prompt_logprobs"] = draw.randint(0, 3)
    if kind == "echo":
        body |= {"echo": True} | draw.choice([{}, {"logprobs": 2}, {"logprobs": 1, "max_tokens": 0, "min_tokens": 0}])
    if body.get("n", 1) > 1 and draw.random() < 0.4:
        body["best_of"] = body["n"]
        labels += ("best_of",)
    return "/v1/completions", body, ("completions", *kind_labels(kind), *labels)


def _chat(draw: random.Random) -> tuple[str, Fields, tuple[str, ...]]:
    fields, labels = _sampling(draw)
    messages = [{"role": "system", "content": _text(draw, 30)}] if draw.random() < 0.5 else []
    for _ in range(draw.randint(0, 2)):
        messages += [{"role": "user", "content": _text(draw, 12)}, {"role": "assistant", "content": _text(draw, 12)}]
    messages.append({"role": "user", "content": _text(draw, 20)})
    kind = draw.choice(["plain", "stream", "stream", "stream logprobs", "logprobs"])
    body: Fields = {"messages": messages, "stream": "stream" in kind} | fields
    if "logprobs" in kind:
        body |= {"logprobs": True, "top_logprobs": draw.randint(0, 4)}
    return "/v1/chat/completions", body, ("chat", *kind_labels(kind), *labels)


def _native(draw: random.Random) -> tuple[str, Fields, tuple[str, ...]]:
    prompt, labels = _prompt(draw)
    fields, chosen = _sampling(draw)
    kind = draw.choice(["plain", "stream", "stream", "stream logprobs", "prompt logprobs"])
    is_text = isinstance(prompt, str) or isinstance(prompt[0], str)
    body: Fields = {"text" if is_text else "input_ids": prompt, "sampling_params": {}, "stream": "stream" in kind}
    for name, value in fields.items():
        if name in OUTSIDE_SAMPLING:
            body[OUTSIDE_SAMPLING[name]] = value
        else:
            body["sampling_params"][NATIVE_NAMES.get(name, name)] = value
    if "logprobs" in kind:
        body |= {"return_logprob": True, "top_logprobs_num": draw.randint(0, 3)}
    if kind == "prompt logprobs":
        body["logprob_start_len"] = 0
    return "/generate", body, ("generate", *kind_labels(kind), *labels, *chosen)


def _tokens(draw: random.Random) -> tuple[str, Fields, tuple[str, ...]]:
    match draw.randrange(3):
        case 0:
            return "/tokenize", {"prompt": _text(draw, 60), "return_token_strs": True}, ("tokenize",)
        case 1:
            messages = [{"role": "user", "content": _text(draw, 20)}]
            return "/tokenize", {"messages": messages}, ("tokenize", "messages")
    return "/detokenize", {"tokens": _ids(draw, 50)}, ("detokenize",)


def _long(draw: random.Random) -> tuple[str, Fields, tuple[str, ...]]:
    """Write a request that is offloaded."""
    path, body, labels = draw.choice([_completion, _native])(draw)
    prompt = _ids(draw, draw.randint(*LONG_TOKENS))
    if draw.random() < 0.5:
        prompt[: PREFIX_TOKENS * 4] = _ids(random.Random(f"long prefix {draw.randrange(2)}"), PREFIX_TOKENS * 4)
    if path == "/generate":
        body.pop("text", None)
        body["input_ids"] = prompt
    else:
        body["prompt"] = prompt
    kept = tuple(label for label in labels if label not in ("several prompts", "token ids", "shared prefix"))
    return path, body, (*kept, LONG)


WRITERS: Sequence[Callable[[random.Random], tuple[str, Fields, tuple[str, ...]]]] = (
    *(_completion, _chat, _native, _long, _completion),
    *(_native, _chat, _tokens, _completion, _long),
)


def kind_labels(kind: str) -> tuple[str, ...]:
    """Return the labels of a kind of answer, like "stream logprobs"."""
    return {"plain": (), "stream logprobs": ("stream", "logprobs")}.get(kind, (kind,))


def _prompt(draw: random.Random) -> tuple[Any, tuple[str, ...]]:
    """Return a prompt, or several, and the labels for it."""
    kind = draw.choice(["text", "token ids", "shared prefix", "shared prefix", "several prompts"])
    match kind:
        case "text":
            return _text(draw, draw.randint(3, 60)), ()
        case "token ids":
            return _ids(draw, draw.randint(3, 200)), (kind,)
        case "shared prefix":
            prefix = _ids(random.Random(f"prefix {draw.randrange(PREFIXES)}"), PREFIX_TOKENS)
            return prefix + _ids(draw, draw.randint(1, 60)), ("token ids", kind)
    if draw.random() < 0.5:
        return [_text(draw, draw.randint(3, 20)) for _ in range(draw.randint(2, 3))], (kind,)
    return [_ids(draw, draw.randint(3, 40)) for _ in range(draw.randint(2, 3))], ("token ids", kind)


def _sampling(draw: random.Random) -> tuple[Fields, tuple[str, ...]]:
    """Return fields of sampling, and a label for each that is not at its default."""
    fields: Fields = {"max_tokens": draw.choice([1, 8, 24, 48]), "temperature": 0}
    labels: tuple[str, ...] = ("greedy",)
    if draw.random() < 0.6:
        fields |= {"temperature": 0.8, "seed": draw.randrange(1 << 30)}
        labels = ("seed",)
    for label in draw.sample(sorted(FEATURES), draw.choice([0, 0, 1, 1, 2, 3])):
        fields |= FEATURES[label](draw, fields)
        labels += (label,)
    return fields, labels


FEATURES: Mapping[str, Callable[[random.Random, Fields], Fields]] = {
    "n": lambda draw, fields: {"n": draw.randint(2, 3)},
    "penalties": lambda draw, fields: {
        "presence_penalty": draw.uniform(0, 1),
        "frequency_penalty": draw.uniform(-0.5, 1),
        "repetition_penalty": draw.uniform(0.9, 1.4),
    },
    "filters": lambda draw, fields: {"top_k": draw.randint(5, 80), "top_p": 0.9, "min_p": 0.02},
    "stop": lambda draw, fields: {"stop": draw.sample(STOPS, draw.randint(1, 3))},
    "stop_token_ids": lambda draw, fields: {"stop_token_ids": _ids(draw, 20)},
    "logit_bias": lambda draw, fields: {"logit_bias": {str(token): draw.uniform(-5, 5) for token in _ids(draw, 8)}},
    "min_tokens": lambda draw, fields: {"min_tokens": min(4, fields["max_tokens"])},
    "ignore_eos": lambda draw, fields: {"ignore_eos": True},
    "priority": lambda draw, fields: {"priority": draw.randint(-3, 3)},
    "salt": lambda draw, fields: {"cache_salt": draw.choice(["amber", "birch"])},
    "timeout": lambda draw, fields: {"timeout": 600.0},
}


def _ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(FIRST_ID, VOCAB_SIZE) for _ in range(count)]


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


MODEL = str(any_checkpoint())
"""The model that these requests are written for."""
