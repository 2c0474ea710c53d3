"""LLM: the engine in this process, without a server.

    with LLM("path/or/hub-id", max_total_tokens=4096) as llm:
        for result in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=32)):
            print(result.text)

There is no child process, and no thread except that of a disk tier (`kv_disk`): the engine steps while a call here
waits for its tokens. Only one thread may use an LLM at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from os import PathLike, fspath
from typing import Any, Self

from sluice.assembly.engine import build_engine
from sluice.engine.engine import Engine
from sluice.llm.local_adapters import LocalAdapters
from sluice.llm.outputs import Embedding, Result
from sluice.llm.prefill_watch import OnPrefill, PrefillWatch
from sluice.llm.requests import (
    PRIORITIES,
    Message,
    Prompt,
    Requests,
    engine_config,
    listed,
    one_each,
    talks_of,
)
from sluice.llm.runs import LocalLink, LocalRequest, embedding_of, result_of
from sluice.text.text_stream import Piece
from sluice.types import NO_SAMPLING, Priority, SamplingParams, Submit


class LLM:
    """A loaded model.

    Args:
        model: folder or hub id of a Hugging Face checkpoint; None is the default model.
        progress: show a progress bar on stderr while weights load.
        lora: adapters of the model (LoRA): paths by the names that prompts choose them by.
        options: engine options by their flags' names, with underscores (`EngineConfig`).

    Raises:
        ConfigError: an option is unknown, or cannot be honoured.
        CheckpointError: the model cannot be found or loaded.
        TokenizerError: the tokenizer cannot be used. A checkpoint without one accepts token ids.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        progress: bool = False,
        lora: Mapping[str, str | PathLike[str]] | None = None,
        **options: Any,
    ) -> None:
        # The answers are read when they are complete, so no step need be short for them.
        config = engine_config(model, {"itl_target": "off", **options}, lora)
        self._link = LocalLink()
        engine, self.info = build_engine(config, self._link, progress=progress)
        self._watch = PrefillWatch(engine.runner)
        engine.runner = self._watch
        self._adapters = LocalAdapters(engine.adapters, self.info.adapters)
        self._engine: Engine | None = engine
        self._close = weakref.finalize(self, engine.close)  # also runs when an LLM is garbage
        try:
            self._requests = Requests(
                self.info.limits,
                self.info.tokenizer_folder,
                self.info.eos_token_ids,
                self.info.sampling_defaults,
                config.model.seed,
                partial(next, count()),
            )
        except BaseException:
            self._close()
            raise

    @property
    def default_sampling(self) -> SamplingParams:
        """The parameters of prompts that are given none: those of the model's `generation_config.json`."""
        return self._requests.default_sampling

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | Sequence[str] = "",
        priority: Priority | Sequence[Priority] = 0,
        adapter: str | Sequence[str] = "",
    ) -> list[Result]:
        """Continue prompts, all of them together. An interrupt (Ctrl-C) ends them and closes the LLM.

        Args:
            prompts: texts or lists of token ids; a single one counts as a list of one.
            sampling: for all prompts, or one for each; None: the model's own settings (`default_sampling`).
            cache_salt: for all prompts, or one for each. Prompts share cached KV only if their salts are equal.
            priority: for all prompts, or one for each: a number, of which higher ones go first under
                `schedule_policy="priority"`, or under `"deadline"` a class: "interactive", "standard" or "batch".
            adapter: for all prompts, or one for each: the name of an adapter; empty: none.

        Returns:
            One result for each prompt, in order.

        Raises:
            LimitError: a prompt is empty, has unknown ids, or does not fit with its `max_tokens`; a salt or a priority
                cannot be honoured. No prompt is started.
            ValueError: another argument is wrong. No prompt is started.
            GenerationError: the engine could not finish a request. All others are ended.
            RuntimeError: the LLM is closed.
        """
        given = listed(prompts)
        params = self._requests.params(sampling, len(given))
        salts = one_each("cache_salt", str, cache_salt, len(given))
        priorities = one_each("priority", PRIORITIES, priority, len(given))
        digests = self._adapters.digests(adapter, len(given))
        groups = [self._runs(*each) for each in zip(count(), given, params, salts, priorities, digests, strict=False)]
        runs = [run for group in groups for run in group]
        self._finish(runs)
        return [result_of(group) for group in groups]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        cache_salt: str | Sequence[str] = "",
        priority: Priority | Sequence[Priority] = 0,
        adapter: str | Sequence[str] = "",
    ) -> list[Embedding]:
        """Embed prompts, all of them together: the model's hidden state of each one's last token, as a vector of
        length 1.

        Args:
            prompts, cache_salt, priority, adapter: as `generate`.
            dimensions: of each vector, which is cut and normalised again, for models that are made for it; None: all
                that the model gives.

        Raises:
            LimitError: a prompt is empty, too long or has unknown ids; a model that makes no embeddings, or shorter
                ones; a salt or a priority cannot be honoured. No prompt is started.
            ValueError, GenerationError, RuntimeError: as `generate`.
        """
        self._open_engine()
        self.info.limits.check_dimensions(dimensions)
        given = listed(prompts)
        salts = one_each("cache_salt", str, cache_salt, len(given))
        priorities = one_each("priority", PRIORITIES, priority, len(given))
        digests = self._adapters.digests(adapter, len(given))
        submits = [
            self._requests.embedded(*each)
            for each in zip(range(len(given)), given, salts, priorities, digests, strict=True)
        ]
        runs = [self._run(submit, NO_SAMPLING) for submit in submits]
        self._finish(runs)
        return [embedding_of(run, dimensions) for run in runs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        **others: Any,
    ) -> list[Result]:
        """Answer a conversation, or several together, whose prompts the model's chat template makes.

        Args:
            messages: of one conversation, or a list of conversations; each with a `role` and the text of its `content`.
            chat_template_kwargs: variables of the template, such as `{"enable_thinking": False}`.
            continue_final_message: the answer continues the last message.
            sampling, others: as `generate`. `max_tokens` counts for the answer alone.

        Raises:
            TokenizerError: the checkpoint has no chat template, or its template refuses the messages.
            LimitError, ValueError, GenerationError, RuntimeError: as `generate`.
        """
        self._open_engine()
        prompts = [
            self._requests.chat_prompt(talk, variables=chat_template_kwargs, continues=continue_final_message)
            for talk in talks_of(messages)
        ]
        return self.generate(prompts, sampling, **others)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        priority: Priority = 0,
        adapter: str = "",
        on_prefill: OnPrefill | None = None,
    ) -> Generator[Piece, None, None]:
        """Continue one prompt, and return an iterator over its tokens as they come. Closing it ends the request.

        Args:
            on_prefill: called between steps with the tokens of the prompt that are read and the number of all, first
                with those that were cached. What it raises ends the request.

        Raises:
            LimitError, ValueError, GenerationError, RuntimeError: as `generate`. Arguments are checked at the call;
                `n` must be 1, and `prompt_logprobs` None.
        """
        (params,) = self._requests.params(sampling, 1)
        self._requests.check_stream(params)
        (run,) = self._runs(0, prompt, params, cache_salt, priority, *self._adapters.digests(adapter, 1))
        return self._pieces(run, on_prefill)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        **others: Any,
    ) -> Generator[Piece, None, None]:
        """Answer a conversation, and return an iterator over the tokens as they come. Closing it ends the request.

        Args:
            messages, chat_template_kwargs, continue_final_message: as `chat`.
            sampling, others: as `stream`.

        Raises:
            TokenizerError: as `chat`.
            LimitError, ValueError, GenerationError, RuntimeError: as `stream`.
        """
        self._open_engine()
        prompt = self._requests.chat_prompt(messages, variables=chat_template_kwargs, continues=continue_final_message)
        return self.stream(prompt, sampling, **others)

    def load_adapter(self, name: str, path: str | PathLike[str]) -> None:
        """Read an adapter, which prompts can choose by its name afterwards.

        Args:
            path: a folder in PEFT's format, or a GGUF file.

        Raises:
            ValueError: the name is taken, or the files are no adapter of the model.
            RuntimeError: the LLM is closed.
        """
        self._open_engine()
        self._adapters.load(name, fspath(path))

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Streams that use it continue.

        Raises:
            ValueError: none has the name.
        """
        self._adapters.unload(name)
        self._adapters.forget_unused({run.submit.adapter for run in self._link.runs.values()})

    def memory_report(self, length: int | None = None) -> dict[str, int]:
        """Return bytes by part (`Footprint`): what is allocated, or with `length` what one request needs.

        Args:
            length: tokens of the request, prompt and output together.

        Raises:
            LimitError: no request can have that length.
            RuntimeError: the LLM is closed.
        """
        engine = self._open_engine()
        if length is not None:
            return self.info.predicted_memory(length).as_dict()
        return replace(self.info.memory, bounds_bytes=engine.ring().bounds_bytes).as_dict()

    def close(self) -> None:
        """Free the model and the KV pool, and end the trace. A second call does nothing.

        Stores on their way to a disk (`kv_disk`) are completed if that takes only seconds, otherwise dropped.
        """
        self._engine = None
        self._requests.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _finish(self, runs: Sequence[LocalRequest]) -> None:
        """Run until all have ended, or one has failed; then end the others."""
        try:
            self._link.submit(*runs)
            for run in runs:
                while not run.is_done:
                    self._step()
                run.raise_error()
        finally:
            self._end(*runs)

    def _pieces(self, run: LocalRequest, on_prefill: OnPrefill | None) -> Generator[Piece, None, None]:
        number, total = run.submit.request_id, len(run.submit.prompt)
        if on_prefill is not None:
            self._watch.watch(number)
        try:
            self._link.submit(run)
            while run.pieces or not run.is_done:
                if run.pieces:
                    yield run.pieces.popleft()
                    continue
                self._step()
                if on_prefill is not None:
                    for done in self._watch.updates(number):
                        if done <= total:
                            on_prefill(done, total)
            run.raise_error()
        finally:
            self._watch.forget(number)
            self._end(run)

    def _runs(
        self,
        index: int,
        prompt: Prompt,
        sampling: SamplingParams,
        cache_salt: str,
        priority: Priority,
        adapter: str,
    ) -> list[LocalRequest]:
        """Check the arguments for one prompt, and return a run for each of its samples, not submitted yet."""
        self._open_engine()
        submits = self._requests.generated(index, prompt, sampling, cache_salt, priority, adapter)
        return [self._run(submit, sampling) for submit in submits]

    def _run(self, submit: Submit, sampling: SamplingParams) -> LocalRequest:
        return LocalRequest(submit, self._requests.text(submit, sampling))

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

    def _step(self) -> None:
        """Do one step. After an exception (an interrupt, a bug) the step may be half done, so the LLM is closed."""
        engine = self._open_engine()
        try:
            engine.step()
        except BaseException:
            self.close()
            raise

    def _end(self, *runs: LocalRequest) -> None:
        """Forget runs and abort those that are not done. If none is left, step until the engine is idle."""
        self._link.forget(*runs)
        link = self._link
        self._adapters.forget_unused({run.submit.adapter for run in link.runs.values()})
        while self._engine is not None and not link.runs and not (self._engine.is_idle and link.inbox.empty()):
            self._step()
