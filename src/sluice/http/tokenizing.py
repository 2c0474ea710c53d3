"""`POST /tokenize` and `/detokenize`, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sluice.http.backend import Service
from sluice.http.errors import bad_request
from sluice.http.generate_call import ChatCall
from sluice.http.generation import chat_prompt, encode
from sluice.http.json_body import convert, fields_of, json_object
from sluice.http.logprobs import completion_token
from sluice.http.openai import AnyMessage, checked_messages
from sluice.http.unsupported_fields import DETOKENIZE_ASKS_NOTHING, TOKENIZE_ASKS_NOTHING, without_inert
from sluice.types import SamplingParams


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
    tokens: Annotated[list[int], Meta(extra_json_schema={"items": {"type": "integer", "minimum": 0}})]


def parse_tokenize(body: bytes) -> TokenizeFields:
    """
    Raises:
        ApiError: 400, naming the field.
    """
    content = without_inert(json_object(body), fields_of(TokenizeFields), TOKENIZE_ASKS_NOTHING)
    return convert(content, TokenizeFields)


async def tokenize(service: Service, fields: TokenizeFields) -> dict[str, Any]:
    """The token ids of a text, as a completion would have them, or of a conversation.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    service.check_model(fields.model)
    tokens = await _tokens(service, fields)
    strings = [completion_token(service.tokenizer, token) for token in tokens] if fields.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": service.limits.max_request_tokens,
        "tokens": tokens,
        "token_strs": strings,
    }


async def _tokens(service: Service, fields: TokenizeFields) -> list[int]:
    if (fields.prompt is None) == (fields.messages is None):
        raise bad_request("send either prompt or messages", param="prompt")
    if fields.messages is None:
        add = True if fields.add_special_tokens is None else fields.add_special_tokens
        return await encode(service, fields.prompt or "", add_special_tokens=add)
    if fields.add_special_tokens:
        raise bad_request(
            "add_special_tokens: true is not supported with messages, whose template has them; leave it out, or send"
            " false",
            param="add_special_tokens",
        )
    if not fields.messages:
        raise bad_request("messages must hold at least one message, got []", param="messages")
    messages = checked_messages(fields.messages)
    return await chat_prompt(service, ChatCall(messages=messages, sampling=SamplingParams()))


def detokenize(service: Service, body: bytes) -> dict[str, Any]:
    """The text of token ids, special tokens by their names.

    Raises:
        ApiError: 400, naming the field; 404, another model.
    """
    content = without_inert(json_object(body), fields_of(DetokenizeFields), DETOKENIZE_ASKS_NOTHING)
    fields = convert(content, DetokenizeFields)
    service.check_model(fields.model)
    for token in fields.tokens:
        if not 0 <= token < service.limits.vocab_size:
            raise bad_request(
                f"token id {token} is outside the vocabulary: ids are 0 to {service.limits.vocab_size - 1}",
                param="tokens",
            )
    return {"prompt": service.tokenizer.decode(fields.tokens, skip_special_tokens=False)}
