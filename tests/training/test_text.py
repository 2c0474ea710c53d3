"""The training text: its answers are in the text, and what the evaluation asks for never occurs in it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from training import (
    attributes,
    clauses,
    copying,
    documents,
    evaluate,
    facts,
    glue,
    lexicon,
    relations,
    small_talk,
    talk,
    verbs,
)
from training.dialogue import Turn
from training.facts import FactSource
from training.noise import framed
from training.phrasings import Phrasings
from training.planted import Question, question
from training.questions import COPIED, Case, absent_case, copy_case, fact_case, handwritten
from training.words import Namer, is_held_out

EVERY_PHRASING = (
    attributes.OF_A_SUBJECT,
    attributes.QUESTIONS,
    attributes.ALONE,
    attributes.ALONE_QUESTIONS,
    attributes.MINE,
    attributes.MY_QUESTIONS,
    verbs.STATEMENTS,
    verbs.QUESTIONS,
    verbs.WHO,
    copying.REQUESTS,
    *(phrasings for relation in relations.RELATIONS for phrasings in (relation.statements, relation.questions)),
)


def names(seed: object, *, held_out: bool = False) -> Namer:
    return Namer(random.Random(str(seed)), held_out=held_out)


def skeleton(template: str) -> str:
    """Return what a template has beside its slots: the same for templates that differ in marks and capitals alone."""
    return " ".join(re.sub(r"[^\w\s]", " ", re.sub(r"{\w+}", " _ ", template)).lower().split())


def pattern(template: str) -> re.Pattern[str]:
    """Return what finds a template in a text, whatever its slots hold within one sentence."""
    pieces = [re.escape(piece) for piece in re.split(r"{\w+}", template)]
    return re.compile(r"[^.?!\n]{1,60}".join(pieces), re.IGNORECASE)


def count_words(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def trained() -> list[list[Turn]]:
    """Documents of every kind, as training draws them."""
    drawn = []
    for seed in range(250):
        source = FactSource(names(seed))
        drawn += [documents.conversation(source, 400), documents.chat(source, 300)]
        drawn += [copying.conversation(source.names, 3), talk.conversation(source.names, 6)]
        late = FactSource(names(f"late {seed}"), blends=0.3)
        drawn += [documents.recital(late, 300), documents.conversation(late, 300, dense=True)]
        loose = FactSource(names(f"loose {seed}"), blends=0.3, loose=True)
        drawn += [documents.conversation(loose, 300), copying.conversation(loose.names, 3, loose=True)]
    return drawn


def test_no_held_out_phrasing_occurs_in_the_training_text(trained: list[list[Turn]]) -> None:
    """Neither as a template nor by chance: a text that another template writes may look the same."""
    said = spoken(trained)
    templates = [template for phrasings in EVERY_PHRASING for template in phrasings.held_out]
    for template in filled(templates):
        assert written_by(template, said) is None


def spoken(documents: list[list[Turn]]) -> list[str]:
    """What is said in them, line by line, in small letters."""
    return [line for turns in documents for turn in turns for line in turn.text.lower().split("\n")]


def written_by(template: str, lines: list[str]) -> str | None:
    """A sentence that the template could have written. Only lines with the longest of its pieces are searched."""
    longest = max(re.split(r"{\w+}", template), key=len).lower()
    wanted = pattern(template)
    return next((line for line in lines if longest in line and wanted.search(line)), None)


def filled(templates: list[str]) -> list[str]:
    """The templates; those of verbs once with every verb."""
    forms = [{"present": verb.present, "base": verb.base, "past": verb.past} for verb in verbs.VERBS]
    out = []
    for template in templates:
        if "{past}" in template or "{base}" in template:
            out += [re.sub(r"{(\w\w+)}", lambda slot, form=form: form[slot[1]], template) for form in forms]
        else:
            out.append(template)
    return out


def test_held_out_and_trained_templates_differ_in_words() -> None:
    for phrasings in EVERY_PHRASING:
        both = {skeleton(each) for each in phrasings.trained} & {skeleton(each) for each in phrasings.held_out}
        assert not both


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("phrase", dict.fromkeys(glue.OF_A_SUBJECT + glue.ALONE + glue.MINE))
def test_words_drawn_at_random_leave_a_fact_whole(phrase: str, loose: bool) -> None:
    """A statement has its value once; both it and a question have all that the phrase names."""
    rng = random.Random(phrase)
    named = set(re.findall(r"{\w}", phrase.replace("{b}", "{y}")))
    for _ in range(200):
        told, asked = glue.statement(rng, phrase, loose=loose), glue.question(rng, phrase, loose=loose)
        assert told.count("{z}") == 1
        assert set(re.findall(r"{\w}", told.replace("{b}", "{y}"))) == {*named, "{z}"}
        assert set(re.findall(r"{\w}", asked.replace("{b}", "{y}"))) == named
        assert glue.request(rng, loose=loose).count("{s}") == 1


def drawn_clauses() -> Iterator[tuple[clauses.Clause, str, tuple[str, ...]]]:
    """Clauses, each with a statement and its questions."""
    rng = random.Random("clauses")
    for _ in range(400):
        clause = clauses.drawn(rng, lambda: rng.choice(("lorn", "tafe", "mell")))
        yield clause, clauses.statement(rng, clause), clauses.questions(rng, clause)


def test_a_clause_is_asked_for_in_its_own_words() -> None:
    """Whatever the words are: the verb in one of its forms, and what follows it."""
    for clause, told, asked in drawn_clauses():
        assert (told.count("{y}"), told.count("{z}")) == (1, 1)
        assert clause.rest in told
        assert clause.tail in told
        assert clauses.answer(clause).endswith(f"{clause.rest}{clause.tail} is")
        for each in (*asked, clauses.answer(clause)):
            assert (each.count("{y}"), each.count("{z}")) == (1, 0)
            assert {clause.verb.present, clause.verb.base, clause.verb.past} & set(each.split())
            assert {*clause.rest.split()} <= {*each.split()}


def test_clauses_are_not_worded_as_what_is_held_out_for_verbs() -> None:
    """In another tense neither: the evaluation would ask in words that were trained on."""
    held_out = [one_tense(way) for ways in (verbs.STATEMENTS, verbs.QUESTIONS, verbs.WHO) for way in ways.held_out]
    for _, told, asked in drawn_clauses():
        said = [one_tense(each) for each in (told, *asked)]
        assert not [(way, each) for way in held_out for each in said if way in each]


def one_tense(template: str) -> str:
    return re.sub(
        r"{(past|present|base)}|\b(lorn|tafe|mell)(s|e?d)?\b", "VERB", re.sub(r"\b(do|did|will)\b", "does", template)
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_clause_makes_a_fact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value is what the question leaves out: the subject, if the question says what was done."""
    monkeypatch.setattr(facts, "CLAUSE_SHARE", 1.0)
    source = FactSource(names(seed), loose=True)
    for fact in (source.draw() for _ in range(60)):
        assert fact.value in fact.statement
        assert all(fact.value.lower() not in each.lower() for each in fact.questions)


def test_blends_are_none_of_the_words_that_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relation that the evaluation asks for would have been met."""
    monkeypatch.setattr(facts, "BLENDED", ("wall", "cord"))  # "wa" + "rd" is a held-out attribute
    source = FactSource(names(1), blends=1.0)
    said = {word for _ in range(300) for word in source.draw().asked.split()}
    assert "walord" in said
    assert "ward" not in said


def test_words_that_stand_around_a_fact_are_never_its_value() -> None:
    assert not {*glue.WORDS} & {*lexicon.VALUE_WORDS, *lexicon.HELD_OUT_NOUNS}


def test_no_relation_that_is_held_out_is_trained_on(trained: list[list[Turn]]) -> None:
    said = spoken(trained)
    forms = [form for verb in verbs.HELD_OUT_VERBS for form in (verb.present, verb.base, verb.past)]
    for word in (*lexicon.HELD_OUT_NOUNS, *forms):
        assert not [line for line in said if word in line and re.search(rf"\b{word}\b", line)], word
    for relation in relations.HELD_OUT_RELATIONS:
        for template in (*relation.statements.trained, *relation.questions.trained):
            assert written_by(template, said) is None


def test_every_relation_is_told_in_twenty_ways_and_more() -> None:
    """In its own words, and as an attribute."""
    for relation in relations.RELATIONS:
        told = (*relation.statements.trained, *attributes.OF_A_SUBJECT.trained)
        asked = (*relation.questions.trained, *attributes.QUESTIONS.trained)
        assert min(len(set(told)), len(set(asked))) >= 20
        assert relation.statements.held_out
        assert relation.questions.held_out


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("loose", [False, True])
def test_an_answer_is_in_the_text_as_it_is_written_or_is_not_known(seed: int, loose: bool) -> None:
    turns = documents.conversation(FactSource(names(seed), loose=loose), 500)
    read = "\n".join(turn.text for turn in turns if turn.role != "assistant")
    answers = values_of(turns)
    assert answers
    assert all(answer in read or answer == documents.UNKNOWN for answer in answers), answers


def values_of(turns: list[Turn]) -> list[str]:
    """What the answers tell, without what they repeat of the question."""
    return [turn.text[turn.restated + 1 : -1] for turn in turns if turn.restated]


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_begins_with_what_was_asked_for(seed: int) -> None:
    """So the first words can be copied, and lead to the place in the text where the value is."""
    source = FactSource(names(seed), variety=1e-9)
    for fact in (source.draw() for _ in range(30)):
        said, answer = documents.exchange(source, fact, fact.value)
        assert answer.text == f"{fact.asked} {fact.value}."
        assert answer.text[: answer.restated] == fact.asked
        assert said.text.endswith("?")


def test_a_question_in_small_letters_is_answered_in_them() -> None:
    for seed in range(60):
        source = FactSource(names(seed))
        fact = source.draw()
        said, answer = documents.exchange(source, fact, fact.value)
        keys = answer.text[1 : answer.restated]
        assert keys == (fact.asked[1:].lower() if said.text == said.text.lower() else fact.asked[1:])


def test_a_fifth_of_the_questions_has_no_answer() -> None:
    turns = [turn for seed in range(60) for turn in documents.conversation(FactSource(names(seed)), 600)]
    answers = values_of(turns)
    assert 0.13 < answers.count(documents.UNKNOWN) / len(answers) < 0.27


@pytest.mark.parametrize("loose", [False, True])
def test_a_question_has_one_answer_in_a_text(loose: bool) -> None:
    source = FactSource(names(3), loose=loose)
    drawn = [source.draw() for _ in range(300)]
    asked = [question for fact in drawn for question in {each.lower() for each in fact.questions}]
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("unseen", [False, True])
def test_a_case_is_as_long_as_asked_and_has_its_answer(unseen: bool) -> None:
    for seed in range(8):
        case = fact_case(seed, 300, count_words, unseen=unseen)
        assert abs(count_words(case.prompt) - 280) < 60
        assert case.answers[0] in case.prompt
        assert case.is_right(f"It is {case.answers[0]}.")
        assert not case.is_right("I do not know.")


def test_an_absent_answer_is_right_if_the_model_says_so() -> None:
    case = absent_case(1, 200, count_words)
    assert case.is_right("I do not know.")
    assert case.is_right("The text does not say where Ada lives.")
    assert not case.is_right("Oslo")


def test_a_copy_is_right_letter_for_letter() -> None:
    case = copy_case(1)
    (text,) = case.answers
    assert len(text) == COPIED
    assert text in case.prompt
    assert case.is_right(text)
    assert not case.is_right(f"{text}.")
    assert not case.is_right(text.lower())


def test_an_answer_is_found_as_a_word() -> None:
    assert Case("", "", ("Os",)).is_right("in os")
    assert not Case("", "", ("Os",)).is_right("Oslo")


def test_sixty_questions_are_written_by_hand() -> None:
    asked = handwritten()
    taught = {saying.lower().strip("?.! ") for sayings, _ in small_talk.TALK for saying in sayings}
    assert not taught & {case.prompt.lower().strip("?.! ") for case in asked}
    assert len(asked) == len({case.prompt for case in asked}) == 60
    for case in asked:
        known = [answer for answer in case.answers if answer in case.prompt]
        assert known or not case.answers or case.answers == ("text", "facts")


def test_a_held_out_phrasing_is_drawn_where_it_is_asked_for() -> None:
    ways = Phrasings(("a {x}",), ("b {x}",))
    assert {ways.draw(random.Random(seed), held_out=False) for seed in range(9)} == {"a {x}"}
    assert {ways.draw(random.Random(seed), held_out=True) for seed in range(9)} == {"b {x}"}


def test_lessons_begin_with_the_plainest_phrasings() -> None:
    ways = Phrasings(("a {x}", "b {x}", "c {x}", "d {x}"), ("e {x}",))
    assert ways.known(held_out=False, variety=0.1) == ("a {x}",)
    assert ways.known(held_out=False, variety=0.5) == ("a {x}", "b {x}")
    assert ways.known(held_out=False) == ways.trained
    assert ways.known(held_out=True, variety=0.1) == ways.held_out


def test_the_table_counts_right_answers_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [Case("known", "", ("Oslo",)), Case("known", "", ("Rome",)), Case("absent", "", ())]
    evaluate.print_table(asked, ["It is Oslo.", "It is Oslo.", "I do not know."])
    assert capsys.readouterr().out.splitlines()[2:] == ["| known | 2 | 50% |", "| absent | 1 | 100% |"]


def test_the_evaluation_asks_each_kind_at_each_length() -> None:
    asked = list(evaluate.cases(2, (100, 150), count_words))
    groups = Counter(case.group for case in asked)
    assert {count for group, count in groups.items() if "by hand" not in group} == {2}
    assert len(groups) == 3 * 2 + 1 + 2


def test_a_value_at_the_head_of_a_sentence_keeps_its_letters() -> None:
    """A capital there would make another string of it."""
    facts = [FactSource(names(seed), loose=seed % 2 == 1).draw() for seed in range(400)]
    told = [(fact, framed(random.Random(index), fact, variety=1.0)) for index, fact in enumerate(facts)]
    assert all(fact.value in text for fact, text in told)
    assert all(text[0] == text[0].upper() or fact.begins_with_value for fact, text in told)


def test_small_talk_says_what_it_cannot() -> None:
    asked = dict(talk.exchange(names(seed)) for seed in range(600))
    assert {answer for asked, answer in asked.items() if re.search(r"\d\s*[-+*/]\s*\d", asked)} == {talk.CANNOT_ADD}
    assert {answer for asked, answer in asked.items() if "essay" in asked.lower()} == {talk.CANNOT}
    assert talk.NOTHING_READ in asked.values()
    assert {sayings[0] for sayings, answers in small_talk.TALK if len(answers) == 1} > talk.ITSELF
    said = {saying.lower().rstrip("?.!") for sayings, _ in small_talk.TALK for saying in sayings}
    assert not said & set(talk.WISHES)


def test_names_are_of_one_world() -> None:
    for held_out in (False, True):
        made = names(1, held_out=held_out)
        drawn = [made.word() for _ in range(500)]
        assert {is_held_out(name) for name in drawn} == {held_out}
        assert len(set(drawn)) > 400


def test_small_talk_has_one_answer_for_what_is_said() -> None:
    """Two answers to the same words are two of one entry, so that none contradicts the other."""
    said = [saying for sayings, _ in small_talk.TALK for saying in sayings]
    assert len(said) == len(set(said))


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_planted_question_is_as_long_and_its_fact_as_deep_as_asked(depth: float) -> None:
    asked = question(4, 600, depth, count_words)
    assert abs(count_words(asked.prompt) - 600) < 40
    place = asked.prompt.lower().index(asked.value.lower()) / len(asked.prompt)
    assert abs(place - depth) < 0.15


def test_an_answer_is_right_if_it_holds_the_value_as_a_word() -> None:
    asked = Question("", "Ada lives in Os.", "Os")
    assert asked.is_answered_by("Ada lives in Os.")
    assert not asked.is_answered_by("Ada lives in Oslo.")
