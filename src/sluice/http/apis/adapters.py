"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter` with vLLM's bodies, and SGLang's without `/v1`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sluice.engine.adapter_names import NameTaken
from sluice.http.base.backend import Backend, Service
from sluice.http.base.body import BodyReader, read_fields
from sluice.http.base.errors import ApiError, bad_request, require, unavailable
from sluice.http.base.routes import Body, Routes, json_answer
from sluice.http.call.generate_call import documented
from sluice.process.adapters import AdapterRefused
from sluice.process.client import EngineGone
from sluice.types.shown import shown

Name = Annotated[str, documented(minLength=1, maxLength=256)]


class LoadFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a call that loads an adapter."""

    lora_name: Name
    lora_path: Annotated[str, documented(minLength=1)]
    load_inplace: bool = False
    """The name may be that of another adapter, in whose place this one comes."""


class UnloadFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a call that unloads an adapter."""

    lora_name: Name


class AdaptersLoaded(msgspec.Struct, kw_only=True):
    """SGLang's answer."""

    success: bool
    error_message: str = ""
    loaded_adapters: dict[str, str]
    """Names of adapters, and where they were loaded from, in the folder of --lora-dir."""


class AdapterFolder:
    """The folder whose adapters may be loaded.

    Raises:
        OSError: there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve(strict=True)

    def find(self, given: str) -> Path:
        """Return where an adapter is. Links are followed, and must not lead out of the folder.

        Args:
            given: a path, from the folder on if it is relative.

        Raises:
            ApiError: 403, it is outside the folder, or a file of it is; 404, it does not exist.
        """
        try:
            path = (self.folder / given).resolve()
            self._check_inside(path, given)
            if not path.exists():
                raise ApiError(404, f"no adapter found at {shown(given)}", param="lora_path", code="adapter_not_found")
            for file in path.iterdir() if path.is_dir() else ():
                self._check_inside(file.resolve(), given)
        except (OSError, ValueError, RuntimeError) as error:
            raise bad_request(f"lora_path {shown(given)} cannot be read: {error}", param="lora_path") from error
        return path

    def shown(self, path: str) -> str:
        """Return a path as a client may see it."""
        return str(Path(path).relative_to(self.folder)) if Path(path).is_relative_to(self.folder) else Path(path).name

    def _check_inside(self, path: Path, given: str) -> None:
        if not path.is_relative_to(self.folder):
            message = f"lora_path {shown(given)} leads out of the folder whose adapters may be loaded (--lora-dir)"
            raise ApiError(403, message, param="lora_path", code="path_not_allowed")


def parse_load(body: bytes) -> LoadFields:
    """Check the body of a call that loads an adapter.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = read_fields(body, LoadFields, unsupported=LOAD_OTHERS)
    require(bool(fields.lora_name), "lora_name must not be empty", param="lora_name")
    require(bool(fields.lora_path), "lora_path must not be empty", param="lora_path")
    return fields


def parse_unload(body: bytes) -> UnloadFields:
    """Check the body of a call that unloads an adapter.

    Raises:
        ApiError: 400, naming the field.
    """
    return read_fields(body, UnloadFields, unsupported=UNLOAD_OTHERS)


LOAD_OTHERS: dict[str, type | tuple[Any, ...]] = {"is_3d_lora_weight": (), "pinned": (), "added_tokens_config": ()}
UNLOAD_OTHERS: dict[str, type | tuple[Any, ...]] = {"lora_int_id": int}


class AdapterCalls:
    """Loads and unloads adapters as calls ask for it. Each answers with the adapter's name when that is done."""

    def __init__(self, backend: Backend, bodies: BodyReader, folder: AdapterFolder) -> None:
        self._backend = backend
        self._bodies = bodies
        self._folder = folder

    async def load(self, request: Request) -> str:
        """Load an adapter.

        Raises:
            ApiError: it cannot be.
        """
        fields = await self._bodies.read(request, parse_load)
        service = self._backend.service()
        book, path = service.client.adapters, await asyncio.to_thread(self._folder.find, fields.lora_path)
        if fields.load_inplace and fields.lora_name in book.by_name:
            await _refused(book.replace(fields.lora_name, str(path)))
        else:
            await _refused(book.load(fields.lora_name, str(path), service.models))
        return fields.lora_name

    async def unload(self, request: Request) -> str:
        """Take the name of an adapter away.

        Raises:
            ApiError: 404, no adapter has it.
        """
        fields = await self._bodies.read(request, parse_unload)
        name = fields.lora_name
        try:
            self._backend.service().client.adapters.unload(name)
        except KeyError:
            message = f"the adapter {shown(name)} cannot be found"
            raise ApiError(404, message, param="lora_name", code="adapter_not_found") from None
        return name


def add_adapters(routes: Routes, backend: Backend, bodies: BodyReader, folder: AdapterFolder) -> None:
    """Add the routes. They answer when the adapter is read, or its name is gone."""
    calls = AdapterCalls(backend, bodies, folder)
    _add_for_vllm(routes, calls)
    _add_for_sglang(routes, calls, backend, folder)


def _add_for_vllm(routes: Routes, calls: AdapterCalls) -> None:
    @routes.add("POST", "/v1/load_lora_adapter", summary="Load an adapter (vLLM)", body=Body((LoadFields,)))
    async def load_for_vllm(request: Request) -> Response:
        return PlainTextResponse(f"Success: LoRA adapter '{await calls.load(request)}' added successfully.")

    @routes.add("POST", "/v1/unload_lora_adapter", summary="Unload an adapter (vLLM)", body=Body((UnloadFields,)))
    async def unload_for_vllm(request: Request) -> Response:
        return PlainTextResponse(f"Success: LoRA adapter '{await calls.unload(request)}' removed successfully.")


def _add_for_sglang(routes: Routes, calls: AdapterCalls, backend: Backend, folder: AdapterFolder) -> None:
    async def for_sglang(request: Request, work: Callable[[Request], Awaitable[str]]) -> Response:
        status, message = 200, ""
        try:
            await work(request)
        except ApiError as error:
            status, message = error.status, error.message
        service = backend.service()
        answer = AdaptersLoaded(success=not message, error_message=message, loaded_adapters=_loaded(service, folder))
        return json_answer(answer, status)

    @routes.add(
        "POST",
        "/load_lora_adapter",
        summary="Load an adapter (SGLang)",
        body=Body((LoadFields,)),
        answer=AdaptersLoaded,
        error=AdaptersLoaded,
    )
    async def load_for_sglang(request: Request) -> Response:
        return await for_sglang(request, calls.load)

    @routes.add(
        "POST",
        "/unload_lora_adapter",
        summary="Unload an adapter (SGLang)",
        body=Body((UnloadFields,)),
        answer=AdaptersLoaded,
        error=AdaptersLoaded,
    )
    async def unload_for_sglang(request: Request) -> Response:
        return await for_sglang(request, calls.unload)


def _loaded(service: Service, folder: AdapterFolder) -> dict[str, str]:
    return {name: folder.shown(info.path) for name, info in service.adapters.items()}


async def _refused(loading: Awaitable[Any]) -> None:
    """Turn why an adapter cannot be loaded into the error of a call."""
    try:
        await loading
    except NameTaken as error:
        raise bad_request(str(error), param="lora_name", code="adapter_exists") from error
    except AdapterRefused as error:
        raise bad_request(str(error), param="lora_path", code="adapter_refused") from error
    except EngineGone as error:
        raise unavailable(str(error)) from error
