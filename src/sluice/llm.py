"""LLM: the engine in this process, without a server.

    with LLM("path/or/hub-id", max_total_tokens=4096) as llm:
        for result in llm.generate(["Once", "Twice"], SamplingParams(max_tokens=32)):
            print(result.text)

There is no child process, and no thread except that of a disk tier (`kv_disk`): the engine steps while a call here
waits for its tokens. Only one thread may use an LLM at a time.
"""

from __future__ import annotations

import operator
import queue
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from os import PathLike, fspath
from typing import Any, Self, TypeVar

from sluice.assembly.engine import build_engine
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Message, Stats
from sluice.limits import LimitError, check_cache_salt
from sluice.outputs import Result, Sample
from sluice.text.detokenizer import Detokenizer, Vocabulary, spelling_of
from sluice.text.text_stream import Piece, TextStream
from sluice.text.tokenizer import Tokenizer, has_tokenizer
from sluice.types import FinishReason, Output, SamplingParams, Submit, seed_source

Prompt = str | Sequence[int]
T = TypeVar("T")


class GenerationError(RuntimeError):
    """The engine could not finish a request. The LLM stays usable."""


class LLM:
    """A loaded model.

    Args:
        model: folder or hub id of a Hugging Face checkpoint; None is the bundled model.
        progress: show a progress bar on stderr while weights load.
        options: engine options by their flags' names, with underscores (`EngineConfig`).

    Raises:
        ConfigError: an option is unknown, or cannot be honoured.
        CheckpointError: the model cannot be found or loaded.
        TokenizerError: the tokenizer cannot be used. A checkpoint without one accepts token ids.
    """

    def __init__(self, model: str | PathLike[str] | None = None, *, progress: bool = False, **options: Any) -> None:
        given = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in options.items()}
        config = EngineConfig.from_options({"model": "" if model is None else fspath(model), **given})
        self._link = _LocalLink()
        engine, self.info = build_engine(config, self._link, progress=progress)
        self._engine: Engine | None = engine
        self._close = weakref.finalize(self, engine.close)  # also runs when an LLM is garbage
        folder = self.info.tokenizer_folder
        try:
            self._tokenizer = Tokenizer.from_folder(folder, chat=False) if has_tokenizer(folder) else None
        except BaseException:
            self.close()
            raise
        self._eos_ids = self.info.eos_token_ids | (self._tokenizer.eos_token_ids if self._tokenizer else frozenset())
        self._ids = count()
        self._new_seed = seed_source(config.model.seed)

    @property
    def default_sampling(self) -> SamplingParams:
        """The parameters of prompts that are given none: those of the model's `generation_config.json`."""
        return self.info.sampling_defaults.fill(SamplingParams(), ())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str | Sequence[str] = "",
        priority: int | Sequence[int] = 0,
    ) -> list[Result]:
        """Continue prompts, all of them together. An interrupt (Ctrl-C) ends them and closes the LLM.

        Args:
            prompts: texts or lists of token ids; a single one counts as a list of one.
            sampling: for all prompts, or one for each; None: the model's own settings (`default_sampling`).
            cache_salt: for all prompts, or one for each. Prompts share cached KV only if their salts are equal.
            priority: for all prompts, or one for each. Higher ones go first under `schedule_policy="priority"`.

        Returns:
            One result for each prompt, in order.

        Raises:
            LimitError: a prompt is empty, has unknown ids, or does not fit with its `max_tokens`; a salt or a priority
                cannot be honoured. No prompt is started.
            ValueError: another argument is wrong. No prompt is started.
            GenerationError: the engine could not finish a request. All others are ended.
            RuntimeError: the LLM is closed.
        """
        listed = _listed(prompts)
        params = self._params(sampling, len(listed))
        salts = _one_each("cache_salt", str, cache_salt, len(listed))
        priorities = _one_each("priority", int, priority, len(listed))
        groups = [self._runs(*each) for each in zip(count(), listed, params, salts, priorities, strict=False)]
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
        """Continue one prompt, and return an iterator over its tokens as they come. Closing it ends the request.

        Raises:
            LimitError, ValueError, GenerationError, RuntimeError: as `generate`. Arguments are checked at the call;
                `n` must be 1, and `prompt_logprobs` None.
        """
        (params,) = self._params(sampling, 1)
        if params.n != 1:
            raise ValueError(f"a stream gives one sample: n must be 1, got {params.n}; use generate")
        if params.prompt_logprobs is not None:
            raise ValueError(f"in a stream, prompt_logprobs must be None, got {params.prompt_logprobs}; use generate")
        (run,) = self._runs(0, prompt, params, cache_salt, priority)
        return self._pieces(run)

    def memory_report(self, length: int | None = None) -> dict[str, int]:
        """Return bytes by part (`Footprint`): what is allocated, or with `length` what one request needs.

        Args:
            length: tokens of the request, prompt and output together.

        Raises:
            LimitError: no request can have that length.
            RuntimeError: the LLM is closed.
        """
        self._open_engine()
        return (self.info.memory if length is None else self.info.predicted_memory(length)).as_dict()

    def close(self) -> None:
        """Free the model and the KV pool, and end the trace. A second call does nothing.

        Stores on their way to a disk (`kv_disk`) are completed if that takes only seconds, otherwise dropped.
        """
        self._engine = None
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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

    def _params(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
        return _one_each("sampling", SamplingParams, self.default_sampling if given is None else given, count)

    def _runs(self, index: int, prompt: Prompt, sampling: SamplingParams, cache_salt: str, priority: int) -> list[_Run]:
        """Check the arguments for one prompt, and return a run for each of its samples, not submitted yet.

        Args:
            index: number of the prompt, for errors.
        """
        self._open_engine()
        tokens = self._token_ids(prompt, index)
        try:
            if cache_salt != "":
                check_cache_salt(cache_salt)
            self.info.limits.check_priority(priority)
            room = self.info.limits.check_sampling(tokens, sampling)
        except LimitError as error:
            raise LimitError(f"prompt {index}: {error}", param=error.param, code=error.code) from error
        if sampling.stop and self._tokenizer is None:
            folder = self.info.tokenizer_folder
            raise ValueError(f"stop strings: {folder} has no tokenizer; use stop_token_ids")
        resolved = sampling.resolved(eos_ids=self._eos_ids, room=room, seed=self._new_seed())
        runs = []
        for sample in range(sampling.n):
            detokenizer = self._tokenizer.detokenizer(tokens) if self._tokenizer else Detokenizer(_NO_TEXT)
            text = TextStream(detokenizer, sampling.stop, sampling.min_tokens)
            submit = Submit(next(self._ids), tokens, resolved.of_sample(sample), sample, cache_salt, priority)
            runs.append(_Run(submit, text))
        return runs

    def _token_ids(self, prompt: Any, index: int) -> tuple[int, ...]:
        """Return the token ids of a prompt: of a text, or given ids of any integer type."""
        if isinstance(prompt, str):
            if self._tokenizer is None:
                folder = self.info.tokenizer_folder
                raise ValueError(f"prompt {index}: {folder} has no tokenizer; give token ids")
            if not prompt:
                raise LimitError(f"prompt {index}: the prompt is empty", param="prompt")
            return tuple(self._tokenizer.encode(prompt))
        try:
            if any(isinstance(token, bool) for token in prompt):
                raise TypeError
            return tuple(operator.index(token) for token in prompt)
        except TypeError:
            raise ValueError(f"prompt {index} must be a text or a list of token ids, got {prompt!r}") from None

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

    def _end(self, *runs: _Run) -> None:
        """Forget runs and abort those that are not done. If none is left, step until the engine is idle."""
        self._link.forget(*runs)
        link = self._link
        while self._engine is not None and not link.runs and not (self._engine.is_idle and link.inbox.empty()):
            self._step()


@dataclass(slots=True, eq=False)
class _Run:
    """A request and its outputs so far."""

    submit: Submit
    text: TextStream
    pieces: deque[Piece] = field(default_factory=deque)
    error: str | None = None

    @property
    def is_done(self) -> bool:
        return self.text.finish_reason is not None

    def add(self, output: Output) -> None:
        if self.is_done:
            return
        if output.finish_reason is not None and output.finish_reason.is_failure:
            self.error = output.error or "the request was aborted"
        self.pieces.extend(self.text.push(output))

    def raise_error(self) -> None:
        if self.error is not None:
            raise GenerationError(self.error)

    def sample(self) -> Sample:
        self.raise_error()
        assert self.text.finish_reason is not None, f"{self.submit.request_id} is not done"
        logprobs = tuple(piece.logprobs for piece in self.pieces if piece.logprobs is not None)
        return Sample(
            token_ids=tuple(piece.token_id for piece in self.pieces if piece.token_id is not None),
            text="".join(piece.text for piece in self.pieces),
            finish_reason=self.text.finish_reason.value,
            logprobs=None if self.submit.sampling.logprobs is None else logprobs,
        )


def _result(runs: Sequence[_Run]) -> Result:
    """Return the result of one prompt from the runs of its samples."""
    first, *_ = runs
    logprobs = None if first.submit.sampling.prompt_logprobs is None else tuple(first.text.prompt_logprobs)
    samples, (total, host, disk) = tuple(run.sample() for run in runs), first.text.cached
    return Result(first.submit.prompt, total, samples, logprobs, host, disk)


class _LocalLink:
    """The engine's link to runs in the same thread."""

    def __init__(self) -> None:
        self.runs: dict[int, _Run] = {}
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def submit(self, *runs: _Run) -> None:
        for run in runs:
            self.runs[run.submit.request_id] = run
            self.inbox.put(run.submit)

    def forget(self, *runs: _Run) -> None:
        for run in runs:
            if self.runs.pop(run.submit.request_id, None) is not None and not run.is_done:
                self.inbox.put(Abort(run.submit.request_id))

    def receive(self, *, block: bool, timeout: float | None = None) -> list[Message]:
        messages = []
        with suppress(queue.Empty):
            if block:  # for a copy with the disk
                messages.append(self.inbox.get(timeout=timeout))
            while True:
                messages.append(self.inbox.get_nowait())
        return messages

    def post(self, message: Message) -> None:
        self.inbox.put(message)

    def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            run = self.runs.get(output.request_id)
            if run is None:
                continue
            run.add(output)
            if run.is_done and output.finish_reason is None:
                self.inbox.put(Abort(output.request_id, FinishReason.STOP))  # it ended with a stop string

    def answer(self, stats: Stats) -> None:
        raise AssertionError(f"unexpected answer {stats}")


_NO_TEXT = Vocabulary(spelling_of(None), lambda token_id: None, frozenset())
"""The vocabulary of a checkpoint without a tokenizer: no token has text."""


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list, a single one as a list of one."""
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a text, a list of token ids or a list of either, got {prompts!r}")
    items: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    is_one = bool(items) and not any(isinstance(item, str | Iterable) for item in items)
    return [items] if is_one else items


def _one_each(name: str, kind: type[T], given: Any, count: int) -> Sequence[T]:
    """Return one value for each of `count` prompts; a single given value is repeated."""
    if isinstance(given, kind):
        return [given] * count
    if not isinstance(given, Sequence) or not all(isinstance(item, kind) for item in given):
        raise ValueError(f"{name} must be {kind.__name__} or a list of them, got {given!r}")
    if len(given) != count:
        raise ValueError(f"{name} must be one {kind.__name__}, or one for each of {count} prompts, got {len(given)}")
    return given
