"""Options of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class ServerConfig:
    """Where and how HTTP is served."""

    host: str = option("127.0.0.1", "address to listen on", sglang="--host", vllm="--host", metavar="HOST")
    port: int = option(8000, "port to listen on; 0 picks a free one", sglang="--port", vllm="--port")
    served_model_name: str | None = option(
        None,
        "name of the model in the API",
        unset="the model's own name",
        sglang="--served-model-name",
        vllm="--served-model-name",
        metavar="NAME",
    )
    api_key: str | None = option(
        None,
        "key that every request must carry",
        unset="no key is needed",
        more="As `Authorization: Bearer KEY`; only `/health`, `/ready` and `/live` need none. Other users of a machine"
        " can read a command line: a file is better.",
        sglang="--api-key",
        vllm="--api-key",
        metavar="KEY",
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "file with such keys, one a line",
        unset="none",
        more="Any of them will do. It is read at the start.",
        metavar="FILE",
    )
    max_request_bytes: int = option(
        32 << 20,
        "largest body of a request, in bytes",
        more="A larger one is answered 413, before it is read if its size is declared.",
        positive=True,
    )
    log_level: str = option(
        "warning",
        "messages on standard error: debug, info, warning or error",
        more="info: one line for every call, without what was said, and one for every chunk of a prompt that is cut.",
        choices=LOG_LEVELS,
        sglang="--log-level",
        metavar="LEVEL",
    )
    log_format: str = option(
        "text",
        "form of these messages: text or json",
        more="json: one object a line. Both carry the id of the call, which clients send or receive as `X-Request-Id`.",
        choices=LOG_FORMATS,
        metavar="FORM",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector for a span on every call",
        unset="no spans",
        more="OTLP over HTTP; without a path, `/v1/traces` is added. Needs the extra `otel`.",
        sglang="--otlp-traces-endpoint",
        vllm="--otlp-traces-endpoint",
        metavar="URL",
    )
    max_engine_restarts: int = option(
        10,
        "engines started again in 10 minutes",
        more="An engine that dies or hangs is replaced and every request goes on ([recovery](recovery.md)). With"
        " more deaths the server ends with status 1; 0: with the first.",
    )
    heartbeat_timeout: float = option(
        5.0,
        "seconds without a sign of life of the engine",
        more="Then it is replaced. It gives one in every layer, and every second while it waits; so at least 2.",
        metavar="SECONDS",
    )
    step_timeout: float = option(
        600.0, "seconds of one wait for the device", more="Then the engine is replaced.", metavar="SECONDS"
    )
    start_timeout: float = option(
        1800.0, "seconds in which the model must be loaded", more="Downloads included.", metavar="SECONDS"
    )
    drain_timeout: float = option(
        30.0,
        "seconds to finish what runs after SIGTERM",
        more="New requests get 503 meanwhile. 0: what runs is cut off.",
        metavar="SECONDS",
    )
    enable_fault_injection: bool = option(False, "allow --inject-fault", more="For tests: never where it matters.")
    inject_fault: str | None = option(
        None,
        "faults, as crash@20,slow@40=60",
        unset="none",
        more="Needs enable-fault-injection. crash, hang, alloc, nan or drop with @STEP, slow@STEP=SECONDS; see"
        " [recovery](recovery.md).",
        metavar="FAULTS",
    )
