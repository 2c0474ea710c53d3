"""All tables of fields that Sluice does not implement, by the part of the API whose fields they are."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.http.apis.anthropic.unsupported import MESSAGES, MESSAGES_BLOCK, MESSAGES_TOOL, OUTPUT_CONFIG, THINKING
from sluice.http.apis.responses.unsupported import RESPONSES, RESPONSES_ITEM, RESPONSES_PART, RESPONSES_TOOL
from sluice.http.base.unsupported_fields import (
    CHAT,
    COMPLETION,
    DETOKENIZE,
    EMBEDDING,
    GENERATE,
    GENERATE_SAMPLING,
    MESSAGE,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDING,
    OLLAMA_GENERATE,
    OLLAMA_MESSAGE,
    OLLAMA_OPTIONS,
    OLLAMA_SHOW,
    RERANK,
    SCORE,
    TOKENIZE,
    Accepted,
)

TABLES: Mapping[str, Mapping[str, Accepted]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "messages": MESSAGE,
    "/generate": GENERATE,
    "sampling_params": GENERATE_SAMPLING,
    "/v1/embeddings": EMBEDDING,
    "/rerank": RERANK,
    "/score": SCORE,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
    "/api/embed": OLLAMA_EMBED,
    "/api/embeddings": OLLAMA_EMBEDDING,
    "options": OLLAMA_OPTIONS,
    "/api/chat messages": OLLAMA_MESSAGE,
    "/api/show": OLLAMA_SHOW,
    "/v1/messages": MESSAGES,
    "/v1/messages blocks": MESSAGES_BLOCK,
    "/v1/messages tools": MESSAGES_TOOL,
    "thinking": THINKING,
    "output_config": OUTPUT_CONFIG,
    "/v1/responses": RESPONSES,
    "/v1/responses tools": RESPONSES_TOOL,
    "/v1/responses input": RESPONSES_ITEM,
    "/v1/responses parts": RESPONSES_PART,
}
