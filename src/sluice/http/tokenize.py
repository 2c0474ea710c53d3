"""Prompts as token ids: for the calls that generate, and for `POST /tokenize` and `/detokenize`, in vLLM's form."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import msgspec

from sluice.http import unsupported_fields
from sluice.http.backend import Service
from sluice.http.body import read_fields
from sluice.http.errors import bad_request, require
from sluice.http.generate_call import ID_SCHEMA, GenerateCall, Prompt, documented
from sluice.http.logprobs import completion_token
from sluice.http.openai import AnyMessage, checked_messages
from sluice.text.tokenizer import TokenizerError

SLACK = 4
"""Characters that may become one before they are cut into tokens (Unicode's composed forms)."""
LONG_TEXT = 512
"""Characters from which a text is tokenized in another thread; below, it takes about 0.2 ms, as long as the change of
threads."""


class TokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /tokenize`. One of `prompt` and `messages` is given."""

    model: str | None = None
    prompt: str | None = None
    messages: list[AnyMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[int], documented(items=ID_SCHEMA)]


async def prompt_ids(service: Service, call: GenerateCall[Any]) -> list[list[int]]:
    """Return the token ids of each prompt of a call.

    Raises:
        ApiError: 400, a text that is no valid Unicode or far too long, or messages that the chat template refuses.
    """
    param = call.names.get("prompt", "prompt")
    for prompt in call.prompts:
        _check_length(service, prompt, param)
    return [await _encode(service, prompt, param) for prompt in call.prompts]


def _check_length(service: Service, prompt: Prompt, param: str) -> None:
    """Refuse a text that is too long however it is cut into tokens: to count those of 30 MB takes many seconds."""
    length, tokens = _characters(prompt), service.limits.max_request_tokens
    most = SLACK * tokens * service.tokenizer.longest_token
    if length > most:
        raise bad_request(
            f"the prompt has {length} characters; {tokens} tokens, the most of a request, are fewer than {most}",
            param=param,
            code="context_length_exceeded",
        )


def _characters(prompt: Prompt) -> int:
    match prompt:
        case str():
            return len(prompt)
        case tuple():
            return sum(len(message["content"]) for message in prompt)
    return 0


async def _encode(service: Service, prompt: Prompt, param: str, *, add_special_tokens: bool = True) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    try:
        if isinstance(prompt, tuple):
            prompt, add_special_tokens = await service.tokenizer.render_chat(prompt), False
            _check_length(service, prompt, param)
        encode = partial(service.tokenizer.encode, prompt, add_special_tokens=add_special_tokens)
        return encode() if len(prompt) < LONG_TEXT else await asyncio.to_thread(encode)
    except TokenizerError as error:
        raise bad_request(str(error), param=param) from error


def parse_tokenize(body: bytes) -> TokenizeFields:
    """Check the body of `POST /tokenize`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, TokenizeFields, unsupported_fields.TOKENIZE)
    require((fields.prompt is None) != (fields.messages is None), "send either prompt or messages", param="prompt")
    require(
        fields.messages is None or not fields.add_special_tokens,
        "add_special_tokens: true is not supported with messages, whose template has them; leave it out, or send false",
        param="add_special_tokens",
    )
    return fields


async def tokenize(service: Service, fields: TokenizeFields) -> dict[str, Any]:
    """Return the token ids of a text, as a completion would have them, or of messages, as a chat would.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    service.check_model(fields.model)
    if fields.messages is not None:
        messages = checked_messages(fields.messages)
        _check_length(service, messages, "messages")
        tokens = await _encode(service, messages, "messages")
    else:
        add = fields.add_special_tokens is not False
        tokens = await _encode(service, fields.prompt or "", "prompt", add_special_tokens=add)
    strings = [completion_token(service.tokenizer, token) for token in tokens] if fields.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": service.limits.max_request_tokens,
        "tokens": tokens,
        "token_strs": strings,
    }


def detokenize(service: Service, body: bytes) -> dict[str, Any]:
    """Return the text of token ids, special tokens by their names.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    fields = read_fields(body, DetokenizeFields, unsupported_fields.DETOKENIZE)
    service.check_model(fields.model)
    last = service.limits.vocab_size - 1
    outside = next((token for token in fields.tokens if not 0 <= token <= last), None)
    message = f"token id {outside} is outside the vocabulary: ids are 0 to {last}"
    require(outside is None, message, param="tokens")
    return {"prompt": service.tokenizer.decode(fields.tokens, skip_special_tokens=False)}
