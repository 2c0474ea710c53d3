"""`POST /infill` of llama.cpp's server, by which editors complete code: the text between two others, in other files.

Source: llama.cpp, "tools/server/README.md", 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.http.base.body import convert, fields_of, json_object, known_fields, take_fields
from sluice.http.base.framing import SERVER_SENT
from sluice.http.base.progress import Progress
from sluice.http.base.routes import Body, Routes
from sluice.http.call.answers import end_of, text_of
from sluice.http.call.fill_in import Fill
from sluice.http.call.generate_call import (
    EventFields,
    GenerateCall,
    SamplingFields,
    documented,
    given_of,
    names_of,
    sampling_params,
    terms_of,
)
from sluice.http.call.generating import CallHandler
from sluice.http.call.generation import Generation, Usage
from sluice.text.text_stream import Piece
from sluice.types import FinishReason

DEFAULT_LENGTH = 128
"""Tokens of an answer to a body that does not say how many."""


class InfillFile(msgspec.Struct):
    """Another file, which the model sees before the one with the gap."""

    text: str
    filename: str = "tmp"


class InfillSampling(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of sampling, with llama.cpp's names."""

    max_tokens: Annotated[int, documented(minimum=-1)] = msgspec.field(default=DEFAULT_LENGTH, name="n_predict")
    repetition_penalty: float = msgspec.field(default=1.0, name="repeat_penalty")
    n: Literal[1] = 1


class InfillFields(EventFields, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /infill`."""

    input_prefix: str = ""
    input_suffix: str = ""
    prompt: str = ""
    """How the text in the gap begins."""
    input_extra: list[InfillFile] = msgspec.field(default_factory=list)
    model: str | None = None


INFILL_BODY = Body((InfillFields, InfillSampling))
NAMES = {**names_of(InfillSampling), "prompt": "input_prefix"}


class Infilled(msgspec.Struct, kw_only=True):
    """The answer to `POST /infill`, and an event of its stream, each with the text that it adds."""

    index: Literal[0] = 0
    content: str
    stop: bool
    """Whether this is the end; so are the fields below but the first two, which are then known."""
    tokens_evaluated: int
    tokens_predicted: int
    model: str
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    stopping_word: str = ""
    truncated: Literal[False] = False


def parse_infill(body: bytes) -> GenerateCall[InfillFields]:
    """Check the body of `POST /infill`.

    Raises:
        ApiError: 400, naming the field.
    """
    content = known_fields(json_object(body), fields_of(InfillFields) | fields_of(InfillSampling))
    given = take_fields(content, InfillSampling)
    fields, sampling = convert(content, InfillFields), convert(given, InfillSampling)
    most = sampling.max_tokens
    return GenerateCall(
        fields=fields,
        prompts=(fields.input_prefix,),
        sampling=sampling_params(sampling, NAMES, max_tokens=None if most < 0 else max(1, most)),
        terms=terms_of(fields, itl_target=fields.itl_target),
        model=fields.model,
        names=NAMES,
        given=given_of(InfillSampling, given),
        fill=Fill(fields.input_suffix, fields.prompt, tuple((each.filename, each.text) for each in fields.input_extra)),
        fills_context=True,
        is_empty=most == 0,
    )


class InfillAnswer:
    """The answer to `POST /infill`."""

    framing = SERVER_SENT

    def __init__(self, call: GenerateCall[InfillFields], generation: Generation) -> None:
        self._generation = generation

    def opening(self, index: int) -> list[Infilled]:
        return []

    def chunks(self, arrived: Sequence[tuple[int, Piece]]) -> Iterator[Infilled]:
        for _, piece in arrived:
            yield self._part(piece.text, piece.finish_reason)

    def waiting(self, progress: Progress | None) -> list[Infilled]:
        return []

    def closing(self, usage: Usage) -> list[Infilled]:
        return []

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Any:
        return self._part(text_of(choices[0]), end_of(choices[0]))

    def _part(self, text: str, reason: FinishReason | None) -> Infilled:
        (choice,) = self._generation.choices
        part = Infilled(
            content=text,
            stop=reason is not None,
            tokens_evaluated=len(choice.prompt),
            tokens_predicted=choice.text.num_tokens,
            model=self._generation.model,
        )
        word = choice.text.stop_string
        if reason is FinishReason.LENGTH:
            part.stop_type = "limit"
        elif reason is not None:
            part.stop_type, part.stopping_word = ("eos", "") if word is None else ("word", word)
        return part


def add_infill(routes: Routes, calls: CallHandler) -> None:
    """Add the route that fills in the middle."""

    @routes.add(
        "POST",
        "/infill",
        summary="The text between two others (llama.cpp)",
        body=INFILL_BODY,
        answer=Infilled,
        events=Infilled,
    )
    async def infill(request: Request) -> Response:
        return await calls.generate(request, parse_infill, InfillAnswer)
