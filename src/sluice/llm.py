"""LLM: the engine in this process, without a server.

    with LLM("path/or/hub-id", max_total_tokens=4096) as llm:
        for result in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=32)):
            print(result.text)

No child process, and no thread but that of a disk tier (`kv_disk`): the engine steps while a call here waits for its
tokens. One thread at a time may use it.
"""

from __future__ import annotations

import operator
import queue
import secrets
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self, TypeVar

from sluice.assembly.build import EngineInfo, build_engine
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Message, Stats, Submit
from sluice.limits import LimitError, check_cache_salt
from sluice.text.detokenizer import Detokenizer, Vocabulary, spelling_of
from sluice.text.text_stream import Piece, TextStream
from sluice.text.tokenizer import Tokenizer
from sluice.types import CachedTokens, FinishReason, Output, SamplingParams, TokenLogprobs

Prompt = str | Sequence[int]


class GenerationError(RuntimeError):
    """A request that the engine could not finish. The LLM stays usable."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation of a prompt."""

    token_ids: tuple[int, ...]
    """All generated tokens, the one that ended it included."""
    text: str
    """Without a stop token or stop string; empty if the checkpoint has no tokenizer."""
    finish_reason: str
    """In OpenAI's words: stop or length."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None if not asked for."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one prompt gave. `token_ids`, `text`, `finish_reason` and `logprobs` are those of its first sample."""

    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens whose KV was found in the cache by the first sample; the others share it."""
    samples: tuple[Sample, ...]
    """As many as `SamplingParams.n`."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One for each of `prompt_token_ids`, None for the first of them; None altogether if not asked for."""
    num_host_tokens: int = 0
    """Of the cached tokens, those whose KV had to be loaded from the host,"""
    num_disk_tokens: int = 0
    """and from the disk."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.samples[0].token_ids

    @property
    def text(self) -> str:
        return self.samples[0].text

    @property
    def finish_reason(self) -> str:
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        return self.samples[0].logprobs


class LLM:
    """A loaded model.

    Args:
        model: folder or hub id of a Hugging Face checkpoint; None is the bundled model.
        progress: show a progress bar on stderr while weights load.
        options: engine options by their flags' names, with underscores (`EngineConfig`).

    Raises:
        ConfigError: an unknown option, or one that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
        TokenizerError: a tokenizer that cannot be used. A checkpoint without one serves token ids.
    """

    def __init__(self, model: str | PathLike[str] | None = None, *, progress: bool = False, **options: Any) -> None:
        given = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in options.items()}
        config = EngineConfig.from_options({"model": "" if model is None else fspath(model), **given})
        self._link = _LocalLink()
        engine, self.info = build_engine(config, self._link, progress=progress)
        self._engine: Engine | None = engine
        # An LLM that nobody closed keeps neither a file in use nor a thread.
        self._close = weakref.finalize(self, engine.close)
        has_tokenizer = (self.info.folder / "tokenizer.json").is_file()
        try:
            self._tokenizer = Tokenizer.from_folder(self.info.folder) if has_tokenizer else None
        except BaseException:
            self.close()
            raise
        own = self._tokenizer.eos_token_ids if self._tokenizer else frozenset()
        self._eos_ids = self.info.eos_token_ids | own
        self._ids = count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | Sequence[str] = "",
        priority: int | Sequence[int] = 0,
    ) -> list[Result]:
        """Continue prompts, all together. An interrupt (Ctrl-C) ends them and closes the LLM.

        Args:
            prompts: texts or lists of token ids; one alone counts as a list of one.
            sampling: for all prompts, or one for each; None is `SamplingParams()`.
            cache_salt: names a part of the prefix cache, for all prompts or one for each: prompts share KV only with
                those of the same salt. Empty is the part of all that have none.
            priority: who goes first under `schedule_policy="priority"`, for all prompts or one for each.

        Returns:
            One result a prompt, in their order.

        Raises:
            LimitError: a prompt is empty, has unknown ids, or does not fit with its `max_tokens`; a salt or a priority
                cannot be honoured; none is started.
            ValueError: another bad argument; none is started.
            GenerationError: the engine could not finish a request; the others are ended too.
            RuntimeError: the LLM is closed.
        """
        listed = _listed(prompts)
        count = len(listed)
        params = _one_each("sampling", SamplingParams, SamplingParams() if sampling is None else sampling, count)
        salts = _one_each("cache_salt", str, cache_salt, count)
        priorities = _one_each("priority", int, priority, count)
        asked = [_Asked(*each) for each in zip(range(count), listed, params, salts, priorities, strict=True)]
        groups = [self._runs(each) for each in asked]
        runs = [run for group in groups for run in group]
        try:
            self._link.submit(*runs)
            for run in runs:
                while not run.is_done:
                    self._step()
            return [_result(group) for group in groups]
        finally:
            self._end(*runs)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        priority: int = 0,
    ) -> Iterator[Piece]:
        """Continue one prompt, a piece for each token as it comes. Closing the iterator ends the request.

        Raises:
            LimitError, ValueError, GenerationError, RuntimeError: as `generate`; arguments are checked at the call,
                `n` must be 1, and `prompt_logprobs` None.
        """
        (alone,) = _listed([prompt])
        (params,) = _one_each("sampling", SamplingParams, SamplingParams() if sampling is None else sampling, 1)
        if params.n != 1:
            raise ValueError(f"a stream gives one sample: n must be 1, got {params.n}; use generate")
        if params.prompt_logprobs is not None:
            raise ValueError(
                f"a stream gives pieces of the output: prompt_logprobs must be None, got {params.prompt_logprobs}; use"
                f" generate"
            )
        (run,) = self._runs(_Asked(0, alone, params, cache_salt, priority))
        return self._pieces(run)

    def memory_report(self, length: int | None = None) -> dict[str, int]:
        """Bytes by part (`Footprint`): what is allocated, or with `length` what a request of so many tokens takes.

        Args:
            length: prompt and output together.

        Raises:
            LimitError: there can be no request of that length.
            RuntimeError: the LLM is closed.
        """
        self._open_engine()
        return (self.info.memory if length is None else self.info.predicted_memory(length)).as_dict()

    def close(self) -> None:
        """Free the model and the KV pool, and end the trace. Twice is once. An LLM that is garbage closes itself.

        Stores on their way to a disk (`kv_disk`) are waited for, for seconds at most; the rest is dropped.
        """
        self._engine = None
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _pieces(self, run: _Run) -> Iterator[Piece]:
        try:
            self._link.submit(run)
            while run.pieces or not run.is_done:
                if run.pieces:
                    yield run.pieces.popleft()
                else:
                    self._step()
            run.raise_error()
        finally:
            self._end(run)

    def _runs(self, asked: _Asked) -> list[_Run]:
        """The checked requests of one prompt, a sample each, not submitted yet."""
        self._open_engine()
        sampling = asked.sampling
        tokens = self._token_ids(asked.prompt, asked.index)
        try:
            if asked.cache_salt != "":
                check_cache_salt(asked.cache_salt)
            self.info.limits.check_priority(asked.priority)
            room = self.info.limits.check_sampling(tokens, sampling)
        except LimitError as error:
            raise LimitError(f"prompt {asked.index}: {error}", param=error.param, code=error.code) from error
        if sampling.stop and self._tokenizer is None:
            raise ValueError(f"stop strings need a tokenizer, and {_lacks(self.info)}; use stop_token_ids")
        resolved = sampling.resolved(eos_ids=self._eos_ids, room=room, seed=secrets.randbits(63))
        own = [resolved.of_sample(index) for index in range(sampling.n)]
        return [
            _Run(
                Submit(next(self._ids), tokens, params, index, asked.cache_salt, asked.priority),
                TextStream(self._detokenizer(tokens), sampling.stop, sampling.min_tokens),
            )
            for index, params in enumerate(own)
        ]

    def _detokenizer(self, tokens: tuple[int, ...]) -> Detokenizer:
        return self._tokenizer.detokenizer(tokens) if self._tokenizer else Detokenizer(_MUTE)

    def _token_ids(self, prompt: Prompt, index: int) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return _checked_ids(prompt, index)
        if self._tokenizer is None:
            raise ValueError(f"prompt {index}: a text needs a tokenizer, and {_lacks(self.info)}; give token ids")
        if not prompt:
            raise LimitError(f"prompt {index}: the prompt is empty", param="prompt")
        return tuple(self._tokenizer.encode(prompt))

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

    def _step(self) -> None:
        """One step. What escapes it (an interrupt, a bug) may have left a step half done: nothing can follow."""
        engine = self._open_engine()
        try:
            engine.step()
        except BaseException:
            self.close()
            raise

    def _end(self, *runs: _Run) -> None:
        """Forget runs, ending those that are not done; with no other left, bring the engine to rest."""
        self._link.forget(*runs)
        while self._engine is not None and not self._link.runs and not self._link.is_at_rest(self._engine):
            self._step()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt and all that was said about it, unchecked but for the sampling."""

    index: int
    prompt: Prompt
    sampling: SamplingParams
    cache_salt: str
    priority: int


@dataclass(slots=True, eq=False)
class _Run:
    """A request and what came of it so far."""

    submit: Submit
    text: TextStream
    pieces: deque[Piece] = field(default_factory=deque)
    cached: CachedTokens = field(default_factory=CachedTokens)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    error: str | None = None

    @property
    def is_done(self) -> bool:
        return self.text.finish_reason is not None

    def take(self, output: Output) -> None:
        if self.is_done:
            return
        self.cached = output.cached
        self.prompt_logprobs += output.prompt_logprobs
        if output.finish_reason is not None and output.finish_reason.is_failure:
            self.error = output.error or "the request was aborted"
        self.pieces.extend(self.text.push(output))

    def raise_error(self) -> None:
        if self.error is not None:
            raise GenerationError(self.error)

    def sample(self) -> Sample:
        self.raise_error()
        assert self.text.finish_reason is not None, f"{self.submit.request_id} is not done"
        told = tuple(piece.logprobs for piece in self.pieces if piece.logprobs is not None)
        return Sample(
            token_ids=tuple(piece.token_id for piece in self.pieces if piece.token_id is not None),
            text="".join(piece.text for piece in self.pieces),
            finish_reason=self.text.finish_reason.value,
            logprobs=None if self.submit.sampling.logprobs is None else told,
        )


def _result(runs: Sequence[_Run]) -> Result:
    """Of the samples of one prompt."""
    first, *_ = runs
    told = None if first.submit.sampling.prompt_logprobs is None else tuple(first.prompt_logprobs)
    samples = tuple(run.sample() for run in runs)
    return Result(first.submit.prompt, first.cached.total, samples, told, first.cached.host, first.cached.disk)


class _LocalLink:
    """The engine's link to runs in the same thread."""

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self._inbox: list[Message] = []
        self._posted: queue.SimpleQueue[Message] = queue.SimpleQueue()
        """From other threads."""

    def submit(self, *runs: _Run) -> None:
        for run in runs:
            self.runs[run.submit.request_id] = run
            self._inbox.append(run.submit)

    def forget(self, *runs: _Run) -> None:
        for run in runs:
            if self.runs.pop(run.submit.request_id, None) is not None and not run.is_done:
                self._inbox.append(Abort(run.submit.request_id))

    def is_at_rest(self, engine: Engine) -> bool:
        return engine.is_idle and not self._inbox

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        messages, self._inbox = self._inbox, []
        if block and not messages:  # only a copy with the disk can end the wait
            with suppress(queue.Empty):
                messages.append(self._posted.get(timeout=timeout))
        while not self._posted.empty():
            messages.append(self._posted.get())
        return messages

    def post(self, message: Message) -> None:
        self._posted.put(message)

    def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            run = self.runs.get(output.request_id)
            if run is None:
                continue
            run.take(output)
            if run.is_done and output.finish_reason is None:
                self._inbox.append(Abort(output.request_id, FinishReason.STOP))  # its text is complete

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"nobody asked for {stats}")


_MUTE = Vocabulary(spelling_of(None), lambda token_id: None, frozenset())
"""Of a checkpoint without a tokenizer: every token is without text."""


def _lacks(info: EngineInfo) -> str:
    return f"{info.folder} has no tokenizer.json"


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts, one alone as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a text, a list of token ids or a list of either, got {prompts!r}")
    items: list[Any] = list(prompts)
    if any(isinstance(item, str | Iterable) for item in items):
        return items
    return [items] if items else []


T = TypeVar("T")


def _one_each(name: str, kind: type[T], given: Any, num_prompts: int) -> Sequence[T]:
    """What was given for each prompt, one value alone as many times as there are prompts."""
    if isinstance(given, kind):
        return [given] * num_prompts
    if not isinstance(given, Sequence) or not all(isinstance(item, kind) for item in given):
        raise ValueError(f"{name} must be {kind.__name__} or a list of them, got {given!r}")
    if len(given) != num_prompts:
        raise ValueError(
            f"{name} must be one {kind.__name__}, or one for each of {num_prompts} prompts, got {len(given)}"
        )
    return given


def _checked_ids(prompt: Any, index: int) -> tuple[int, ...]:
    """The ids of a prompt, whatever integers they come as."""
    try:
        if any(isinstance(token, bool) for token in prompt):
            raise TypeError
        return tuple(operator.index(token) for token in prompt)
    except TypeError:
        raise ValueError(f"prompt {index} must be a text or a list of token ids, got {prompt!r}") from None
