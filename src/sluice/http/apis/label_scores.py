"""The generative form of `POST /score`: how likely some answers are behind a query and each of some items.

Nothing is generated. The labels are tokens (`label_token_ids`, as vLLM and SGLang have them), or texts of any number of
tokens. The tokens of texts form a tree: each node that is not the end of a label is one prompt, and the next tokens of
the labels through it are what is asked there. The probability of a label is the product along its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.base.backend import Service
from sluice.http.base.body import convert, fields_of, known_fields
from sluice.http.base.errors import bad_request, require
from sluice.http.base.tokenizer_threads import TokenizerThreads
from sluice.http.base.unsupported_fields import OF_EMBEDDINGS
from sluice.http.call import generation as counts
from sluice.http.call.generate_call import (
    ID_SCHEMA,
    MAX_CHOICES,
    GenerateCall,
    RequestFields,
    Text,
    checked_prompts,
    documented,
    some,
    terms_of,
)
from sluice.http.call.generating import Asked
from sluice.http.call.generation import Generation
from sluice.http.call.logprobs import shares
from sluice.http.call.tokenize import MAX_CALL_TOKENS, prompt_ids
from sluice.http.call.usage import Usage, usage_json
from sluice.text.text_stream import Piece
from sluice.types import MAX_LOGPROB_IDS, MAX_TOKEN_ID, SamplingParams
from sluice.types.shown import shown

TEXT_SCHEMA = {"type": "string", "minLength": 1}
Query = Annotated[Any, documented(anyOf=[TEXT_SCHEMA, some(ID_SCHEMA)])]
Items = Annotated[Any, documented(anyOf=[TEXT_SCHEMA, some(TEXT_SCHEMA), some(ID_SCHEMA), some(some(ID_SCHEMA))])]
ID_FIELDS = documented(minItems=1, maxItems=MAX_LOGPROB_IDS, items=ID_SCHEMA)


class LabelScoreFields(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /score` with a `query`. One of `label_token_ids` and `labels` is given."""

    model: str | None = None
    query: Query
    items: Items
    label_token_ids: Annotated[list[int], ID_FIELDS] | None = None
    labels: Annotated[list[Text], documented(minItems=1)] | None = None
    """Answers as texts, each of one token or more."""
    apply_softmax: bool = True
    """The probabilities of the labels are divided by their sum. False: they are those among all tokens."""
    item_first: bool = False
    add_special_tokens: bool = True
    """What stands first gets the tokens that the tokenizer adds, if it is a text."""


class Score(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["score"]
    score: float
    """How alike a pair of texts is; or the probability of the first label behind an item (vLLM)."""


class Scored(msgspec.Struct, kw_only=True):
    """The answer to `POST /score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    scores: list[list[float]] | UnsetType = UNSET
    """The probability of each label, for each item (SGLang). Given only with a `query`."""
    usage: Usage


class LabelTree(NamedTuple):
    """Labels as token ids, none of which begins another."""

    labels: tuple[tuple[int, ...], ...]
    nodes: tuple[tuple[int, ...], ...]
    """The beginnings of labels, the empty one first: what stands between the prompt and the next token of a label."""


def parse_label_scores(content: dict[str, Any]) -> GenerateCall[LabelScoreFields]:
    """Check the content of a body with a `query`.

    Raises:
        ApiError: 400, naming the field.
    """
    known = fields_of(LabelScoreFields)
    fields = convert(known_fields(content, known, unsupported=OF_EMBEDDINGS), LabelScoreFields)
    ids, texts = fields.label_token_ids, fields.labels
    require((ids is None) != (texts is None), "send either label_token_ids or labels", param="label_token_ids")
    name, given = ("labels", texts) if ids is None else ("label_token_ids", ids)
    assert given is not None
    require(bool(given), f"{name} must not be empty", param=name)
    most = MAX_LOGPROB_IDS
    require(len(given) <= most, f"{name} may be at most {most}, got {len(given)}", param=name)
    for index, label in enumerate(given):
        require(label != "", f"{name}[{index}] must not be empty", param=f"{name}[{index}]")
        message = f"{name}[{index}] {shown(label)} is given twice"
        require(label not in given[:index], message, param=f"{name}[{index}]")
    for index, token in enumerate(ids or ()):
        message = f"label_token_ids[{index}] must be a token id, got {token}"
        require(0 <= token <= MAX_TOKEN_ID, message, param=f"label_token_ids[{index}]")
    query = checked_prompts("query", fields.query, 1)
    require(len(query) == 1, "query must be one text, or the token ids of one", param="query")
    checked_prompts("items", fields.items, 1)
    return GenerateCall(
        fields=fields,
        prompts=query,
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=0),
        terms=terms_of(fields),
        model=fields.model,
        names={"prompt": "query", "logprob_token_ids": "label_token_ids"},
        add_special_tokens=fields.add_special_tokens and not fields.item_first,
    )


async def with_label_tree(
    service: Service, threads: TokenizerThreads, call: GenerateCall[LabelScoreFields], prompts: list[list[int]]
) -> Asked[LabelTree]:
    """Return what is asked: the prompt of each item behind each node of the tree of labels.

    Raises:
        ApiError: 400, labels of which one begins another, or more prompts than a call may have.
    """
    fields, (query,) = call.fields, prompts
    given = checked_prompts("items", fields.items, 1)
    has_special = fields.add_special_tokens and fields.item_first
    of_items = replace(call, prompts=given, names={"prompt": "items"}, add_special_tokens=has_special)
    items = await prompt_ids(service, threads, of_items)
    if fields.labels is None:
        labels = [[token] for token in fields.label_token_ids or ()]
    else:
        of_labels = replace(call, prompts=tuple(fields.labels), names={"prompt": "labels"}, add_special_tokens=False)
        labels = await prompt_ids(service, threads, of_labels)
    tree = label_tree("label_token_ids" if fields.labels is None else "labels", labels)
    total = len(items) * len(tree.nodes)
    message = f"{len(items)} items, each with {len(tree.nodes)} beginnings of labels, are {total} prompts; at most"
    require(total <= MAX_CHOICES, f"{message} {MAX_CHOICES} are accepted in one call", param="items")
    tokens, most = sum(len(query) + len(item) for item in items) * len(tree.nodes), MAX_CALL_TOKENS
    message = (
        f"the prompts of the call have {tokens} tokens together, and at most {most} are accepted; send fewer items"
    )
    require(total == 1 or tokens <= most, message, param="items")
    begun = [[*item, *query] if fields.item_first else [*query, *item] for item in items]
    named = tuple(sorted({token for label in tree.labels for token in label}))
    sampling = replace(call.sampling, logprob_token_ids=named)
    return Asked(sampling, [[*prompt, *node] for prompt in begun for node in tree.nodes], tree)


def label_tree(name: str, labels: Sequence[Sequence[int]]) -> LabelTree:
    """Return the tree of labels.

    Args:
        name: the field that has them.

    Raises:
        ApiError: 400, one is empty, or begins another, so that both could be answered at once; too many tokens.
    """
    ways = tuple(map(tuple, labels))
    at = {way: index for index, way in enumerate(ways)}
    nodes: dict[tuple[int, ...], None] = {}
    for index, way in enumerate(ways):
        param = f"{name}[{index}]"
        require(bool(way), f"{param} has no token", param=param)
        require(at[way] == index, f"{param} has the same tokens as {name}[{at[way]}]", param=param)
        for length in range(len(way)):
            begun = way[:length]
            if begun in at:
                raise bad_request(
                    f"{name}[{at[begun]}] begins {param}: an answer would be both; send labels of which none begins"
                    " another, with a full stop behind each, say",
                    param=f"{name}[{at[begun]}]",
                )
            nodes[begun] = None
    count = len({token for way in ways for token in way})
    message = f"{name} have {count} different tokens; at most {MAX_LOGPROB_IDS} are accepted in one call"
    require(count <= MAX_LOGPROB_IDS, message, param=name)
    return LabelTree(ways, tuple(nodes))


class LabelScoreAnswer:
    """The answer to `POST /score` with a `query`."""

    def __init__(self, call: GenerateCall[LabelScoreFields], generation: Generation, tree: LabelTree) -> None:
        self._generation = generation
        self._tree = tree
        self._is_normalised = call.fields.apply_softmax

    def whole(self, choices: Sequence[Sequence[Piece]], usage: counts.Usage) -> Scored:
        generation, count = self._generation, len(self._tree.nodes)
        scores = [self._probabilities(choices[start : start + count]) for start in range(0, len(choices), count)]
        return Scored(
            id=f"score-{generation.id}",
            object="list",
            created=generation.created,
            model=generation.model,
            data=[Score(index=index, object="score", score=row[0]) for index, row in enumerate(scores)],
            scores=scores,
            usage=usage_json(replace(usage, completion_tokens=0)),
        )

    def _probabilities(self, choices: Sequence[Sequence[Piece]]) -> list[float]:
        """Return those of the labels behind one item, given what was sampled at each node."""
        at_node: dict[tuple[int, ...], dict[int, float]] = {}
        for node, pieces in zip(self._tree.nodes, choices, strict=True):
            scored = pieces[0].logprobs
            assert scored is not None, "the labels were not scored"
            at_node[node] = dict(scored.top)
        logprobs = [
            math.fsum(at_node[label[:index]][token] for index, token in enumerate(label)) for label in self._tree.labels
        ]
        return shares(logprobs) if self._is_normalised else [math.exp(each) for each in logprobs]
