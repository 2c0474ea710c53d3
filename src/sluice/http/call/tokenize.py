"""Prompts as token ids: for the calls that generate, and for `POST /tokenize` and `/detokenize`, in vLLM's form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from sluice.http.base.backend import Service
from sluice.http.base.body import convert, fields_of, json_object, known_fields, take_fields
from sluice.http.base.errors import bad_request, require, unavailable
from sluice.http.base.routes import Body
from sluice.http.base.tokenizer_threads import Check, TokenizerThreads, TooManyTokens, bounded_ids
from sluice.http.base.unknown_fields import ignore
from sluice.http.base.unsupported_fields import OF_TEXTS
from sluice.http.call.fill_in import FILE, Fill, fill_tokens, filled
from sluice.http.call.fitting import rendered
from sluice.http.call.generate_call import ID_SCHEMA, Conversation, GenerateCall, Prompt, documented
from sluice.http.call.logprobs import completion_token
from sluice.http.call.messages import AnyMessage
from sluice.http.call.template_fields import TemplateFields, conversation_of
from sluice.http.call.tools import MAX_TOOLS, TOOL_SCHEMA, ToolFields, tools_of
from sluice.text.tokenizer import TokenizerError, TokenizerUnavailable

CHARACTERS_PER_TOKEN = 16
"""Most characters of a text for each token of the longest request. Texts of words have three to five."""
FREE_CHARACTERS = 1 << 14
"""Characters that are always counted exactly: an error that names tokens is more useful."""
MAX_CALL_TOKENS = 1 << 21
"""Most tokens of all prompts of a call. A longer single prompt is accepted where the model takes it."""


class TokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /tokenize`. One of `prompt` and `messages` is given."""

    model: str | None = None
    prompt: str | None = None
    messages: list[AnyMessage] | None = None
    tools: Annotated[list[dict[str, Any]], documented(items=TOOL_SCHEMA, maxItems=MAX_TOOLS)] = []
    """Tools of a chat; only with `messages`."""
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class TokenizeCall(NamedTuple):
    """A checked body of `POST /tokenize`, and its prompt."""

    fields: TokenizeFields
    prompt: Prompt


class Tokenized(msgspec.Struct):
    """The answer to `POST /tokenize`."""

    count: int
    max_model_len: int
    """The most tokens of one request."""
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each; only with `return_token_strs`."""


class Detokenized(msgspec.Struct):
    """The answer to `POST /detokenize`."""

    prompt: str


class DetokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[int], documented(items=ID_SCHEMA)]
    skip_special_tokens: bool = False


TOKENIZE_BODY = Body((TokenizeFields, TemplateFields), either=("prompt", "messages"))
DETOKENIZE_BODY = Body((DetokenizeFields,))


async def prompt_ids(service: Service, threads: TokenizerThreads, call: GenerateCall[Any]) -> list[list[int]]:
    """Return the token ids of each prompt of a call.

    Raises:
        ApiError: 400, more context than there is, a text that is no valid Unicode, prompts that are far too long, or
            messages that the chat template refuses; 503, the chat template's process failed.
    """
    param = call.names.get("prompt", "prompt")
    most = service.limits.max_request_tokens
    name = call.names.get("num_ctx", "num_ctx")
    message = f"{name} must be at least 1, or 0 or -1 for as many tokens as there are, got {call.num_ctx}"
    require(call.num_ctx is None or call.num_ctx >= 1, message, param=name)
    if call.num_ctx is not None and call.num_ctx > most:
        ignore([name])  # as in Ollama, there is no more context than there is
    for prompt in call.prompts:
        _check_length(service, prompt, param)
    texts = [await _rendered(service, prompt, param) for prompt in call.prompts]
    if call.fill is not None:
        texts = [_filled(service, str(text), call.fill) for text in texts]
    encode = partial(_encode, service, texts, param, add_special_tokens=call.add_special_tokens)
    return await threads.for_generation(sum(len(text) for text in texts if isinstance(text, str)), encode)


def _filled(service: Service, prompt: str, fill: Fill) -> str:
    """Return the prompt for the text between two others."""
    tokens = fill_tokens(service.tokenizer.token_id)
    if tokens is None:
        raise bad_request(
            "text between two others is not supported with this model: its tokenizer has no tokens for it, such as"
            " <|fim_prefix|>; leave suffix out",
            param="suffix",
            code="unsupported",
        )
    text = filled(tokens, prompt, fill, has_files=service.tokenizer.token_id(FILE) is not None)
    _check_length(service, text, "suffix")
    return text


def _check_length(service: Service, prompt: Prompt, param: str) -> None:
    """Refuse a text that is too long however it is cut into tokens: to count those of 30 MB takes many seconds."""
    length, tokens = _characters(prompt), service.limits.max_request_tokens
    most = max(tokens * CHARACTERS_PER_TOKEN, FREE_CHARACTERS)
    if length > most:
        raise bad_request(
            f"the prompt has {length} characters; for the {tokens} tokens that a request may have, at most {most} are"
            " accepted",
            param=param,
            code="context_length_exceeded",
        )


def _characters(prompt: Prompt) -> int:
    match prompt:
        case str():
            return len(prompt)
        case Conversation():
            return prompt.characters
    return 0


async def _rendered(service: Service, prompt: Prompt, param: str) -> str | list[int]:
    """Return a prompt with its messages, if it has any, as the text that the chat template makes of them."""
    if not isinstance(prompt, Conversation):
        return prompt
    try:
        text = await rendered(service.tokenizer.render_chat, prompt.messages, prompt.options)
    except TokenizerUnavailable as error:
        raise unavailable(str(error)) from error
    except TokenizerError as error:
        raise bad_request(str(error), param=param) from error
    _check_length(service, text, param)
    return text


def _encode(
    service: Service, texts: Sequence[str | list[int]], param: str, check: Check, *, add_special_tokens: bool
) -> list[list[int]]:
    """Return the ids of texts, and of prompts that are ids already, in a thread."""
    most = service.limits.max_request_tokens
    left = max(most, MAX_CALL_TOKENS)
    found: list[list[int]] = []
    for text in texts:
        ids = text if isinstance(text, list) else _ids(service, text, param, check, add_special_tokens)
        found.append(ids)
        left -= len(ids)
        if left < 0:
            raise bad_request(
                f"the prompts of the call have more than {max(most, MAX_CALL_TOKENS)} tokens together; send them in"
                " several calls",
                param=param,
            )
    return found


def _ids(service: Service, text: str, param: str, check: Check, add_special_tokens: bool) -> list[int]:
    most = service.limits.max_request_tokens
    try:
        return bounded_ids(service.tokenizer, text, most, check, add_special_tokens=add_special_tokens)
    except TooManyTokens as error:
        message = f"the prompt has more than {most} tokens, the most of a request"
        raise bad_request(message, param=param, code="context_length_exceeded") from error
    except TokenizerError as error:
        raise bad_request(str(error), param=param) from error


async def count_tokens(service: Service, threads: TokenizerThreads, call: GenerateCall[Any]) -> int:
    """Return the tokens of a call's prompt, which is not run.

    Raises:
        ApiError: as `prompt_ids`.
    """
    param = call.names.get("prompt", "prompt")
    (prompt,) = call.prompts
    _check_length(service, prompt, param)
    text = await _rendered(service, prompt, param)

    def count(check: Check) -> int:
        (ids,) = _encode(service, [text], param, check, add_special_tokens=call.add_special_tokens)
        return len(ids)

    return await threads.apart(count)


def parse_tokenize(body: bytes) -> TokenizeCall:
    """Check the body of `POST /tokenize`.

    Raises:
        ApiError: 400, naming the field.
    """
    known = fields_of(TokenizeFields) | fields_of(TemplateFields)
    content = known_fields(json_object(body), known, unsupported=OF_TEXTS)
    template = take_fields(content, TemplateFields)
    fields = convert(content, TokenizeFields)
    require((fields.prompt is None) != (fields.messages is None), "send either prompt or messages", param="prompt")
    require(
        fields.messages is None or not fields.add_special_tokens,
        "add_special_tokens: true is not supported with messages, whose template has them; leave it out, or send false",
        param="add_special_tokens",
    )
    if fields.messages is not None:
        tools = tools_of(ToolFields(tools=fields.tools))
        return TokenizeCall(fields, conversation_of(fields.messages, convert(template, TemplateFields), tools))
    require(not fields.tools, "tools can only be sent with messages", param="tools")
    require(not template, f"{', '.join(template)} can only be sent with messages", param=next(iter(template), None))
    return TokenizeCall(fields, fields.prompt or "")


async def tokenize(service: Service, threads: TokenizerThreads, call: TokenizeCall) -> bytes:
    """Return the token ids of a text, as a completion would have them, or of messages, as a chat would, in JSON.

    Raises:
        ApiError: 400, naming the field; 404, another model; 503, the chat template's process failed.
    """
    fields, prompt = call
    service.check_model(fields.model)
    param = "prompt" if fields.messages is None else "messages"
    _check_length(service, prompt, param)
    text = await _rendered(service, prompt, param)
    add_special_tokens = fields.messages is None and fields.add_special_tokens is not False

    def answer(check: Check) -> bytes:
        (tokens,) = _encode(service, [text], param, check, add_special_tokens=add_special_tokens)
        strings = [completion_token(service.tokenizer, token) for token in tokens] if fields.return_token_strs else None
        return msgspec.json.encode(Tokenized(len(tokens), service.limits.max_request_tokens, tokens, strings))

    return await threads.apart(answer)


def parse_detokenize(body: bytes) -> DetokenizeFields:
    """Check the body of `POST /detokenize`.

    Raises:
        ApiError: 400, naming the field.
    """
    content = known_fields(json_object(body), fields_of(DetokenizeFields), unsupported=OF_TEXTS)
    return convert(content, DetokenizeFields)


async def detokenize(service: Service, threads: TokenizerThreads, fields: DetokenizeFields) -> bytes:
    """Return the text of token ids, by default special tokens by their names too, in JSON.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    service.check_model(fields.model)
    most = service.limits.max_request_tokens
    message = f"tokens has {len(fields.tokens)} ids; at most {most}, the most of a request, are accepted"
    require(len(fields.tokens) <= most, message, param="tokens")
    last = service.limits.vocab_size - 1
    outside = next((token for token in fields.tokens if not 0 <= token <= last), None)
    message = f"token id {outside} is outside the vocabulary: ids are 0 to {last}"
    require(outside is None, message, param="tokens")

    def answer(check: Check) -> bytes:
        check()
        text = service.tokenizer.decode(fields.tokens, skip_special_tokens=fields.skip_special_tokens)
        return msgspec.json.encode(Detokenized(text))

    return await threads.apart(answer)
