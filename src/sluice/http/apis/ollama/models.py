"""What Ollama's API says about models: `GET /api/tags`, `GET /api/ps` and `POST /api/show`."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec

from sluice.http.apis.ollama.fields import served_name
from sluice.http.base.backend import Service
from sluice.http.base.body import read_fields
from sluice.http.base.errors import bad_request
from sluice.http.base.model_names import with_tag
from sluice.http.base.routes import Body

NEVER = "9999-12-31T23:59:59Z"
"""When a model is unloaded that stays for as long as the server."""
SUFFIXES = ("forcausallm", "lmheadmodel", "model")
"""What the names of architectures end with, in lower case."""
DEFAULTS = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
"""Names in Ollama's `parameters` that are others than ours."""


class ShowFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/show`."""

    model: str | None = None
    name: str | None = None
    """The former name of `model`."""
    options: dict[str, Any] | None = None
    """Accepted, and without effect."""


SHOW_BODY = Body((ShowFields,))


class PullFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/pull`."""

    model: str | None = None
    name: str | None = None
    """The former name of `model`."""
    stream: bool = True
    insecure: bool = False
    """It has no effect."""


PULL_BODY = Body((PullFields,))


class OllamaDetails(msgspec.Struct):
    """What a checkpoint is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    """How most matrices are stored, such as `Q4_K` or `bfloat16`."""


class _OllamaModel(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    """Bytes."""
    digest: str
    details: OllamaDetails


class OllamaModel(_OllamaModel, kw_only=True):
    modified_at: str


class OllamaTags(msgspec.Struct):
    """The answer to `GET /api/tags`."""

    models: list[OllamaModel]


class OllamaRunningModel(_OllamaModel, kw_only=True):
    size_vram: int
    expires_at: str
    context_length: int


class OllamaRunning(msgspec.Struct):
    """The answer to `GET /api/ps`."""

    models: list[OllamaRunningModel]


class OllamaShown(msgspec.Struct):
    """The answer to `POST /api/show`."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    """Facts by name, such as `qwen3.context_length`."""
    capabilities: list[str]
    modified_at: str


def tags(service: Service, started: int) -> OllamaTags:
    """Return the answer to `GET /api/tags`: a model for each name.

    Args:
        started: when the server was, in Unix seconds.
    """
    modified = _time(started)
    return OllamaTags([OllamaModel(modified_at=modified, **_facts(service, name)) for name in _names(service)])


def _names(service: Service) -> tuple[str, ...]:
    """Return the names that requests may have: of the model, and of its adapters."""
    return (*service.models, *service.adapters)


def running(service: Service) -> OllamaRunning:
    """Return the answer to `GET /api/ps`: the same models, all of them loaded."""
    memory = service.memory
    size = memory.weights_bytes + memory.device_kv_bytes
    on_gpu = size if str(_setting(service, "device")).startswith("cuda") else 0
    length = service.limits.max_request_tokens
    return OllamaRunning(
        [
            OllamaRunningModel(
                size_vram=on_gpu, expires_at=NEVER, context_length=length, **_facts(service, name) | {"size": size}
            )
            for name in _names(service)
        ]
    )


def parse_show(body: bytes) -> str:
    """Check the body of `POST /api/show`, and return the name of the model.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, ShowFields)
    name = fields.model or fields.name
    if not name:
        raise bad_request("model is required", param="model")
    return name


def parse_pull(body: bytes) -> PullFields:
    """Check the body of `POST /api/pull`.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, PullFields)
    if not (fields.model or fields.name):
        raise bad_request("model is required", param="model")
    return fields


def show(service: Service, name: str, started: int) -> OllamaShown:
    """Return the answer to `POST /api/show`.

    Raises:
        ApiError: 404, another model.
    """
    own = served_name(service, name)
    family = _family(service)
    defaults = service.sampling_defaults.as_dict()
    return OllamaShown(
        modelfile=f"# {own} is served by Sluice from a checkpoint, not from a Modelfile\n",
        parameters="\n".join(f"{DEFAULTS.get(key, key)} {value}" for key, value in defaults.items()),
        template=service.tokenizer.chat_template_source or "{{ .Prompt }}",
        details=_details(service),
        model_info={
            "general.architecture": family,
            **({"general.parameter_count": service.stored.numbers} if service.stored.numbers else {}),
            f"{family}.context_length": service.limits.max_model_len,
            f"{family}.vocab_size": service.limits.vocab_size,
        },
        capabilities=[
            "completion",
            *(["tools"] if service.replies.tools is not None else []),
            *(["thinking"] if service.replies.tells_reasoning else []),
        ],
        modified_at=_time(started),
    )


def _facts(service: Service, name: str) -> dict[str, Any]:
    """Return the fields of a `_OllamaModel`."""
    return {
        "name": with_tag(name),
        "model": with_tag(name),
        "size": service.stored.nbytes or service.memory.weights_bytes,
        "digest": _digest(service, name),
        "details": _details(service),
    }


def _digest(service: Service, name: str) -> str:
    """Return a digest of what is known of a model. Clients tell models apart by it, and show its beginning."""
    facts = [name, service.architecture, service.memory.weights_bytes, service.limits.max_model_len]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _details(service: Service) -> OllamaDetails:
    family = _family(service)
    stored = service.stored
    level = stored.level or str(_setting(service, "dtype") or "")
    return OllamaDetails("", stored.format, family, [family], _shown_numbers(stored.numbers), level)


def _shown_numbers(count: int) -> str:
    """Return a number of parameters as Ollama shows it; empty: it is not known."""
    if not count:
        return ""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"


def _family(service: Service) -> str:
    """Return the beginning of the architecture's name, such as "qwen3"."""
    name = service.architecture.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name or "unknown"


def _setting(service: Service, name: str) -> Any:
    return next((setting.value for setting in service.settings if setting.name == name), None)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
