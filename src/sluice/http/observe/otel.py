"""Traces: a span for every call that generates, sent by OTLP over HTTP under OpenTelemetry's `gen_ai` conventions.

The span is made when the call is over, from the times in its `Call`, as a child of the `traceparent` that the client
sent (W3C Trace Context). It holds sizes and settings, and no text of the call. The conventions are those of
semantic-conventions-genai as of version 1.44 of the attributes they build on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sluice.config import ConfigError
from sluice.http.base.calls import Call
from sluice.http.base.errors import CLIENT_LEFT
from sluice.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

INSTALL = "pip install 'sluice-llm[otel]'"
TRACES_PATH = "/v1/traces"
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/inference/v1/generate": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Paths that generate or embed, with the conventions' name for what they do."""
NANOSECONDS = 1_000_000_000
CLOSE_SECONDS = 2.0
LOGGER = logging.getLogger("sluice.server")


def open_traces(endpoint: str) -> OtlpTraces:
    """Return the listener that traces calls.

    Args:
        endpoint: URL of a collector; without a path, OTLP's own is added.

    Raises:
        ConfigError: it is no URL of HTTP, or OpenTelemetry is not installed.
    """
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"--otlp-traces-endpoint must be a URL that begins with http:// or https://, got {endpoint!r}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: F401  (fails here, if it fails)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--otlp-traces-endpoint needs OpenTelemetry, which is not installed: {INSTALL}") from error
    full = endpoint if url.path not in ("", "/") else endpoint.rstrip("/") + TRACES_PATH
    return OtlpTraces(OTLPSpanExporter(endpoint=full))


class OtlpTraces:
    """Sends spans in batches from a thread of its own.

    Args:
        exporter: sends a batch.
        close_seconds: how long the last spans may take.
    """

    def __init__(self, exporter: SpanExporter, *, close_seconds: float = CLOSE_SECONDS) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own = {"service.name": "sluice", "service.version": VERSION}
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sluice.server", own["service.version"])
        self._propagator = TraceContextTextMapPropagator()
        self._close_seconds = close_seconds

    def answered(self, call: Call) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        operation = OPERATIONS.get(call.path)
        if operation is None:
            return
        offset = time.time_ns() - int(time.perf_counter() * NANOSECONDS)  # from the calls' clock to Unix time
        attributes = attributes_of(call, operation)
        span = self._tracer.start_span(
            f"{operation} {call.model}".rstrip(),
            context=self._propagator.extract(call.headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=offset + int(call.began * NANOSECONDS),
        )
        if "error.type" in attributes and not 400 <= call.status < 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=offset + int((call.began + call.seconds) * NANOSECONDS))

    def close(self) -> None:
        """Send the spans that are left, within `close_seconds`.

        A collector that cannot be reached must not delay the end of the server: OpenTelemetry itself would try for half
        a minute.
        """
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(self._close_seconds)
        if closing.is_alive():
            LOGGER.warning(
                "the last traces were not sent: the collector did not accept them within %g s", self._close_seconds
            )


def attributes_of(call: Call, operation: str) -> dict[str, Any]:
    """Return the attributes of a span. As the conventions want, settings that were left open are left out."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sluice",
        "http.request.method": call.method,
        "url.path": call.path,
        "sluice.request_id": call.request_id,
    }
    if call.status:
        found["http.response.status_code"] = call.status
    if (error := _error_of(call)) is not None:
        found["error.type"] = error
    if call.sampling is None:
        return found | _embedding_attributes(call)
    sampling = call.sampling
    choices = len(call.engine_ids) // max(1, call.num_prompts)
    found |= {
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.model,
        "gen_ai.request.stream": call.streams,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.output.type": "text",
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.response.finish_reasons": [reason.value for reason in call.finish_reasons],
    }
    if sampling.top_k > 0:
        found["gen_ai.request.top_k"] = sampling.top_k
    if choices > 1:
        found["gen_ai.request.choice.count"] = choices
    if call.streams and call.first_chunk is not None:
        found["gen_ai.response.time_to_first_chunk"] = call.first_chunk - call.began
    return found


def _embedding_attributes(call: Call) -> dict[str, Any]:
    """Return what a call that embeds has instead; nothing if no request of it came to the engine."""
    if not call.engine_ids:
        return {}
    return {
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
    }


def _error_of(call: Call) -> str | None:
    """Return the class of error that a call ended with: its status, or why its stream broke off."""
    if call.status >= 400:
        return str(call.status)
    for reason in call.finish_reasons:
        if reason.is_failure:
            return reason.value
    return None if call.status else str(CLIENT_LEFT)
