"""`POST /v1/decisions`: questions about one input, answered by how likely the model is to give each of some answers.

The form is that of SGLang 0.5.23 and vLLM 0.33. Nothing is generated: each question is a chat whose only message holds
the input, the question, and a label of one token for each answer, and the probabilities are those of the labels as the
next token. The input stands first, so it is computed once for all questions.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.base.backend import Service
from sluice.http.base.body import read_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.routes import Body
from sluice.http.base.tokenizer_threads import Check, TokenizerThreads
from sluice.http.call import generation as counts
from sluice.http.call.generate_call import (
    MAX_CHOICES,
    Conversation,
    GenerateCall,
    RequestFields,
    Text,
    documented,
    terms_of,
)
from sluice.http.call.generating import Asked
from sluice.http.call.generation import Generation, prompt_end
from sluice.http.call.logprobs import shares
from sluice.http.call.template_fields import TemplateFields, conversation_of, thinking_switches
from sluice.http.call.tokenize import CHARACTERS_PER_TOKEN, MAX_CALL_TOKENS
from sluice.http.call.usage import Usage, usage_json
from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import SamplingParams
from sluice.types.shown import shown

Kind = Literal["choice", "score", "yes_no"]
PROMPT_FORMAT_VERSION = 1
"""Version of the words around input and questions, which decide on probabilities."""
LETTERS = string.ascii_uppercase
NUMBERS = string.digits
YES_NO = ("yes", "no")
Said = Annotated[Any, documented(anyOf=[{"type": "string"}, {"type": "object"}, {"type": "array"}])]
"""A text, or JSON that stands in the prompt as text."""


class DecisionOption(msgspec.Struct, forbid_unknown_fields=True):
    name: Text
    description: Said = None


class ChoiceQuestion(msgspec.Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    """Which of some options, at most 26."""

    id: Text
    question: Said
    options: list[DecisionOption]


class ScoreQuestion(msgspec.Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    """How much: which of some levels, at most 10, from the lowest."""

    id: Text
    question: Said
    levels: list[Said]


class YesNoQuestion(msgspec.Struct, tag_field="type", tag="yes_no", forbid_unknown_fields=True):
    id: Text
    question: Said
    yes: Said = None
    """What yes means, as `no` does."""
    no: Said = None


Question = ChoiceQuestion | ScoreQuestion | YesNoQuestion


class DecisionFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/decisions`."""

    model: str | None = None
    input: Said
    questions: Annotated[list[Question], documented(minItems=1)]
    temperature: Annotated[float, documented(exclusiveMinimum=0)] = 1.0
    """Divides the logits of the labels. `label_mass` is without it."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    prompt_format_version: int | None = None
    return_prompt_token_ids: bool = False


class Decision(msgspec.Struct, kw_only=True):
    """The answer to one question."""

    type: Kind
    probabilities: dict[str, float]
    """By the names of the options, the numbers of the levels, or yes and no; their sum is 1."""
    label_mass: float
    """The probability of all labels together: a low one says that the model would answer something else."""
    choice: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    """The mean of the levels' numbers, by their probabilities."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    label_token_ids: list[int] | UnsetType = UNSET


class Decisions(msgspec.Struct, kw_only=True):
    """The answer to `POST /v1/decisions`."""

    object: Literal["decisions"]
    model: str
    prompt_format_version: int
    answers: dict[str, Decision]
    """By the ids of the questions."""
    usage: Usage


DECISION_BODY = Body((DecisionFields,))


@dataclass(frozen=True, slots=True)
class _Answers:
    """What may be answered to a question."""

    type: Kind
    names: tuple[str, ...]
    labels: tuple[str, ...]
    meanings: tuple[str, ...]
    """A line for each that has something to say."""
    asks: str
    """The last line of the prompt."""


def parse_decisions(body: bytes) -> GenerateCall[DecisionFields]:
    """Check the body of `POST /v1/decisions`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, DecisionFields)
    _check_said("input", fields.input)
    text = _said(fields.input)
    _check_size(len(text), len(fields.questions))
    require(fields.temperature > 0, f"temperature must be above 0, got {fields.temperature}", param="temperature")
    version = fields.prompt_format_version
    message = f"prompt_format_version {version} is not served; this server has {PROMPT_FORMAT_VERSION}"
    require(version in (None, PROMPT_FORMAT_VERSION), message, param="prompt_format_version")
    require(bool(fields.questions), "questions must not be empty", param="questions")
    ids = set[str]()
    for index, question in enumerate(fields.questions):
        place = f"questions[{index}]"
        require(question.id not in ids, f"{place}.id {shown(question.id)} is given twice", param=f"{place}.id")
        ids.add(question.id)
        _check_question(place, question)
    return GenerateCall(
        fields=fields,
        prompts=tuple(_conversation(text, fields, question) for question in fields.questions),
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=0),
        terms=terms_of(fields),
        model=fields.model,
        names={"prompt": "input"},
        add_special_tokens=False,
    )


async def with_labels(
    service: Service, threads: TokenizerThreads, call: GenerateCall[DecisionFields], prompts: list[list[int]]
) -> Asked[list[list[int]]]:
    """Return what is asked for the prompts of a call's questions, with the ids of the labels of each question.

    Raises:
        ApiError: 400, a label is not one token behind the prompt, or the model reasons before it answers.
    """
    end, reasoning = prompt_end(service, prompts[0], call), service.replies.reasoning
    is_open = False if reasoning is None else reasoning.is_open(end)
    if is_open or (is_open is None and reasoning is not None and reasoning.always):
        raise bad_request(
            "the chat template lets the model reason before it answers; send chat_template_kwargs that turn it off",
            param="chat_template_kwargs",
        )

    def find(check: Check) -> list[list[int]]:
        known: dict[tuple[tuple[int, ...], str], int | None] = {}
        found = []
        for question, prompt in zip(call.fields.questions, prompts, strict=True):
            check()
            found.append(_label_ids(service.tokenizer, prompt, _answers(question).labels, known))
        return found

    labels = await threads.for_generation(sum(map(len, prompts)), find)
    named = tuple(sorted({token for ids in labels for token in ids}))
    return Asked(replace(call.sampling, logprob_token_ids=named), prompts, labels)


class DecisionAnswer:
    """The answer to `POST /v1/decisions`.

    Args:
        labels: ids of the labels of each question.
    """

    def __init__(self, call: GenerateCall[DecisionFields], generation: Generation, labels: Sequence[list[int]]) -> None:
        self._fields = call.fields
        self._labels = labels
        self._generation = generation

    def whole(self, choices: Sequence[Sequence[Piece]], usage: counts.Usage) -> Decisions:
        questions = zip(self._fields.questions, choices, self._generation.choices, self._labels, strict=True)
        answers: dict[str, Decision] = {}
        for question, pieces, choice, labels in questions:
            scored = pieces[0].logprobs
            assert scored is not None, "the labels were not scored"
            found = dict(scored.top)
            decision = self._decision(question, [found[token] for token in labels])
            if self._fields.return_prompt_token_ids:
                decision.prompt_token_ids, decision.label_token_ids = list(choice.prompt), labels
            answers[question.id] = decision
        return Decisions(
            object="decisions",
            model=self._generation.model,
            prompt_format_version=PROMPT_FORMAT_VERSION,
            answers=answers,
            usage=usage_json(replace(usage, completion_tokens=0)),
        )

    def _decision(self, question: Question, logprobs: Sequence[float]) -> Decision:
        """Return the answer to a question from the log-probabilities of its labels."""
        answers = _answers(question)
        names = answers.names
        found = shares(logprobs, self._fields.temperature)
        decision = Decision(
            type=answers.type,
            probabilities=dict(zip(names, found, strict=True)),
            label_mass=min(1.0, math.fsum(map(math.exp, logprobs))),
        )
        if isinstance(question, ChoiceQuestion):
            decision.choice = names[found.index(max(found))]
        elif isinstance(question, ScoreQuestion):
            decision.score = math.fsum(level * share for level, share in enumerate(found))
        return decision


def _check_size(characters: int, questions: int) -> None:
    """Refuse what would become too many prompts, or too long ones, before they are made: each repeats the input."""
    message = f"questions may be at most {MAX_CHOICES}, got {questions}"
    require(questions <= MAX_CHOICES, message, param="questions")
    most = MAX_CALL_TOKENS * CHARACTERS_PER_TOKEN
    message = (
        f"{questions} prompts with an input of {characters} characters each have more than {most}; ask in several calls"
    )
    require(questions <= 1 or questions * characters <= most, message, param="questions")


def _check_question(place: str, question: Question) -> None:
    _check_said(f"{place}.question", question.question)
    if isinstance(question, ChoiceQuestion):
        _check_count(f"{place}.options", len(question.options), len(LETTERS))
        names = [option.name for option in question.options]
        require(all(names), f"{place}.options have names that are not empty", param=f"{place}.options")
        message = f"{place}.options have the same name twice"
        require(len(set(names)) == len(names), message, param=f"{place}.options")
    elif isinstance(question, ScoreQuestion):
        _check_count(f"{place}.levels", len(question.levels), len(NUMBERS))
        said = [_said(level) for level in question.levels]
        for index, level in enumerate(question.levels):
            param = f"{place}.levels[{index}]"
            _check_said(param, level)
            first = said.index(said[index])
            require(first == index, f"{param} is the same as {place}.levels[{first}]", param=param)


def _check_count(param: str, count: int, most: int) -> None:
    require(2 <= count <= most, f"{param} must be 2 to {most}, got {count}", param=param)


def _check_said(param: str, value: Any) -> None:
    message = f"{param} must be a text, an object or a list, and not empty"
    require(isinstance(value, str | dict | list) and bool(_said(value).strip()), message, param=param)


def _said(value: Any) -> str:
    """Return a text as it is, nothing as an empty text, and JSON in its shortest form."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else ""


def _conversation(text: str, fields: DecisionFields, question: Question) -> Conversation:
    answers = _answers(question)
    lines = [f"{text}\n", _said(question.question), *answers.meanings, answers.asks]
    variables = thinking_switches(thinks=False) | fields.chat_template_kwargs
    template = TemplateFields(chat_template_kwargs=variables)
    return conversation_of([{"role": "user", "content": "\n".join(lines)}], template)


def _answers(question: Question) -> _Answers:
    match question:
        case ChoiceQuestion():
            names = tuple(option.name for option in question.options)
            labels = tuple(LETTERS[: len(names)])
            said = [f"{option.name}: {_said(option.description)}".removesuffix(": ") for option in question.options]
            meanings = tuple(f"{label}) {meaning}" for label, meaning in zip(labels, said, strict=True))
            return _Answers("choice", names, labels, meanings, "Reply with one letter and nothing else.")
        case ScoreQuestion():
            labels = tuple(NUMBERS[: len(question.levels)])
            levels = zip(labels, question.levels, strict=True)
            meanings = tuple(f"{label}) {_said(level)}" for label, level in levels)
            return _Answers("score", labels, labels, meanings, "Reply with one number and nothing else.")
        case YesNoQuestion():
            meant = {"yes": _said(question.yes), "no": _said(question.no)}
            meanings = tuple(f"{label}: {meaning}" for label, meaning in meant.items() if meaning)
            return _Answers("yes_no", YES_NO, YES_NO, meanings, "Reply with yes or no and nothing else.")


def _label_ids(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    labels: Sequence[str],
    known: dict[tuple[tuple[int, ...], str], int | None],
) -> list[int]:
    """Return the token that each label is behind a prompt.

    Text behind the last special token is cut into tokens by itself, so only that is read again with each label.

    Args:
        known: (end of a prompt, label) -> its token, None if it is not one: most prompts of a call end alike.

    Raises:
        ApiError: 400, a label is not one token, or two are the same.
    """
    start = next((at for at in range(len(prompt), 0, -1) if tokenizer.is_special(prompt[at - 1])), 0)
    tail = tuple(prompt[start:])
    found: list[int] = []
    for label in labels:
        if (tail, label) not in known:
            text = tokenizer.decode(tail, skip_special_tokens=False)
            *before, last = tokenizer.encode(text + label, add_special_tokens=False)
            known[tail, label] = last if tuple(before) == tail else None
        token = known[tail, label]
        if token is None or token in found:
            raise bad_request(
                f"decisions are not supported with this model: {shown(label)} is not one token of its own behind"
                " the prompt",
                param="questions",
                code="unsupported",
            )
        found.append(token)
    return found
