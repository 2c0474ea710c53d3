"""The questions of the evaluation. Their names, and their phrasings or relations, are never trained on.

Words that may stand around a statement (`noise`) are those of the training.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training import copying, documents
from training.facts import Fact, FactSource
from training.noise import careless
from training.words import Namer

HANDWRITTEN = Path(__file__).with_name("handwritten.json")
"""Questions that a person wrote, without a look at the templates of the training text. No text is made from them."""
FACT_SHARE = 0.4
COPIED = 12
"""Characters of the strings to copy."""
MARGIN = 40
"""Tokens kept for the question and the turns around it."""
REFUSAL = re.compile(r"\b(?:do(?:es)? not (?:know|say)|don't know|not told|cannot|can't|no idea)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Case:
    """What is said to the model, and the answers that are right; none where it has to say that it does not know."""

    group: str
    prompt: str
    answers: tuple[str, ...]
    exact: bool = False
    """The whole reply is to be the answer."""

    def is_right(self, reply: str) -> bool:
        if self.exact:
            return reply.strip() in self.answers
        refused = REFUSAL.search(reply) is not None
        if not self.answers:
            return refused
        return not refused and any(holds(reply, answer) for answer in self.answers)


def holds(reply: str, answer: str) -> bool:
    """Return whether a reply has the answer in it, as whole words; capitals do not count."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply, re.IGNORECASE) is not None


def fact_case(seed: int, tokens: int, count: Callable[[str], int], *, unseen: bool) -> Case:
    """Ask for a fact in a text of about `tokens` tokens, in held-out words, or of a relation never trained on."""
    group = "unseen relation" if unseen else "held-out phrasing"
    source, read = _read(f"{group} {seed} {tokens}", tokens, count, unseen=unseen)
    fact = source.rng.choice(read.facts)
    return Case(f"{group}, {tokens} tokens", _prompt(source.rng, read.text, fact), (fact.value,))


def absent_case(seed: int, tokens: int, count: Callable[[str], int]) -> Case:
    """Ask, in held-out words, for something whose answer is not in the text."""
    source, read = _read(f"absent {seed} {tokens}", tokens, count, unseen=False)
    return Case(f"absent answer, {tokens} tokens", _prompt(source.rng, read.text, source.draw()), ())


def copy_case(seed: int) -> Case:
    """Ask, in held-out words, to say a string of arbitrary letters and digits again."""
    rng = random.Random(f"copy {seed}")
    text = "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(COPIED))
    return Case("exact copy", copying.request(rng, text, held_out=True), (text,), exact=True)


def handwritten() -> list[Case]:
    asked = json.loads(HANDWRITTEN.read_text(encoding="utf-8"))
    return [
        Case(f"by hand, {'known' if each['answers'] else 'absent'}", each["say"], tuple(each["answers"]))
        for each in asked
    ]


def _read(seed: str, tokens: int, count: Callable[[str], int], *, unseen: bool) -> tuple[FactSource, documents.Passage]:
    names = Namer(random.Random(seed), held_out=True)
    source = FactSource(names, held_out_phrasings=not unseen, held_out_relations=unseen)
    return source, documents.passage_to_ask_about(source, tokens - MARGIN, FACT_SHARE, count)


def _prompt(rng: random.Random, text: str, fact: Fact) -> str:
    question = careless(rng, rng.choice(fact.questions))
    return f"{text}\n\n{question}" if rng.random() < 0.75 else f"{question}\n\n{text}"
