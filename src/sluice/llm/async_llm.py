"""AsyncLLM: `LLM` for asyncio, with the engine in a process of its own.

    async with AsyncLLM("path/or/hub-id", max_total_tokens=4096) as llm:
        async for piece in llm.generate("Once", SamplingParams(max_tokens=32)):
            print(piece.text, end="")

It is the server without HTTP: an engine that dies is replaced, and requests continue in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from sluice.config import ServerConfig
from sluice.llm.outputs import Embedding, GenerationError
from sluice.llm.requests import Message, Prompt, Requests, digests_of, engine_config, listed
from sluice.process.client import EngineClient, EngineGone, Inbox
from sluice.process.engine_state import EngineState
from sluice.process.supervisor import Supervisor
from sluice.process.wire import FACTORY, Start
from sluice.text.text_stream import Piece
from sluice.text.vectors import unit_vector
from sluice.types import FinishReason, Output, Priority, SamplingParams, Submit

Pieces = AsyncGenerator[Piece, None]
CLOSED = "this AsyncLLM is closed"
CANCEL_SECONDS = 1.0
"""Time after which a task is cancelled again: `wait_for` of Python 3.11 may lose a cancellation."""


class AsyncLLM:
    """A model in a process of its own. Any number of tasks of one event loop may use it at once.

    Args:
        model: folder or hub id of a Hugging Face checkpoint; None is the default model.
        max_engine_restarts: engines that may follow one that died, within ten minutes.
        factory: makes the engine in its process (`wire.Start.factory`); for tests.
        lora: adapters of the model (LoRA): paths by the names that prompts choose them by.
        options: engine options by their flags' names, with underscores (`EngineConfig`).

    Raises:
        ConfigError: an option is unknown.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        max_engine_restarts: int = ServerConfig.max_engine_restarts,
        factory: str = FACTORY,
        lora: Mapping[str, str | PathLike[str]] | None = None,
        **options: Any,
    ) -> None:
        self._config = engine_config(model, options, lora)
        self._state = EngineState()
        self._client = EngineClient(recovery=self._state.stats)
        start = Start(self._config, factory)
        self._supervisor = Supervisor(start, self._client, self._state, max_engine_restarts)
        self._requests: Requests | None = None
        self._running: asyncio.Task[None] | None = None
        self._named: dict[str, Inbox] = {}
        """Requests that `abort` can find."""

    async def __aenter__(self) -> Self:
        """Start the engine.

        Raises:
            EngineStartError: it cannot be started: an option that cannot be honoured, a model that cannot be loaded.
            TokenizerError: the tokenizer cannot be used.
        """
        ready = await self._supervisor.start()
        try:
            self._requests = await asyncio.to_thread(
                Requests,
                ready.limits,
                Path(ready.tokenizer_folder),
                ready.eos_token_ids,
                ready.sampling_defaults,
                ready.config.model.seed,
                self._client.next_id,
            )
        except BaseException:
            await self._supervisor.close(at_once=True)
            raise
        self._running = asyncio.create_task(self._run(), name="engine")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def default_sampling(self) -> SamplingParams:
        """The parameters of prompts that are given none: those of the model's `generation_config.json`."""
        return self._open().default_sampling

    @property
    def pid(self) -> int | None:
        """The engine's process; None while none runs."""
        return self._state.pid

    @property
    def num_restarts(self) -> int:
        """Engines that took the place of one that died."""
        return self._state.stats.restarts

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        priority: Priority = 0,
        adapter: str = "",
        request_id: str | None = None,
    ) -> Pieces:
        """Continue a prompt, and yield a piece for each token as it comes. Closing the iterator ends the request.

        Args:
            prompt: a text or a list of token ids.
            sampling: None: the model's own settings (`default_sampling`). `n` must be 1, and `prompt_logprobs` None.
            cache_salt, priority, adapter: as `LLM.generate`.
            request_id: a name for `abort`.

        Raises:
            LimitError: the prompt is empty, has unknown ids, or does not fit with its `max_tokens`; the salt or the
                priority cannot be honoured.
            ValueError: another argument is wrong.
            GenerationError: the engine could not finish the request.
            RuntimeError: it is not open.
        """
        requests = self._open()
        (params,) = requests.params(sampling, 1)
        requests.check_stream(params)
        (digest,) = digests_of([adapter], self._client.adapters.by_name)
        (submit,) = await asyncio.to_thread(requests.generated, 0, prompt, params, cache_salt, priority, digest)
        async with aclosing(self._pieces(submit, params, request_id)) as pieces:
            async for piece in pieces:
                yield piece

    async def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        cache_salt: str = "",
        priority: Priority = 0,
        adapter: str = "",
        request_id: str | None = None,
    ) -> Pieces:
        """Answer a conversation, whose prompt the model's chat template makes, and yield pieces as `generate`.

        Args:
            messages, chat_template_kwargs, continue_final_message: as `LLM.chat`.

        Raises:
            TokenizerError: the checkpoint has no chat template, or its template refuses the messages.
            LimitError, ValueError, GenerationError, RuntimeError: as `generate`.
        """
        prompt = await asyncio.to_thread(
            self._open().chat_prompt, messages, variables=chat_template_kwargs, continues=continue_final_message
        )
        options: dict[str, Any] = {"cache_salt": cache_salt, "priority": priority, "request_id": request_id}
        options |= {"adapter": adapter}
        async with aclosing(self.generate(prompt, sampling, **options)) as pieces:
            async for piece in pieces:
                yield piece

    async def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        cache_salt: str = "",
        priority: Priority = 0,
        adapter: str = "",
    ) -> list[Embedding]:
        """Embed prompts, all of them together. Arguments and errors are those of `LLM.embed`."""
        requests = self._open()
        requests.limits.check_dimensions(dimensions)
        given = listed(prompts)
        (digest,) = digests_of([adapter], self._client.adapters.by_name)
        submits = await asyncio.to_thread(
            lambda: [requests.embedded(number, each, cache_salt, priority, digest) for number, each in enumerate(given)]
        )
        found: dict[int, Output] = {}
        inbox = self._submit(submits)
        try:
            while len(found) < len(submits):
                found |= {output.request_id: output for output in await _received(inbox)}
        finally:
            inbox.close()
        outputs = [found[submit.request_id] for submit in submits]
        return [
            Embedding(submit.prompt, unit_vector(output.embedding, dimensions), output.num_cached_tokens)
            for submit, output in zip(submits, outputs, strict=True)
        ]

    async def load_adapter(self, name: str, path: str | PathLike[str]) -> None:
        """Read an adapter beside the requests that run. Prompts can choose it by its name afterwards.

        Args:
            path: a folder in PEFT's format, or a GGUF file.

        Raises:
            ValueError: the name is taken, or the files are no adapter of the model.
            GenerationError: there is no engine at the moment.
            RuntimeError: it is not open.
        """
        self._open()
        with _engine_gone():
            await self._client.adapters.load(name, fspath(path))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Requests that use it continue.

        Raises:
            ValueError: none has the name.
        """
        digests_of([name], self._client.adapters.by_name)
        self._client.adapters.unload(name)

    def abort(self, request_id: str) -> None:
        """End a request: its iterator ends with a piece whose `finish_reason` is ABORT. Unknown names are ignored."""
        inbox = self._named.pop(request_id, None)
        if inbox is not None:
            (number,) = inbox.request_ids
            inbox.close()
            inbox.put(Output(number, 0, (), 0, FinishReason.ABORT))

    async def close(self) -> None:
        """End all requests and the engine's process. A second call does nothing."""
        running, self._running = self._running, None
        if running is None:
            return
        self._client.fail(CLOSED)
        while not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_SECONDS)
        await self._supervisor.close()
        self._open_requests().close()

    async def _run(self) -> None:
        self._client.fail(await self._supervisor.run())

    async def _pieces(self, submit: Submit, params: SamplingParams, request_id: str | None) -> Pieces:
        text = self._open().text(submit, params)
        if request_id is not None and request_id in self._named:
            raise ValueError(f"request_id {request_id!r} is in use")
        inbox = self._submit([submit])
        if request_id is not None:
            self._named[request_id] = inbox
        try:
            while text.finish_reason is None:
                for output in await _received(inbox):
                    for piece in text.push(output):
                        yield piece
        finally:
            if request_id is not None:
                self._named.pop(request_id, None)
            inbox.close()

    def _submit(self, submits: Sequence[Submit]) -> Inbox:
        with _engine_gone():
            return self._client.submit(submits)

    def _open(self) -> Requests:
        if self._running is None:
            raise RuntimeError(CLOSED if self._requests is not None else "enter this AsyncLLM with `async with` first")
        return self._open_requests()

    def _open_requests(self) -> Requests:
        assert self._requests is not None, "it was never entered"
        return self._requests


@contextmanager
def _engine_gone() -> Iterator[None]:
    """Turn the end of the last engine into the error of a request."""
    try:
        yield
    except EngineGone as error:
        raise GenerationError(f"the request was lost: {error}") from error


async def _received(inbox: Inbox) -> list[Output]:
    """Wait for outputs.

    Raises:
        GenerationError: one of them ends a request that failed.
    """
    with _engine_gone():
        outputs = await inbox.get()
    for output in outputs:
        reason = output.finish_reason
        if reason is not None and reason.is_failure and reason is not FinishReason.ABORT:
            raise GenerationError(output.error or f"the request ended: {reason}")
    return outputs
