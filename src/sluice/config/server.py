"""Options of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
CACHE_ISOLATIONS = ("none", "key", "salt-required")


@dataclass(frozen=True)
class ServerConfig:
    """Where and how HTTP is served."""

    host: str = option("127.0.0.1", "address to listen on", sglang="--host", vllm="--host", metavar="HOST")
    port: int = option(8000, "port to listen on; 0 picks a free one", sglang="--port", vllm="--port")
    allowed_hosts: str | None = option(
        None,
        "accepted Host headers, separated by commas",
        unset="local names",
        more="Against DNS rebinding. Unset, a server on a loopback interface accepts localhost and IP addresses, and"
        " others accept any name. localhost and IP addresses are always accepted. `*.name`: every name below it; `*`:"
        " any. `/health`, `/ping`, `/ready` and `/live` accept any. Web pages of these names may send POST"
        " requests, too.",
        metavar="NAMES",
    )
    allowed_origins: str | None = option(
        None,
        "web pages of other sites that may call the server (CORS), separated by commas",
        unset="none",
        more="Such as `https://chat.example,http://localhost:*`, with `*` for any text, or `*` for any page. They must"
        " send `Content-Type: application/json`. vLLM's lists in JSON are accepted, too. See [security](security.md).",
        vllm="--allowed-origins",
        metavar="ORIGINS",
    )
    ssl_certfile: str | None = option(
        None,
        "file with the TLS certificate and its chain (PEM)",
        unset="no TLS",
        more="The server then speaks HTTPS only. The file is read at the start.",
        sglang="--ssl-certfile",
        vllm="--ssl-certfile",
        metavar="FILE",
    )
    ssl_keyfile: str | None = option(
        None,
        "file with the private key of --ssl-certfile (PEM)",
        unset="in --ssl-certfile",
        more="It must not be encrypted.",
        sglang="--ssl-keyfile",
        vllm="--ssl-keyfile",
        metavar="FILE",
    )
    served_model_name: str | None = option(
        None,
        "name of the model in the API; several are separated by commas",
        unset="the model's own name",
        more="Answers have the first one.",
        sglang="--served-model-name",
        vllm="--served-model-name",
        metavar="NAME",
    )
    api_key: str | None = option(
        None,
        "API key that every request must send",
        unset="no key needed",
        more="Clients send it as `Authorization: Bearer KEY`; only `/health`, `/ping`, `/ready` and `/live` need none."
        " Other users of the machine can read the command line, so --api-key-file is safer.",
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
    page: bool = option(
        True,
        "serve a page with a chat and a live timeline at /, and /v1/trace",
        more="Browsers get the page without an API key, and ask for one to use it; the trace needs one. See"
        " [the page](page.md).",
    )
    enable_admin: bool = option(
        False,
        "serve /sleep, /wake_up and /is_sleeping",
        more="Needs a key of its own, --admin-key-file or --admin-key. See [sleep](recovery.md#sleep).",
    )
    admin_key: str | None = option(
        None,
        "key for the routes of --enable-admin and --lora-dir",
        unset="none",
        more="Clients send it as `Authorization: Bearer KEY`. It must not be an API key: API keys do"
        " not open these routes, and it opens no other. Other users of the machine can read the command line, so"
        " --admin-key-file is safer.",
        metavar="KEY",
        secret=True,
    )
    admin_key_file: str | None = option(
        None,
        "file with admin keys, one on each line",
        unset="none",
        more="Any one of these keys is accepted. The file is read at the start.",
        metavar="FILE",
    )
    lora_dir: str | None = option(
        None,
        "folder whose adapters may be loaded over HTTP",
        unset="none",
        more="Serves /v1/load_lora_adapter and /v1/unload_lora_adapter, which refuse paths that lead out of it. Needs"
        " --enable-lora and an admin key. See [lora.md](lora.md#over-http).",
        metavar="FOLDER",
    )
    cache_isolation: str = option(
        "none",
        "isolation of the cache: none, key or salt-required",
        more="Requests that share cached prefixes. none: all without a `cache_salt`. key: those with the same API key."
        " salt-required: those with the same `cache_salt`, which every request must send. See"
        " [security](security.md#tenants).",
        choices=CACHE_ISOLATIONS,
        metavar="HOW",
    )
    allow_special_tokens: bool = option(
        False,
        "let text in chat messages become special tokens",
        more="By default `<|im_end|>`, or another special token of the tokenizer, is plain text in a message. Prompts"
        " of completions and `/generate` may always hold special tokens. See"
        " [security](security.md#special-tokens-in-messages).",
    )
    chat_template: str | None = option(
        None,
        "file with a chat template (Jinja)",
        unset="the checkpoint's",
        more="In place of the checkpoint's. The file is read at the start.",
        sglang="--chat-template",
        vllm="--chat-template",
        metavar="FILE",
    )
    tool_call_parser: str | None = option(
        None,
        "format in which the model calls tools",
        unset="as the chat template shows",
        more="apriel, deepseek_v3, deepseek_v31, deepseek_v32, deepseek_v4, gemma4, glm45, glm47, granite, hermes,"
        " json, kimi_k2, lfm2, llama3_json, llama4_pythonic, minimax_m2, mistral, nemotron_v2, olmo3, openai,"
        " phi4_mini, qwen3_coder or seed_oss, or a name that vLLM or SGLang has for one of them;"
        " none: requests with tools are refused. See [tools](tools.md).",
        sglang="--tool-call-parser",
        vllm="--tool-call-parser",
        metavar="NAME",
    )
    lone_tool_calls: bool = option(
        True,
        "read an answer that is nothing but the JSON of a call as a call",
        more="In a fence or not, without the tags of the model's format: it names a tool of the request, and its"
        " arguments fit the tool's schema. See [tools](tools.md#formats-of-calls).",
    )
    reasoning_parser: str | None = option(
        None,
        "format in which the model thinks before it answers",
        unset="as the chat template shows",
        more="deepseek_r1, gemma4, gpt_oss, kimi, mistral, qwen3 or seed_oss, or a name that vLLM or SGLang has for"
        " one of them; none: reasoning is a part of the text. See [tools](tools.md#reasoning).",
        sglang="--reasoning-parser",
        vllm="--reasoning-parser",
        metavar="NAME",
    )
    strict_fields: bool = option(
        False,
        "refuse requests with unknown fields",
        more="By default a field that Sluice does not know is ignored, and named in the answer's header"
        " `x-sluice-ignored-fields` and in the log. See [fields](api.md#fields).",
    )
    max_request_bytes: int = option(
        32 << 20,
        "largest request body in bytes",
        more="A larger body gets status 413, before it is read if its size is declared.",
        positive=True,
    )
    max_stored_responses: int = option(
        1000,
        "maximum responses of /v1/responses that are kept",
        more="In memory; those that were used least recently are forgotten first. 0: none is kept, and `store: true` is"
        " answered with `store: false`.",
    )
    max_stored_response_bytes: int = option(
        256 << 20,
        "maximum memory of kept responses, in bytes",
        more="With the conversations that they answer, as JSON. A response that alone has more is not kept.",
        positive=True,
    )
    max_connections: int | None = option(
        None,
        "maximum open connections",
        unset="what open files allow, at most 8192",
        more="A few more are accepted: their health checks are answered, their other requests get status 503. Those"
        " beyond wait. The server raises its own limit of open files (`ulimit -n`) as far as it may, and keeps 52 to"
        " 128 of them for other uses.",
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
    idle_unload: float | None = option(
        None,
        "end the engine after this long without a request",
        unset="never",
        more="The next request starts another one, and waits for it. See [sleep](recovery.md#sleep).",
        metavar="SECONDS",
    )
    restart_timeout: float = option(
        300.0,
        "give up if no engine can be started for this long",
        more="Counts failures for lack of file descriptors, memory or a temporary folder, which are no restarts."
        " Meanwhile new requests get status 503, and running ones wait. 0: the first attempt is the last.",
        metavar="SECONDS",
    )
    heartbeat_timeout: float = option(
        5.0,
        "replace an engine silent for this long",
        more="An engine gives a sign of life in every layer, and every second while it waits. At least 2.",
        metavar="SECONDS",
    )
    step_timeout: float = option(
        600.0,
        "replace an engine that waits this long for one step of the device",
        more="Or that computes for this long without a sign of life.",
        aliases=("watchdog_timeout",),
        sglang="--watchdog-timeout",
        metavar="SECONDS",
    )
    start_timeout: float = option(
        1800.0, "time limit for loading the model", more="Downloads count.", metavar="SECONDS"
    )
    progress_timeout: float = option(
        60.0,
        "end a loading engine without progress for this long",
        more="An engine makes progress if it reports some, or if its process computes, reads or writes.",
        metavar="SECONDS",
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
        more="Needs --enable-fault-injection. crash, hang, alloc or nan with @STEP, and slow@STEP=SECONDS; see"
        " [recovery](recovery.md).",
        metavar="FAULTS",
    )
