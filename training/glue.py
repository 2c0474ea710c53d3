"""Statements and questions around a noun phrase, in words drawn at random.

Templates alone teach the templates: a model that has met forty of them fails on the next one. Here only what carries
the fact is said in order, "the code of the mill" and a value, and common words that mean little stand around them. They
make no sense; what can be learned from them is to pass them over. In loose ones the parts of what carries the fact may
stand apart.
"""

from __future__ import annotations

import random

from training import verbs
from training.lexicon import ATTRIBUTE_NOUNS, THING_NOUNS, VALUE_WORDS, phrases
from training.words import ADJECTIVES, split

WORDS = phrases(
    """
    about, above, across, actually, added, after, again, agreed, all, almost, along, already, also, although,
    always, among, and, another, any, anybody, anyone, anything, around, as, ask, asked, asking, at, back, be,
    became, because, been, before, being, believe, below, beside, best, better, between, both, bring, but, by,
    call, called, came, can, carefully, certainly, clearly, come, could, decided, did, do, does, done, down,
    each, either, else, enough, even, ever, every, everyone, everything, exactly, fact, far, few, finally, find,
    first, followed, for, forget, found, from, further, gave, get, give, given, go, goes, going, gone, good,
    got, guess, had, happened, happens, has, have, he, hear, heard, help, her, here, him, his, hope, how, i,
    idea, if, in, indeed, instead, into, it, its, just, kind, knew, know, known, last, later, least, leave,
    left, less, let, like, listed, little, long, look, looked, made, make, making, many, matter, may, maybe, me,
    mean, means, mention, mentioned, might, moment, more, most, much, must, named, near, nearly, need, needed,
    never, next, no, nobody, none, noted, nothing, now, of, off, often, ok, on, once, one, only, onto, or,
    other, others, our, out, over, own, people, perhaps, please, point, possible, probably, put, quite, quickly,
    rather, read, really, recall, recently, record, recorded, remains, remember, reply, right, said, same, saw,
    say, saying, says, see, seems, seen, set, settled, several, shall, she, should, show, shown, simply, since,
    so, some, somebody, someone, something, sometimes, soon, still, stands, stood, such, sure, surely, take,
    taken, tell, than, thanks, that, the, their, them, then, there, these, they, thing, think, this, those,
    though, thought, through, thus, time, to, today, together, told, too, took, true, truly, try, turned, under,
    until, up, upon, us, use, used, usually, very, wait, want, wanted, was, way, we, well, went, were, what,
    whatever, when, where, whether, which, while, who, whom, whose, why, will, wish, with, within, without,
    wonder, word, would, write, written, wrote, yes, yet, you, your
    """
)
VERBS = split(
    """
    is was be becomes became remains equals means reads says has had will be must be should be would be may be
    seems stays goes by is called is named was called is given as is written as is noted as is listed as
    turned out to be happens to be is said to be is set to was set to is simply is just is only has become
    used to be has to be
    """
)
"""Single words; one that stands here more often is drawn more often."""
OF_A_SUBJECT = ("the {x} of {y}",) * 4 + ("{y}'s {x}",) * 3 + ("the {b} {x}", "the {x} for {y}", "the {x} that {y} has")
ALONE = ("the {x}", "the {x}", "our {x}", "this {x}")
MINE = ("my {x}", "my {x}", "the {x} i have")
MARKS = (" ",) * 7 + (": ", ", ", " - ", " = ", '"')
TURNED_MARKS = (", ", ", ", ": ", " - ", " ", " ")
ARTICLES = ("the ", "the ", "a ", "")
ANY_WORDS = (
    *WORDS,
    *ATTRIBUTE_NOUNS,
    *THING_NOUNS,
    *VALUE_WORDS,
    *ADJECTIVES,
    *(form for verb in verbs.VERBS for form in (verb.present, verb.base, verb.past)),
    *(f"un{verb.past}" for verb in verbs.VERBS),
)
"""What may stand around a string to copy: nothing has to be copied with it."""


def words(rng: random.Random, most: int) -> str:
    """Draw up to so many words, with a space behind each."""
    return "".join(f"{rng.choice(WORDS)} " for _ in range(rng.randint(0, most)))


def around(rng: random.Random, template: str) -> str:
    """Return the template with up to four words before it and up to three behind it."""
    return f"{words(rng, 4)}{template} {words(rng, 3)}".strip()


def statement(rng: random.Random, phrase: str, *, loose: bool = False) -> str:
    """Draw a template that tells {z} about what the phrase names.

    Args:
        loose: the value stands first more often, and the parts of the phrase apart.
    """
    if loose and rng.random() < 0.3:
        return _turned(rng, phrase)
    verb = rng.choice(VERBS) if rng.random() < 0.4 else f"{rng.choice(WORDS)} {words(rng, 2)}".strip()
    mark, value = rng.choice(MARKS), "{z}"
    if mark == '"':
        mark, value = " ", '"{z}"'
    tail = f" {words(rng, 3)}".rstrip() if rng.random() < 0.4 else ""
    chance = rng.random()
    if chance < 0.5:
        return f"{words(rng, 4)}{phrase} {verb}{mark}{value}{tail}"
    if chance < 0.8:
        head = words(rng, 3) if rng.random() < 0.6 else ""
        return f"{head}{value} {verb} {phrase}{tail}"
    if "{y}" not in phrase or chance < 0.9:
        return f"{words(rng, 3)}{phrase}{mark}{value}{tail}"
    apart = rng.choice(("{{y}} {a}{{x}} {b}{{z}}", "{{y}} {a}{{z}} {b}{{x}}", "{{x}} {a}{{z}} {b}{{y}}"))
    return words(rng, 3) + apart.format(a=words(rng, 2), b=words(rng, 2)) + tail


def _turned(rng: random.Random, phrase: str) -> str:
    """Draw a template whose value stands first, behind it a mark and what it is of; or whose parts all stand apart."""
    if "{y}" not in phrase or rng.random() < 0.5:
        return f"{{z}}{rng.choice(TURNED_MARKS)}{words(rng, 4)}{phrase} {words(rng, 2)}".strip()
    slots = ["{x}", "{y}", "{z}"]
    rng.shuffle(slots)
    return "".join(f"{words(rng, 3)}{rng.choice(ARTICLES) if slot == '{x}' else ''}{slot} " for slot in slots).strip()


def question(rng: random.Random, phrase: str, *, loose: bool = False) -> str:
    """Draw a template that asks for what the phrase names.

    Args:
        loose: the parts of the phrase may stand apart.
    """
    if loose and "{y}" in phrase and rng.random() < 0.3:
        slots = rng.choice((("{x}", "{y}"), ("{y}", "{x}")))
        return "".join(f"{words(rng, 4)}{slot} " for slot in slots) + words(rng, 3)
    return f"{words(rng, 6)}{phrase} {words(rng, 4)}".strip()


def request(rng: random.Random, *, loose: bool = False) -> str:
    """Draw a template that wants {s} to be said again.

    Args:
        loose: the words around it are any, not only common ones.
    """
    if loose:
        first, last = (" ".join(rng.choices(ANY_WORDS, k=rng.randint(0, 6))) for _ in range(2))
        return f"{first}{rng.choice(MARKS[:-1]).strip()} {{s}} {last}".strip()
    before = f"{words(rng, 5)}{rng.choice(MARKS[:-1]).strip()}".strip()
    return f"{before} {{s}} {words(rng, 4)}".strip()
