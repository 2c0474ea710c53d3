"""Draws facts for one text. No two of them answer one question, so that an answer is right or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from training import attributes, clauses, glue, lexicon, relations, values, verbs, words
from training.phrasings import Phrasings
from training.words import Namer

KNOWN_SUBJECT = 0.35
"""Facts about something that the text names already, so that a subject alone does not give the answer."""
KNOWN_NOUN = 0.3
"""Facts of an attribute that the text has already, of something else."""
GLUED_SHARE = 0.4
"""Statements about attributes in words that are drawn at random."""
GLUED_QUESTIONS = 0.6
"""Questions in such words, for each that has a template."""
CLAUSE_SHARE = 0.18
"""Facts of a loose text that are told by a clause in words drawn at random."""
KNOWN_CLAUSE = 0.3
"""Clauses that the text has already, of something else."""
LOOSE_SHARE = 0.2
"""Statements and questions of a loose text that get words around them that mean nothing."""
BLENDED = tuple(
    sorted(
        word
        for word in {
            *lexicon.ATTRIBUTE_NOUNS,
            *lexicon.THING_NOUNS,
            *lexicon.VALUE_WORDS,
            *words.NOUNS,
            *words.ADJECTIVES,
        }
        if word.isalpha() and len(word) > 3
    )
)
"""Words whose parts make other words."""
HELD_OUT_WORDS = frozenset(
    word
    for phrase in (
        *lexicon.HELD_OUT_NOUNS,
        *(form for verb in verbs.HELD_OUT_VERBS for form in (verb.present, verb.base, verb.past)),
    )
    for word in phrase.split()
)
OF_A_SUBJECT = "The {x} of {y} is"
"""How an answer about an attribute begins."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, as it is told and as it is asked for.

    `statement` begins with a small letter and has no mark at its end. `value` is how the statement writes it, and
    `asked` is how an answer begins, before the value: "The code of the mill is".
    """

    statement: str
    begins_with_value: bool
    questions: tuple[str, ...]
    value: str
    asked: str


class FactSource:
    """Draws facts that cannot be mixed up with those drawn before.

    Args:
        held_out_phrasings: statements and questions are those that training never draws.
        held_out_relations: the kinds of facts are those that training never draws.
        variety: share of the phrasings that are drawn, the plainest first. Less of it also means fewer facts that are
            about one thing, or of one attribute.
        blends: share of the attributes and verbs that are named by parts of two words.
        loose: facts are also told by clauses in drawn words, words that mean nothing stand around any of them, and
            what names a fact stands apart from its value more often.
    """

    def __init__(
        self,
        names: Namer,
        *,
        held_out_phrasings: bool = False,
        held_out_relations: bool = False,
        variety: float = 1.0,
        blends: float = 0.0,
        loose: bool = False,
    ) -> None:
        self.names = names
        self.rng = names.rng
        self.held_out_phrasings = held_out_phrasings
        self.held_out_relations = held_out_relations
        self.variety = variety
        self.blends = blends
        self.loose = loose
        self.glues = not (held_out_phrasings or held_out_relations)
        self.answered: set[str] = set()
        """What the facts drawn so far are about, in small letters."""
        self.subjects: dict[str, list[str]] = {}
        self.nouns: list[str] = []
        self.clauses: list[clauses.Clause] = []

    def draw(self) -> Fact:
        """Draw a fact of any kind."""
        while True:
            is_clause = self.loose and self.rng.random() < CLAUSE_SHARE
            fact = self._clause() if is_clause else self._of_a_table()
            if fact is not None:
                return fact

    def _of_a_table(self) -> Fact | None:
        """Draw a fact of a kind that has templates."""
        chance = self.rng.random()
        if chance < 0.44:
            return self._attribute()
        if chance < 0.74:
            return self._relation()
        if chance < 0.88:
            return self._verb()
        return self._alone() if chance < 0.94 else self._mine()

    def profile(self, count: int) -> list[Fact]:
        """Draw facts about one thing, named in the first of them alone."""
        subject = self._subject("somebody" if self.rng.random() < 0.6 else "thing")
        wordings = [attributes.OF_A_SUBJECT, *[attributes.PRONOUN] * (count - 1)]
        drawn = [self._attribute(subject, wording) for wording in wordings]
        return [fact for fact in drawn if fact is not None] if drawn[0] is not None else self.profile(count)

    def _attribute(self, subject: str | None = None, wording: Phrasings = attributes.OF_A_SUBJECT) -> Fact | None:
        subject = subject or self._subject(
            self.rng.choice(("somebody", "somebody", "place", "thing", "thing", "house"))
        )
        slots = {"x": self._noun(), "y": subject, "z": values.any_value(self.names)}
        phrases = () if wording is attributes.PRONOUN else glue.OF_A_SUBJECT
        keys = attribute_keys(slots["x"], subject)
        return self._fact(wording, attributes.QUESTIONS, slots, keys, OF_A_SUBJECT, phrases=phrases)

    def _relation(self) -> Fact | None:
        held_out = self.held_out_relations
        relation = self.rng.choice(relations.HELD_OUT_RELATIONS if held_out else relations.RELATIONS)
        subject = self._subject(relation.subject)
        slots = {"y": subject, "z": values.KINDS[relation.value](self.names)}
        keys = {asked.format(y=subject) for asked in (*relation.questions.trained, *relation.questions.held_out)}
        for noun in relation.nouns:
            keys |= attribute_keys(noun, subject)
        if not relation.nouns:
            return self._fact(relation.statements, relation.questions, slots, keys, "This is")
        slots["x"] = relation.nouns[0]
        if self.rng.random() < 0.65:
            return self._fact(relation.statements, relation.questions, slots, keys, OF_A_SUBJECT)
        if self.rng.random() < 0.5:
            return self._fact(attributes.OF_A_SUBJECT, relation.questions, slots, keys, OF_A_SUBJECT)
        slots["x"] = self.rng.choice(relation.nouns)
        return self._fact(relation.statements, attributes.QUESTIONS, slots, keys, OF_A_SUBJECT)

    def _verb(self) -> Fact | None:
        verb = self._verb_form()
        forms = {"present": verb.present, "base": verb.base, "past": verb.past}
        slots = {"y": self._subject("somebody"), "z": self._object(), **forms}
        keys = {f"what {slots['y']} {verb.base}", f"who {verb.base} {slots['z']}"}
        if self.rng.random() < 0.7:
            return self._fact(verbs.STATEMENTS, verbs.QUESTIONS, slots, keys, "What {y} {past} is")
        return self._fact(verbs.STATEMENTS, verbs.WHO, slots, keys, "The one who {past} {z} is", answer=slots["y"])

    def _verb_form(self) -> verbs.Verb:
        if self.blends and self.rng.random() < self.blends:
            base = self._blend()
            return verbs.Verb(f"{base}s", base, f"{base}ed")
        return self.rng.choice(verbs.HELD_OUT_VERBS if self.held_out_relations else verbs.VERBS)

    def _blend(self) -> str:
        """Draw the first part of one word and the last part of another, of no held-out name."""
        rng = self.rng
        while True:
            one, two = rng.sample(BLENDED, 2)
            word = one[: rng.randint(2, len(one) - 1)] + two[-rng.randint(2, len(two) - 1) :]
            if 4 <= len(word) <= 12 and word not in HELD_OUT_WORDS and not words.is_held_out(word.capitalize()):
                return word

    def _clause(self) -> Fact | None:
        rng = self.rng
        if self.clauses and rng.random() < KNOWN_CLAUSE:
            clause = rng.choice(self.clauses)
        else:
            clause = clauses.drawn(rng, self._any_word)
            self.clauses.append(clause)
        subject = self._subject(rng.choice(("somebody", "somebody", "thing", "thing", "house", "place")))
        slots = {"y": subject, "z": values.KINDS[clause.kind](self.names)}
        verb = f"{clause.verb.base}{clause.rest if clause.is_description else ''}"
        keys = {f"what {subject} {verb}", f"who {verb} {slots['z']}"}
        told = Phrasings((clauses.statement(rng, clause),))
        if rng.random() < 0.8:
            asked = Phrasings(clauses.questions(rng, clause))
            return self._fact(told, asked, slots, keys, clauses.answer(clause))
        asked = Phrasings(clauses.who_questions(clause))
        return self._fact(told, asked, slots, keys, clauses.who_answer(clause), answer=subject)

    def _any_word(self) -> str:
        """Draw a word for anything: one of the list, or one that does not exist."""
        if self.rng.random() < 0.5:
            return self._blend()
        word = self.rng.choice(BLENDED)
        return self._blend() if word in HELD_OUT_WORDS else word

    def _alone(self) -> Fact | None:
        noun = self._noun()
        slots = {"x": noun, "y": "", "z": values.any_value(self.names)}
        keys = {f"the {noun}"}
        return self._fact(attributes.ALONE, attributes.ALONE_QUESTIONS, slots, keys, "The {x} is", phrases=glue.ALONE)

    def _mine(self) -> Fact | None:
        noun = self._noun()
        slots = {"x": noun, "y": "", "z": values.any_value(self.names)}
        keys = {f"my {noun}"}
        return self._fact(attributes.MINE, attributes.MY_QUESTIONS, slots, keys, "Your {x} is", phrases=glue.MINE)

    def _object(self) -> str:
        if self.rng.random() < 0.5:
            return values.any_value(self.names)
        return values.KINDS[self.rng.choice(("thing", "food", "person", "animal"))](self.names)

    def _subject(self, kind: str) -> str:
        known = self.subjects.setdefault(kind, [])
        if known and self.rng.random() < self.variety * KNOWN_SUBJECT:
            return self.rng.choice(known)
        known.append(values.KINDS[kind](self.names))
        return known[-1]

    def _noun(self) -> str:
        """Draw what an attribute is called: one noun or two, any other word, or one that does not exist."""
        rng = self.rng
        if self.held_out_relations:
            return rng.choice(lexicon.HELD_OUT_NOUNS)
        if self.blends and rng.random() < self.blends:
            return self._blend() if rng.random() < 0.6 else f"{self._blend()} {rng.choice(lexicon.ATTRIBUTE_NOUNS)}"
        if self.nouns and rng.random() < self.variety * KNOWN_NOUN:
            return rng.choice(self.nouns)
        chance = rng.random()
        noun = rng.choice(lexicon.ATTRIBUTE_NOUNS)
        if 0.6 < chance < 0.75:
            noun = f"{rng.choice(lexicon.THING_NOUNS)} {noun}"
        elif 0.75 < chance < 0.82:
            noun = f"{rng.choice(words.ADJECTIVES)} {noun}"
        elif 0.82 < chance < 0.93:
            noun = rng.choice((*lexicon.THING_NOUNS, *words.NOUNS, *lexicon.VALUE_WORDS))
        elif chance > 0.93:
            noun = self.names.word()
        self.nouns.append(noun)
        return noun

    def _fact(
        self,
        statements: Phrasings,
        questions: Phrasings,
        slots: Mapping[str, str],
        keys: Set[str],
        asked: str,
        answer: str | None = None,
        phrases: Sequence[str] = (),
    ) -> Fact | None:
        """Return the fact; nothing if the text answers its question already, or the question gives the answer away.

        Args:
            keys: what the fact answers.
            asked: how its answer begins, a template.
            phrases: what names the fact, templates, if it may be told and asked for in words drawn at random.
            answer: the value of the fact, if it is not {z}.
        """
        value = answer or slots["z"]
        words_of = {"b": slots["y"].removeprefix("the "), **slots}
        ways = questions.known(held_out=self.held_out_phrasings, variety=self.variety)
        if phrases and self.glues:
            count = round(GLUED_QUESTIONS * self.variety * len(ways))
            ways = (*ways, *(glue.question(self.rng, self.rng.choice(phrases), loose=self.loose) for _ in range(count)))
        if self.loose:
            ways = tuple(glue.around(self.rng, way) if self.rng.random() < LOOSE_SHARE else way for way in ways)
        questioned = tuple(way.format(**words_of) for way in ways)
        answered = {key.lower() for key in keys}
        if answered & self.answered or any(value.lower() in each.lower() for each in questioned):
            return None
        self.answered |= answered
        if phrases and self.glues and self.rng.random() < GLUED_SHARE * self.variety:
            told = glue.statement(self.rng, self.rng.choice(phrases), loose=self.loose)
        else:
            told = statements.draw(self.rng, held_out=self.held_out_phrasings, variety=self.variety)
            if self.loose and self.rng.random() < LOOSE_SHARE:
                told = glue.around(self.rng, told)
        begins = told.startswith("{z}" if answer is None else "{y}")
        return Fact(told.format(**words_of), begins, questioned, value, asked.format(**words_of))


def attribute_keys(noun: str, subject: str) -> set[str]:
    """Return what a fact about an attribute answers: "the code of the mill" and "the mill code"."""
    return {f"{noun} of {subject}", f"the {subject.removeprefix('the ')} {noun}"}
