"""Fields that ask for an answer of a certain form, by which OpenAI, vLLM, SGLang, llama.cpp and Ollama call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from sluice.http.base.body import convert, fields_of, kind_of, known_fields
from sluice.http.base.errors import RETRY_SECONDS, ApiError, bad_request, require, unavailable
from sluice.http.base.unknown_fields import ignore
from sluice.http.call.generate_call import documented
from sluice.http.call.structural_tags import structural_tag
from sluice.text.constraints.checker import CheckerBusy, CheckerUnavailable, ConstraintChecker, encoded
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.shapes import ANY_OBJECT, Choice, Grammar, JsonSchema, Regex, Shape

SCHEMA = {"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "boolean"}]}
SchemaField = Annotated[Any, documented(**SCHEMA)]
"""A JSON schema: an object, or its JSON text."""
TagField = Annotated[Any, documented(anyOf=[{"type": "object"}, {"type": "string"}])]
FORMAT_TYPES = ("text", "json_object", "json_schema", "structural_tag")


class ConstraintFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of completions and chats. At most one of them asks for something."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: SchemaField = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    """Regular expression for whitespace in JSON, in place of the separators that `json.dumps` writes."""
    json_schema: SchemaField = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    structural_tag: TagField = None


class NativeConstraints(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of SGLang's `sampling_params`."""

    json_schema: SchemaField = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: TagField = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The field `response_format`. The fields of a structural tag stand beside its type."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema: SchemaField = None


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `json_schema` of a `response_format`."""

    name: str = ""
    description: str = ""
    schema: SchemaField = None
    strict: bool | None = None
    """False: what is not supported of the schema is left out, and named in the answer's header."""


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's field `structured_outputs`."""

    json: SchemaField = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: TagField = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    disable_fallback: bool = False


Make = Callable[[Any, str], Shape]
"""Returns the shape that a field's value asks for, given where it stands."""


def _schema(value: Any, place: str) -> Shape:
    is_schema = isinstance(value, dict | str | bool)
    require(is_schema, f"{place} must be a JSON schema or its JSON text, got {kind_of(value)}", param=place)
    return JsonSchema(value, place)


MAKERS: Mapping[str, Make] = MappingProxyType(
    {
        "json": _schema,
        "regex": Regex,
        "choice": lambda value, place: Choice(tuple(value), place),
        "grammar": Grammar,
        "structural_tag": structural_tag,
    }
)
"""What a field asks for -> how its shape is made."""
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_choice": "choice",
        "guided_grammar": "grammar",
        "json_schema": "json",
        "ebnf": "grammar",
    }
)
"""Fields -> what they ask for, where that has another name."""


def shape_of(fields: ConstraintFields) -> Shape | None:
    """Return the shape that the fields of a completion or a chat ask for; None if they ask for none.

    Raises:
        ApiError: 400, naming the field.
    """
    values = msgspec.structs.asdict(fields)
    pattern = values.pop("guided_whitespace_pattern")
    response_format, structured = values.pop("response_format"), values.pop("structured_outputs")
    found = _shapes(values, "")
    if response_format is not None and (shape := _of_format(response_format)) is not None:
        found["response_format"] = shape
    if structured is not None and (shape := _of_structured(structured)) is not None:
        found["structured_outputs"] = shape
    return _only(found, pattern, "guided_whitespace_pattern")


def native_shape(fields: NativeConstraints) -> Shape | None:
    """Return the shape that SGLang's `sampling_params` ask for.

    Raises:
        ApiError: 400, naming the field.
    """
    return _only(_shapes(msgspec.structs.asdict(fields), "sampling_params."))


def ollama_shape(value: Any) -> Shape | None:
    """Return the shape that Ollama's `format` asks for: "json", or a schema.

    Raises:
        ApiError: 400.
    """
    if value is None or value == "":
        return None
    is_known = value == "json" or isinstance(value, dict)
    require(is_known, f'format must be "json" or a JSON schema, got {kind_of(value)}', param="format")
    return _bounded(JsonSchema(ANY_OBJECT if value == "json" else value, "format"))


def _shapes(values: Mapping[str, Any], prefix: str) -> dict[str, Shape]:
    """Return the shapes of the fields that are given, by their names."""
    return {
        prefix + name: MAKERS[KINDS.get(name, name)](value, prefix + name)
        for name, value in values.items()
        if value is not None
    }


def _only(found: Mapping[str, Shape], pattern: str | None = None, pattern_name: str = "") -> Shape | None:
    """Return the one shape of some, with a pattern for its whitespace."""
    message = f"{' and '.join(found)} are several constraints of one answer; send one of them"
    require(len(found) <= 1, message, param=next(iter(found), None))
    shape = next(iter(found.values()), None)
    if pattern is not None:
        is_json = isinstance(shape, JsonSchema)
        require(is_json, f"{pattern_name} is only allowed with a JSON schema", param=pattern_name)
        assert isinstance(shape, JsonSchema)
        shape = msgspec.structs.replace(shape, whitespace_pattern=pattern)
    return None if shape is None else _bounded(shape)


def _bounded(shape: Shape) -> Shape:
    """Refuse a shape that is too large to be checked."""
    try:
        encoded(shape)
    except ConstraintError as error:
        raise refusal(error) from error
    return shape


def _of_format(content: dict[str, Any]) -> Shape | None:
    place = "response_format"
    kind = _type_of(content, FORMAT_TYPES, place)
    if kind == "structural_tag":
        return structural_tag(content, place)
    fields = convert(known_fields(content, fields_of(ResponseFormat), place, {}), ResponseFormat, place)
    if kind == "text":
        return None
    if kind == "json_object":
        return _schema(ANY_OBJECT if fields.schema is None else fields.schema, f"{place}.schema")
    place = f"{place}.json_schema"
    require(fields.json_schema is not None, f"{place} is required with type json_schema", param=place)
    return _named(fields.json_schema or {}, place)


def _type_of(content: dict[str, Any], types: tuple[str, ...], place: str) -> str:
    """Return the type of a format, which must be one of some."""
    kind = content.get("type")
    got = repr(kind[:40]) if isinstance(kind, str) else kind_of(kind)
    require(kind in types, f"{place}.type must be one of {', '.join(types)}, got {got}", param=f"{place}.type")
    return str(kind)


def flat_shape(content: dict[str, Any], place: str) -> Shape | None:
    """Return the shape that a format asks for whose schema stands beside its type.

    It is the `text.format` of OpenAI's responses, and the `output_config.format` of Anthropic's messages.

    Raises:
        ApiError: 400, naming the field.
    """
    kind = _type_of(content, FORMAT_TYPES[:3], place)
    given = {name: value for name, value in content.items() if name != "type"}
    if kind == "json_schema":
        return _bounded(_named(given, place))
    known_fields(given, frozenset(), place, {})
    return None if kind == "text" else JsonSchema(ANY_OBJECT, place)


def _named(content: dict[str, Any], place: str) -> Shape:
    """Return the shape of a schema with a name."""
    named = convert(known_fields(content, fields_of(NamedSchema), place, {}), NamedSchema, place)
    place = f"{place}.schema"
    require(named.schema is not None, f"{place} is required", param=place)
    shape = _schema(named.schema, place)
    assert isinstance(shape, JsonSchema)
    return msgspec.structs.replace(shape, is_lenient=named.strict is False)


def _of_structured(content: dict[str, Any]) -> Shape | None:
    place = "structured_outputs"
    fields = convert(known_fields(content, fields_of(StructuredOutputs), place, {}), StructuredOutputs, place)
    values = {name: getattr(fields, name) for name in MAKERS}
    found = _shapes(values, f"{place}.")
    if fields.json_object:
        found[f"{place}.json_object"] = JsonSchema(ANY_OBJECT, f"{place}.json_object")
    return _only(found, fields.whitespace_pattern, f"{place}.whitespace_pattern")


def refusal(error: ConstraintError) -> ApiError:
    """Return the answer to a constraint that cannot be used."""
    return bad_request(str(error), param=error.place or None)


async def grammar_of(checker: ConstraintChecker, shape: Shape, client: str) -> str:
    """Return the grammar of a shape of answers.

    What a schema that is not strict asks for in vain is noted as ignored fields are.

    Raises:
        ApiError: 400, the constraint cannot be used; 503, too many wait to be checked, or no process can check it.
    """
    try:
        checked = await checker.check(shape, client)
    except ConstraintError as error:
        raise refusal(error) from error
    except CheckerBusy as error:
        raise ApiError(
            503, f"the server is overloaded: {error}", code="overloaded", retry_after=RETRY_SECONDS
        ) from None
    except CheckerUnavailable as error:
        raise unavailable(str(error)) from error
    ignore(checked.dropped)
    return checked.text
