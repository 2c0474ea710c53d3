"""Spans: OpenTelemetry's `gen_ai` conventions, hanging below the caller's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from collecting import collector
from serving import MODEL, Server, run, serving
from sluice.config import ConfigError
from sluice.http.base.calls import Call
from sluice.http.observe.otel import OtlpTraces, attributes_of, open_traces
from sluice.testing import Faults
from sluice.types import FinishReason

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "a very private matter"


def traced(requests: Any, **options: Any) -> Sequence[ReadableSpan]:
    """The spans of a server that was sent some requests."""
    exporter = InMemorySpanExporter()
    traces = OtlpTraces(exporter)

    async def test() -> None:
        async with serving(listeners=[traces], **options) as server:
            await requests(server)

    run(test)
    traces.close()
    return exporter.get_finished_spans()


def test_a_completion() -> None:
    async def requests(server: Server) -> None:
        body = {"prompt": SECRET, "max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "top_k": 7}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "mine"}
        await server.http.post("/v1/completions", json=body, headers=headers)

    (span,) = traced(requests)
    assert span.name == f"text_completion {MODEL}"
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.context.trace_state.get("vendor") == "1"
    assert span.status.status_code is StatusCode.UNSET
    assert span.end_time > span.start_time > 1_700_000_000 * 10**9
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 7,
        "gen_ai.output.type": "text",
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ("length",),
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/v1/completions",
        "sluice.request_id": "mine",
    }
    assert dict(span.resource.attributes)["service.name"] == "sluice"
    assert SECRET not in span.to_json()


def test_a_chat_that_streams_several_choices() -> None:
    async def requests(server: Server) -> None:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "n": 3, "stream": True}
        await server.post("/v1/chat/completions", **body)

    (span,) = traced(requests)
    found = dict(span.attributes)
    assert span.name == f"chat {MODEL}"
    assert span.parent is None
    assert (found["gen_ai.request.stream"], found["gen_ai.request.choice.count"]) == (True, 3)
    assert 0 < found["gen_ai.response.time_to_first_chunk"] <= (span.end_time - span.start_time) / 1e9
    assert len(found["gen_ai.response.finish_reasons"]) == 3


def test_the_apis_of_agents_are_chats() -> None:
    """Calls of a path that is not listed have no span."""

    async def requests(server: Server) -> None:
        said = [{"role": "user", "content": "a"}]
        await server.post("/v1/messages", model=MODEL, messages=said, max_tokens=3)
        await server.post("/v1/responses", input="a", max_output_tokens=3)

    spans = traced(requests)
    assert [span.name for span in spans] == [f"chat {MODEL}"] * 2
    assert {span.attributes["gen_ai.usage.output_tokens"] for span in spans} == {3}


def test_errors_have_a_type() -> None:
    """The server's own set the status of the span; the caller's do not."""

    async def requests(server: Server) -> None:
        await server.post("/v1/completions", prompt=5)
        await server.post("/v1/completions", prompt="a")
        server.backend.close("gone")
        await server.post("/v1/completions", prompt="a")

    spans = traced(requests, faults=Faults(launch_raises=frozenset({0})))
    assert [(span.attributes["error.type"], span.status.status_code) for span in spans] == [
        ("400", StatusCode.UNSET),
        ("500", StatusCode.ERROR),
        ("503", StatusCode.ERROR),
    ]


def test_a_stream_that_breaks_off_is_an_error() -> None:
    """Its status was 200 before anything went wrong."""
    reasons = [FinishReason.LENGTH, FinishReason.TIMEOUT]
    call = Call("id", "POST", "/generate", {}, 1.0, status=200, finish_reasons=reasons)
    assert attributes_of(call, "text_completion")["error.type"] == "timeout"
    left = Call("id", "POST", "/generate", {}, 1.0)
    assert attributes_of(left, "text_completion")["error.type"] == "499"
    well = Call("id", "POST", "/generate", {}, 1.0, status=200, finish_reasons=[FinishReason.STOP])
    assert "error.type" not in attributes_of(well, "text_completion")


def test_only_what_generates_is_traced() -> None:
    async def requests(server: Server) -> None:
        for path in ("/metrics", "/health", "/v1/models", "/nothing"):
            await server.http.get(path)

    assert traced(requests) == ()


def test_a_caller_that_is_not_sampled_is_not_traced() -> None:
    """A client that samples one call in a thousand does not want the other spans either."""

    async def requests(server: Server) -> None:
        for header in (f"00-{TRACE}-{PARENT}-00", "00-nonsense"):
            await server.http.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": header})

    (span,) = traced(requests)
    assert span.parent is None, "a header that cannot be read begins a trace of its own"


@pytest.mark.parametrize(("suffix", "path"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/own/path", "/own/path")])
def test_spans_arrive_at_a_collector(suffix: str, path: str) -> None:
    with collector() as (url, posted):
        traces = open_traces(url + suffix)
        traces.answered(Call("id", "POST", "/generate", {}, 1.0, status=200, ended=2.5))
        traces.close()
    ((posted_to, body),) = posted
    assert posted_to == path
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.end_time_unix_nano - span.start_time_unix_nano) == ("text_completion", 1_500_000_000)


class DeafCollector(SpanExporter):
    """Takes spans and never comes back, until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.let_go.wait(30)
        return SpanExportResult.FAILURE


def test_a_collector_that_never_answers_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """OpenTelemetry's own shutdown waits for it for 30 seconds: longer than a supervisor waits for a server to end."""
    collector = DeafCollector()
    traces = OtlpTraces(collector, close_seconds=0.01)
    traces.answered(Call("id", "POST", "/generate", {}, 1.0, status=200, ended=2.5))
    closing = threading.Thread(target=traces.close)
    closing.start()
    closing.join(10)
    has_ended = not closing.is_alive()
    collector.let_go.set()
    closing.join()
    assert has_ended
    assert "the last traces were not sent" in caplog.text


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://a/b", "http://", ""])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be a URL that begins with http"):
        open_traces(endpoint)


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(
        ConfigError, match=r"needs OpenTelemetry, which is not installed: pip install 'sluice-llm\[otel\]'"
    ):
        open_traces("http://localhost:4318")
