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
        "API key that every request must send",
        unset="no key needed",
        more="Clients send it as `Authorization: Bearer KEY`; only `/health`, `/ready` and `/live` need none. Other"
        " users of the machine can read the command line, so --api-key-file is safer.",
        sglang="--api-key",
        vllm="--api-key",
        metavar="KEY",
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "file with API keys, one on each line",
        unset="none",
        more="Any one of these keys is accepted. The file is read at the start.",
        metavar="FILE",
    )
    max_request_bytes: int = option(
        32 << 20,
        "largest request body in bytes",
        more="A larger body gets status 413, before it is read if its size is declared.",
        positive=True,
    )
    log_level: str = option(
        "warning",
        "lowest level of log messages: debug, info, warning or error",
        more="Messages go to standard error. info: one line for every HTTP call, without prompt and answer, and one"
        " for every chunk of a prompt that is cut.",
        choices=LOG_LEVELS,
        sglang="--log-level",
        metavar="LEVEL",
    )
    log_format: str = option(
        "text",
        "format of log messages: text or json",
        more="json: one object on each line. Both contain the id of the call, which clients send or receive as"
        " `X-Request-Id`.",
        choices=LOG_FORMATS,
        metavar="FORM",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "OpenTelemetry collector for a span of every call",
        unset="no spans",
        more="Uses OTLP over HTTP. If the URL has no path, `/v1/traces` is added. Needs the extra `otel`.",
        sglang="--otlp-traces-endpoint",
        vllm="--otlp-traces-endpoint",
        metavar="URL",
    )
    max_engine_restarts: int = option(
        10,
        "maximum engine restarts within 10 minutes",
        more="An engine that dies or hangs is replaced, and its requests continue ([recovery](recovery.md)). After"
        " more restarts than this the server ends with status 1. 0: it ends when the first engine dies.",
    )
    heartbeat_timeout: float = option(
        5.0,
        "replace an engine without a sign of life for so long",
        more="The engine gives one in every layer, and every second while it waits. At least 2.",
        metavar="SECONDS",
    )
    step_timeout: float = option(
        600.0, "replace an engine that waits this long for one step of the device", metavar="SECONDS"
    )
    start_timeout: float = option(
        1800.0, "time limit for loading the model", more="Downloads count.", metavar="SECONDS"
    )
    drain_timeout: float = option(
        30.0,
        "time for running requests to finish after SIGTERM",
        more="New requests get status 503 in that time. 0: running requests end at once.",
        metavar="SECONDS",
    )
    enable_fault_injection: bool = option(False, "allow --inject-fault", more="For tests only, never in production.")
    inject_fault: str | None = option(
        None,
        "faults to inject, like crash@20,slow@40=60",
        unset="none",
        more="Needs --enable-fault-injection. crash, hang, alloc, nan or drop with @STEP, and slow@STEP=SECONDS; see"
        " [recovery](recovery.md).",
        metavar="FAULTS",
    )
