"""Requests of `LLM` and `AsyncLLM`: prompts, conversations and their parameters, checked before any is started."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from sluice.config import EngineConfig
from sluice.engine.clock import WallClock, micros_at
from sluice.text.chat_template import RenderOptions
from sluice.text.constraints.grammars import grammar_of
from sluice.text.constraints.shapes import Choice, Grammar, JsonSchema, Regex, Shape
from sluice.text.detokenizer import Detokenizer, Vocabulary, spelling_of
from sluice.text.text_stream import TextStream
from sluice.text.tokenizer import Tokenizer
from sluice.text.tokenizer_files import TokenizerFiles, has_tokenizer, load_tokenizer
from sluice.types import NO_SAMPLING, AdapterInfo, Priority, SamplingDefaults, SamplingParams, Submit, seed_source
from sluice.types.request_limits import LimitError, Limits, check_cache_salt, split_priority

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
PRIORITIES: tuple[type[Priority], ...] = (int, str)
T = TypeVar("T")
NO_TEXT = Vocabulary(spelling_of(None), lambda token_id: None, frozenset())
"""The vocabulary of a checkpoint without a tokenizer: no token has text."""

MAX_REMEMBERED = 256


def engine_config(
    model: str | PathLike[str] | None,
    options: Mapping[str, Any],
    lora: Mapping[str, str | PathLike[str]] | None = None,
) -> EngineConfig:
    """Return the options of an engine.

    Args:
        model: folder or hub id; None is the default model.
        options: by their flags' names, with underscores.
        lora: paths of adapters by name.

    Raises:
        ConfigError: an option is unknown.
    """
    given = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in options.items()}
    if lora:
        given["lora_modules"] = {name: fspath(path) for name, path in lora.items()}
    return EngineConfig.from_options(given if model is None else {"model": fspath(model), **given})


class Requests:
    """Makes requests for one model.

    Args:
        limits: of the loaded model.
        folder: of the tokenizer; without a tokenizer, prompts are token ids.
        eos_token_ids: of the model, beside those of the tokenizer.
        defaults: what is used for parameters that are left open altogether.
        seed: of the seeds of requests without one.
        next_id: returns the id of a new request.

    Raises:
        TokenizerError: the tokenizer cannot be used.
    """

    def __init__(
        self,
        limits: Limits,
        folder: Path,
        eos_token_ids: Collection[int],
        defaults: SamplingDefaults,
        seed: int | None,
        next_id: Callable[[], int],
    ) -> None:
        self.limits = limits
        self.default_sampling = defaults.fill(SamplingParams(), ())
        self._folder = folder
        self._files = TokenizerFiles.read(folder) if has_tokenizer(folder) else None
        self._tokenizer = None if self._files is None else self._files.tokenizer(chat=False)
        self._chat: Tokenizer | None = None
        """The tokenizer with the chat template, whose process the first conversation starts."""
        self._eos_ids = {*eos_token_ids, *(self._tokenizer.eos_token_ids if self._tokenizer else ())}
        self._new_seed = seed_source(seed)
        self._next_id = next_id
        self._grammars = GrammarMemo()
        self._clock = WallClock()

    def close(self) -> None:
        """End the process of the chat template, if there is one."""
        if self._chat is not None:
            self._chat.close()

    def params(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
        """Return the parameters of each of some prompts."""
        return one_each("sampling", SamplingParams, self.default_sampling if given is None else given, count)

    def check_stream(self, params: SamplingParams) -> None:
        """Refuse what a stream of one sample cannot give."""
        if params.n != 1:
            raise ValueError(f"a stream gives one sample: n must be 1, got {params.n}; use LLM.generate")
        if params.prompt_logprobs is not None:
            got = params.prompt_logprobs
            raise ValueError(f"in a stream, prompt_logprobs must be None, got {got}; use LLM.generate")

    def generated(
        self,
        index: int,
        prompt: Prompt,
        sampling: SamplingParams,
        cache_salt: str,
        priority: Priority,
        adapter: str = "",
    ) -> list[Submit]:
        """Return a request for each sample of a prompt.

        Args:
            index: number of the prompt, for errors.
            adapter: digest of the adapter that it is computed with; empty: none.

        Raises:
            LimitError, ValueError: as `LLM.generate`.
        """
        tokens = self._token_ids(prompt, index)
        with _of_prompt(index):
            self._check(cache_salt, priority)
            room = self.limits.check_sampling(tokens, sampling)
        if sampling.stop and self._tokenizer is None:
            raise ValueError(f"stop strings: {self._folder} has no tokenizer; use stop_token_ids")
        grammar = self._grammars.of(sampling)
        resolved = sampling.resolved(eos_ids=self._eos_ids, room=room, seed=self._new_seed())
        arrived, (number, name) = micros_at(self._clock.now()), split_priority(priority)
        return [
            Submit(
                self._next_id(),
                tokens,
                resolved.of_sample(sample),
                sample,
                extra_key=cache_salt,
                priority=number,
                priority_class=self.limits.class_of(name),
                arrived=arrived,
                grammar=grammar,
                adapter=adapter,
            )
            for sample in range(sampling.n)
        ]

    def embedded(self, index: int, prompt: Prompt, cache_salt: str, priority: Priority, adapter: str = "") -> Submit:
        """Return the request for the embedding of a prompt. The arguments are those of `generated`.

        Raises:
            LimitError, ValueError: as `LLM.embed`.
        """
        tokens = self._token_ids(prompt, index)
        with _of_prompt(index):
            self._check(cache_salt, priority)
            self.limits.check_embedded(tokens)
        number, name = split_priority(priority)
        return Submit(
            self._next_id(),
            tokens,
            NO_SAMPLING,
            extra_key=cache_salt,
            priority=number,
            priority_class=self.limits.class_of(name),
            arrived=micros_at(self._clock.now()),
            embeds=True,
            adapter=adapter,
        )

    def text(self, submit: Submit, sampling: SamplingParams) -> TextStream:
        """Return what makes text of the outputs of a request.

        Args:
            sampling: as the user gave it, with stop strings.
        """
        detokenizer = self._tokenizer.detokenizer(submit.prompt) if self._tokenizer else Detokenizer(NO_TEXT)
        return TextStream(detokenizer, sampling.stop, sampling.min_tokens)

    def chat_prompt(
        self, messages: Sequence[Message], *, variables: Mapping[str, Any] | None = None, continues: bool = False
    ) -> list[int]:
        """Return the prompt that the model's chat template makes of a conversation. Blocks until it is rendered.

        Args:
            variables: of the template.
            continues: the answer continues the last message.

        Raises:
            ValueError: messages that are none.
            TokenizerError: there is no chat template, or it refuses the messages.
        """
        checked = [_message(index, message) for index, message in enumerate(_conversation(messages))]
        if self._chat is None:
            self._chat = load_tokenizer(self._folder) if self._files is None else self._files.tokenizer()
        text = self._chat.rendered_chat(checked, RenderOptions(dict(variables or {}), not continues, continues))
        return self._chat.encode(text, add_special_tokens=False)

    def _check(self, cache_salt: str, priority: Priority) -> None:
        if cache_salt != "":
            check_cache_salt(cache_salt)
        self.limits.check_priority(*split_priority(priority))

    def _token_ids(self, prompt: Any, index: int) -> tuple[int, ...]:
        """Return the token ids of a prompt: of a text, or given ids of any integer type."""
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError(f"prompt {index}: {self._folder} has no tokenizer; give token ids")
            if not prompt:
                raise LimitError(f"prompt {index}: the prompt is empty", param="prompt")
            return tuple(self._tokenizer.encode(prompt))
        try:
            if any(isinstance(token, bool) for token in prompt):
                raise TypeError
            return tuple(operator.index(token) for token in prompt)
        except TypeError:
            raise ValueError(f"prompt {index} must be a text or a list of token ids, got {prompt!r}") from None


def digests_of(names: Sequence[str], adapters: Mapping[str, AdapterInfo]) -> list[str]:
    """Return the digest of each adapter that is named; empty for an empty name.

    Raises:
        ValueError: none has the name.
    """
    for name in names:
        if name and name not in adapters:
            known = f"; loaded: {', '.join(adapters)}" if adapters else "; none is (LLM(lora={NAME: PATH}))"
            raise ValueError(f"no adapter {name!r} is loaded{known}")
    return [adapters[name].digest if name else "" for name in names]


@contextmanager
def _of_prompt(index: int) -> Iterator[None]:
    """Let the error of a limit name the prompt."""
    try:
        yield
    except LimitError as error:
        raise LimitError(f"prompt {index}: {error}", param=error.param, code=error.code) from error


def _conversation(messages: Any) -> Sequence[Any]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r}")
    return messages


def _message(index: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
        raise ValueError(f"message {index} must have a role and content, got {message!r}")
    if not isinstance(message["content"], str):
        raise ValueError(f"the content of message {index} must be a text, got {message['content']!r}")
    return dict(message)


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list, a single one as a list of one."""
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a text, a list of token ids or a list of either, got {prompts!r}")
    items: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    is_one = bool(items) and not any(isinstance(item, str | Iterable) for item in items)
    return [items] if is_one else items


def talks_of(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Any]:
    """Return the conversations as a list, a single one as a list of one."""
    is_one = not isinstance(messages, Sequence) or not messages or isinstance(messages[0], str | Mapping)
    return [messages] if is_one else [*messages]


def one_each(name: str, kind: type[T] | tuple[type[T], ...], given: Any, count: int) -> Sequence[T]:
    """Return one value for each of `count` prompts; a single given value is repeated."""
    if isinstance(given, kind):
        return [given] * count
    kinds = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    if not isinstance(given, Sequence) or not all(isinstance(item, kind) for item in given):
        raise ValueError(f"{name} must be {kinds} or a list of them, got {given!r}")
    if len(given) != count:
        raise ValueError(f"{name} must be one {kinds}, or one for each of {count} prompts, got {len(given)}")
    return given


class GrammarMemo:
    """Makes grammars. Those of the last constraints are remembered: many prompts are sent with the same one."""

    def __init__(self) -> None:
        self._remembered: dict[Shape, str] = {}

    def of(self, params: SamplingParams) -> str:
        """Return the grammar of the outputs that parameters ask for; empty if they may be anything.

        Raises:
            ConstraintError: (a ValueError) it cannot be used; the message names the parameter.
        """
        shape = shape_of(params)
        if shape is None:
            return ""
        grammar = self._remembered.get(shape)
        if grammar is None:
            grammar = grammar_of(shape)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[shape] = grammar
        return grammar


def shape_of(params: SamplingParams) -> Shape | None:
    """Return the shape that parameters ask for; None if they ask for none."""
    if params.schema is not None:
        return JsonSchema(params.schema, "schema", params.whitespace_pattern)
    if params.regex is not None:
        return Regex(params.regex, "regex")
    if params.choice is not None:
        return Choice(params.choice, "choice")
    if params.grammar is not None:
        return Grammar(params.grammar, "grammar")
    return None
