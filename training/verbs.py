"""Facts told by a verb: somebody does something to something. Any subject, any value; some verbs are held out."""

from __future__ import annotations

from dataclasses import dataclass

from training.phrasings import Phrasings, ways


@dataclass(frozen=True, slots=True)
class Verb:
    """Its forms: bakes, bake, baked."""

    present: str
    base: str
    past: str


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(Verb(*forms.split()) for forms in text.split(",") if forms.strip())


VERBS = _verbs(
    """
    bakes bake baked, buys buy bought, builds build built, carries carry carried, chooses choose chose,
    collects collect collected, cooks cook cooked, draws draw drew, drinks drink drank, drives drive drove,
    drops drop dropped, eats eat ate, finds find found, fixes fix fixed, founds found founded, gets get got,
    grows grow grew, hates hate hated, hears hear heard, helps help helped, hides hide hid, holds hold held,
    invents invent invented, keeps keep kept, knows know knew, leads lead led, likes like liked, loses lose lost,
    loves love loved, makes make made, meets meet met, misses miss missed, needs need needed, opens open opened,
    orders order ordered, owns own owned, paints paint painted, plays play played, prefers prefer preferred,
    reads read read, rents rent rented, repairs repair repaired, runs run ran, sees see saw, sells sell sold,
    sends send sent, sings sing sang, studies study studied, takes take took, teaches teach taught,
    trusts trust trusted, tries try tried, uses use used, visits visit visited, wants want wanted,
    washes wash washed, watches watch watched, wears wear wore, wins win won, writes write wrote
    """
)
HELD_OUT_VERBS = _verbs(
    """
    admires admire admired, borrows borrow borrowed, juggles juggle juggled, feeds feed fed, inherits inherit inherited,
    kicks kick kicked, photographs photograph photographed, waxes wax waxed, rescues rescue rescued,
    steals steal stole, hums hum hummed, tastes taste tasted
    """
)
STATEMENTS = Phrasings(
    ways(
        """
        {y} {present} {z} | {y} {past} {z} | {y} {past} {z} | last year {y} {past} {z} | {y} always {present} {z}
        | {z} is what {y} {present} | it was {z} that {y} {past} | we heard that {y} {past} {z}
        | yesterday {y} {past} {z} | these days {y} {present} {z} | {y} once {past} {z} | {y} still {present} {z}
        | {y} will {base} {z} | {y} did {base} {z} | in the end {y} {past} {z} | {y} {past} {z} last week
        | {y} often {present} {z} | everybody knows that {y} {present} {z} | {y} had to {base} {z}
        """
    ),
    ways(
        """
        nobody was surprised when {y} {past} {z} | of all things, {y} {past} {z} | {y} went out and {past} {z}
        | there was a day when {y} {past} {z} | {y} was seen to {base} {z}
        """
    ),
)
QUESTIONS = Phrasings(
    ways(
        """
        what does {y} {base} | what did {y} {base} | what is it that {y} {present} | tell me what {y} {past}
        | do you know what {y} {present} | and what does {y} {base} | what will {y} {base} | say what {y} {past}
        | i forgot what {y} {past} | what was it that {y} {past} | what does {y} {base} these days
        | can you tell me what {y} {past} | according to the text, what did {y} {base} | {y} {past} what
        """
    ),
    ways(
        "name the thing that {y} {past} | i wonder what {y} {past}, do you know"
        " | {y} {past} something, and i forget what it was"
    ),
)
WHO = Phrasings(
    ways(
        "who {present} {z} | who {past} {z} | tell me who {past} {z} | who was it that {past} {z} | who will {base} {z}"
    ),
    ways("which one of them {past} {z} | i wonder who {past} {z}, do you know"),
)
"""Questions for the subject."""
