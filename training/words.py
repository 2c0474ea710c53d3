"""Names and words for the training text. Names are made up from syllables, so there is always one never seen.

A name belongs to one of two worlds by a hash of its letters: one in `HELD_OUT_SHARE` is never trained on, and recall is
measured with those.
"""

from __future__ import annotations

import random
import zlib

HELD_OUT_SHARE = 8
"""One made-up name in this many is held out."""


def split(words: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(words.split())


ONSETS = ("", *split("b br c ch d dr f g gr h j k l m n p pr r s sh st t th tr v w y z"))
VOWELS = split("a a a e e e i i o o o u ea ai")
CODAS = ("", "", "", "", "l", "m", "n", "r", "s", "t")
PERSON_ENDINGS = split(
    """
    a ah an ana bel bert by da dan den dor drick el ela en fa fred gar hild ia ian ic in ina ira is ka kin la lan
    lia lin lo lyn ma mar mi min mond na nard nell ney ni no nor o ra ric rick ris ro ron sa sha sin son ta tha
    tin ton tor tus va van vik vin win ya za zo
    """
)
PLACE_ENDINGS = split(
    """
    bay borough bourne bridge brook burgh bury by combe cross dale den don fell field ford gate ham haven hill
    holm hurst land leigh ley low mere minster mouth over pool port shaw stead stoke stow thorpe ton vale well
    wich wick wold wood worth
    """
)
WORD_ENDINGS = split(
    """
    ane aro ast een elo emi eth ian ibe ido ilo ist oda olu omb ona oris uma une ush yke ylo
    """
)

FIRST_NAMES = split(
    """
    Ada Adam Agnes Ahmed Alan Alex Alice Amy Andrew Angela Anna Arthur Ben Bob Carla Carlos Charles Chen Clara
    Daniel David Diana Edward Elena Ella Emily Emma Eric Eva Felix Fiona Frank George Grace Greta Hannah Harry
    Helen Henry Ida Ingrid Ivan Jack James Jane Jim Joe John Julia Karl Kate Laura Leo Linda Lisa Lucas Lucy Mara
    Maria Mark Martin Mary Max Mia Michael Mira Nadia Nina Noah Olga Oliver Omar Oscar Paul Peter Rosa Ruth Sam
    Sara Simon Sofia Susan Thomas Tim Tom Vera Victor Wendy William Yusuf Zoe
    """
)
REAL_PLACES = split(
    """
    Amsterdam Athens Berlin Boston Cairo Chicago Delhi Dublin Geneva Hamburg Helsinki Lagos Lima Lisbon London
    Madrid Milan Moscow Nairobi Oslo Paris Prague Rome Seoul Sydney Tokyo Toronto Vienna Warsaw Zurich
    """
)

COLOURS = split("red blue green yellow black white brown grey orange purple pink silver golden")
ANIMALS = split(
    """
    dog cat horse goat hen duck goose rabbit parrot pony sheep cow pig donkey turtle mouse owl fox hamster snake
    """
)
JOBS = split(
    """
    baker teacher doctor farmer painter writer driver nurse sailor singer cook tailor gardener carpenter plumber
    builder barber dentist lawyer judge pilot miller weaver potter fisher hunter clerk engineer librarian musician
    """
)
FOODS = split(
    """
    apples pears plums cherries grapes bread cheese soup rice noodles fish cake honey nuts carrots potatoes beans
    mushrooms tomatoes onions pancakes eggs lemons melons biscuits
    """
)
THINGS = split(
    """
    key lamp book cup box coat hat map letter ring clock chair table basket bottle bag knife spoon ball bell boat
    drum flute mirror candle blanket ladder rope bucket hammer picture stone coin purse shoe glove scarf umbrella
    kettle plate
    """
)
MATERIALS = split(
    """
    brass wooden iron glass paper leather copper stone old new small big heavy broken round
    """
)
SPOTS = split(
    """
    kitchen cellar garden attic hall barn stable shed tower bedroom library office workshop boathouse mill chapel
    school market station bakery inn tent cave forest meadow orchard harbour
    """
)
SPOT_WORDS = ("in", "behind", "near", "outside")
NOUNS = split(
    """
    river gate mill wheel boat bridge road house window door garden tree hill field cloud storm wind rain snow sun
    moon star fire night morning evening village town market ship sea beach island forest path wall roof bird fish
    horse dog child king queen farmer sailor teacher friend neighbour song story letter
    """
)
ADJECTIVES = split(
    """
    old young small big tall quiet loud bright dark warm cold long short happy sad brave clever kind gentle
    strange simple strong slow quick early late deep high empty busy
    """
)
VERBS = split(
    """
    sleeps waits sings turns rests shines moves falls opens closes grows stands laughs walks stops returns helps
    listens works plays
    """
)
PLACINGS = ("near", "behind", "beside", "above", "below", "under", "beyond", "in front of", "not far from")


def a(noun: str) -> str:
    """Return the noun with its article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def is_held_out(name: str) -> bool:
    """Return whether a made-up name must not occur in the training text."""
    return zlib.crc32(name.lower().encode()) % HELD_OUT_SHARE == 0


class Namer:
    """Draws names, all from one world."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self.rng = rng
        self.held_out = held_out

    def person(self) -> str:
        return self._draw(PERSON_ENDINGS, FIRST_NAMES)

    def place(self) -> str:
        return self._draw(PLACE_ENDINGS, REAL_PLACES)

    def word(self) -> str:
        """Draw a made-up word in small letters, as of a password."""
        return self._draw(WORD_ENDINGS, ()).lower()

    def number(self) -> str:
        """Draw two to four digits."""
        digits = self.rng.randint(2, 4)
        return str(self.rng.randint(10 ** (digits - 1), 10**digits - 1))

    def _draw(self, endings: tuple[str, ...], known: tuple[str, ...]) -> str:
        rng = self.rng
        if known and not self.held_out and rng.random() < 0.25:
            return rng.choice(known)
        while True:
            syllables = 2 if rng.random() < 0.1 else 1
            stem = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))
            name = (stem + rng.choice(endings)).capitalize()
            if 4 <= len(name) <= 12 and is_held_out(name) == self.held_out:
                return name
