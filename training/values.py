"""Values of facts, by kind: arbitrary strings, real words, names, numbers, times, dates and the rest."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

from training import lexicon, words
from training.words import Namer, a

Drawn = Callable[[Namer], str]

STRING_ALPHABETS = (
    string.ascii_letters + string.digits,
    string.ascii_lowercase + string.digits,
    string.ascii_uppercase + string.digits,
    string.ascii_lowercase,
    string.ascii_uppercase,
    "0123456789abcdef",
    string.ascii_letters,
)


def random_string(rng: random.Random, length: int) -> str:
    """Draw characters that nothing foretells."""
    alphabet = rng.choice(STRING_ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(length))


def code(names: Namer) -> str:
    """Draw a string as passwords, serials and keys are: 3 to 14 characters, some with a dash or with a word in them."""
    rng = names.rng
    form = rng.randrange(6)
    if form == 0:
        return f"{rng.choice(lexicon.VALUE_WORDS)}{rng.randint(0, 9999)}"
    if form == 1:
        return "-".join(random_string(rng, rng.randint(2, 4)) for _ in range(rng.randint(2, 3)))
    if form == 2:
        return f"{random_string(rng, rng.randint(1, 3)).upper()}-{names.number()}"
    if form == 3:
        return "-".join(rng.sample(lexicon.VALUE_WORDS, rng.randint(2, 3)))
    return random_string(rng, rng.randint(3, 14))


def word(names: Namer) -> str:
    return names.rng.choice(lexicon.VALUE_WORDS)


def two_words(names: Namer) -> str:
    return f"{names.rng.choice(words.ADJECTIVES)} {names.rng.choice(lexicon.VALUE_WORDS)}"


def person(names: Namer) -> str:
    """Draw a first name, with a surname or without."""
    return names.person() if names.rng.random() < 0.75 else f"{names.person()} {names.person()}"


def digits(names: Namer) -> str:
    length = names.rng.randint(1, 7)
    return str(names.rng.randint(10 ** (length - 1), 10**length - 1))


def phone(names: Namer) -> str:
    rng = names.rng
    return f"{rng.randint(100, 999)}{rng.choice('- ')}{rng.randint(1000, 9999)}"


def clock(names: Namer) -> str:
    rng = names.rng
    hour, minute = rng.randint(1, 23), rng.choice(("00", "05", "10", "15", "20", "30", "40", "45", "50"))
    forms = (f"{hour}:{minute}", f"{rng.randint(1, 12)} o'clock", f"half past {rng.choice(('six', 'eight', 'ten'))}")
    return rng.choice((forms[0], forms[0], *forms))


def date(names: Namer) -> str:
    rng = names.rng
    day, month = rng.randint(1, 28), rng.choice(lexicon.MONTH_NAMES)
    return rng.choice((f"{month} {day}", f"{day} {month}", f"{day} {month} {rng.randint(1900, 2040)}"))


def year(names: Namer) -> str:
    return str(names.rng.randint(1400, 2040))


def day(names: Namer) -> str:
    return names.rng.choice(lexicon.DAY_NAMES)


def price(names: Namer) -> str:
    rng = names.rng
    amount = rng.choice((str(rng.randint(1, 99)), str(rng.randint(100, 9999)), f"{rng.randint(1, 99)}.50"))
    return rng.choice((f"${amount}", f"{amount} euros", f"{amount} pounds", f"{amount} dollars"))


def quantity(names: Namer) -> str:
    return f"{names.rng.randint(2, 400)} {names.rng.choice(lexicon.MEASURES)}"


def email(names: Namer) -> str:
    return f"{names.person().lower()}@{names.word()}.{names.rng.choice(('org', 'com', 'net'))}"


def spot(names: Namer) -> str:
    rng = names.rng
    preposition = rng.choice((*words.SPOT_WORDS, "under", "next to", "on top of", "in front of"))
    return f"{preposition} the {rng.choice((*words.SPOTS, *lexicon.THING_NOUNS))}"


def thing(names: Namer) -> str:
    """Draw something that a fact is about, with its article."""
    rng = names.rng
    if rng.random() < 0.5:
        return f"the {rng.choice(words.MATERIALS)} {rng.choice(words.THINGS)}"
    return f"the {rng.choice(lexicon.THING_NOUNS)}"


def house(names: Namer) -> str:
    """Draw a shop, a firm or a club: a name and what it is, or a place and what is there."""
    noun = names.rng.choice(lexicon.THING_NOUNS)
    return names.rng.choice((f"the {names.place()} {noun}", f"{names.person()}'s {noun}", f"{names.word()} ltd"))


def somebody(names: Namer) -> str:
    """Draw a person as the subject of a fact."""
    chance = names.rng.random()
    if chance < 0.8:
        return person(names)
    return f"my {names.rng.choice(lexicon.KIN)}" if chance < 0.9 else f"the {names.rng.choice(words.JOBS)}"


def one_of(choices: tuple[str, ...]) -> Drawn:
    return lambda names: names.rng.choice(choices)


def a_or_an(choices: tuple[str, ...]) -> Drawn:
    return lambda names: a(names.rng.choice(choices))


KINDS: dict[str, Drawn] = {
    "code": code,
    "word": word,
    "words": two_words,
    "made-up": lambda names: names.word(),
    "person": person,
    "place": lambda names: names.place(),
    "digits": digits,
    "phone": phone,
    "clock": clock,
    "date": date,
    "year": year,
    "day": day,
    "price": price,
    "quantity": quantity,
    "email": email,
    "spot": spot,
    "thing": thing,
    "house": house,
    "somebody": somebody,
    "colour": one_of(words.COLOURS),
    "food": one_of(words.FOODS),
    "animal": a_or_an(words.ANIMALS),
    "job": a_or_an(words.JOBS),
    "taught": one_of(lexicon.SUBJECTS_TAUGHT),
    "instrument": one_of(lexicon.INSTRUMENTS),
    "language": one_of(lexicon.LANGUAGES),
    "sport": one_of(lexicon.SPORTS),
    "vehicle": one_of(lexicon.VEHICLES),
    "small number": lambda names: str(names.rng.randint(2, 99)),
}
OPEN_KINDS = (
    *("code",) * 6, *("word",) * 4, *("words",) * 2, "made-up", "made-up", "person", "person", "place", "digits",
    "digits", "phone", "clock", "date", "year", "day", "price", "quantity", "email", "colour", "food", "animal", "spot",
)  # fmt: skip
"""Kinds of what an open slot holds, each as often as it is drawn."""


def any_value(names: Namer) -> str:
    """Draw the value of an open slot."""
    return KINDS[names.rng.choice(OPEN_KINDS)](names)
