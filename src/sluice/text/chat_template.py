"""Renders chat messages to a prompt with the checkpoint's chat template, in a process that can be killed.

A template is a program that was downloaded: it may run forever, or make texts of any size. It is compiled and rendered
in a process of its own (`render_process`), which limits its processor time and memory. This module starts that process,
exchanges frames with it over a socket, and starts another one when it has ended.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from sluice.text.child_process import ChildProcess, end_of, was_killed
from sluice.text.special_text import Spellings
from sluice.types.framing import TooLong

SECONDS = 2.0
"""Processor time to compile the template, and of each rendering."""
MEMORY_MB = 1024
"""Memory of the process beyond what it has at its start, in MiB."""
FREE_BYTES = 1 << 24
BYTES_PER_BYTE = 16
"""A prompt may have `FREE_BYTES`, and so many for each byte of its messages."""
START_SECONDS = 30.0
"""Time of the process to start and to compile the template."""
TIMEOUT = 10.0
"""Seconds to wait for a rendering: more than its processor time, for which other processes compete."""
RENDERER = "sluice.text.render_process"
"""The module that the process runs."""
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names that special tokens with a role have in checkpoints and in templates."""
OWN_VARIABLES = (*NAMED_TOKENS, "raise_exception", "strftime_now", "range", "dict", "namespace", "cycler", "joiner")
"""Names in templates that a request may not give another meaning."""
Message = Mapping[str, Any]
"""Maps at least "role" and "content" to texts. Other values are JSON, as the "tool_calls" of an assistant's message."""


class ChatTemplateError(ValueError):
    """The template cannot be compiled, it refuses the messages, or it was stopped."""


class ChatTemplateRefusal(ChatTemplateError):
    """The template refuses the messages, with its own text."""


class ChatTemplateUnavailable(ChatTemplateError):
    """There is no process to render, for which neither the template nor the messages are at fault."""


class TemplateSetup(msgspec.Struct, array_like=True):
    """The first frame to the process: the template, and its limits as in `ChatTemplate`."""

    source: str
    special_tokens: dict[str, str]
    seconds: float
    memory_mb: int
    spellings: Spellings | None


class RenderOptions(msgspec.Struct, array_like=True, frozen=True):
    """How one conversation is rendered."""

    variables: dict[str, Any] = {}
    """What the template sees besides the messages: JSON by name, as `enable_thinking`."""
    add_generation_prompt: bool = True
    """The prompt ends with the beginning of the assistant's next message."""
    continue_final_message: bool = False
    """The prompt ends where the content of the last message does, so that the model continues it."""


class Render(msgspec.Struct, array_like=True):
    """Every frame to the process after the first one: a conversation."""

    messages: Sequence[dict[str, Any]]
    options: RenderOptions


DEFAULT = RenderOptions()


class Rendered(msgspec.Struct, tag=True):
    """The answer to a conversation: the prompt. To `TemplateSetup`: an empty text."""

    text: str


class TemplateRefused(msgspec.Struct, tag=True):
    """The template cannot be compiled, or it refuses the messages."""

    reason: str


class ChatTemplate:
    """A template and the special tokens it may use (`bos_token`, ...). It renders one conversation at a time.

    The process is started by `start`, or by the first rendering. It ends with `close`, with this object, or with this
    process, whichever is first.

    Args:
        spellings: of special tokens in a prompt whose messages may hold text that looks like them. None: such text is
            left as it is.
        seconds: limit of the processor time to compile the template, and of each rendering.
        memory_mb: limit of the memory that a rendering takes, in MiB.
        timeout: seconds to wait for a rendering.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        spellings: Spellings | None = None,
        seconds: float = SECONDS,
        memory_mb: int = MEMORY_MB,
        timeout: float = TIMEOUT,
    ) -> None:
        self.source = source
        self._load = TemplateSetup(source, dict(special_tokens), seconds, memory_mb, spellings)
        self._timeout = timeout
        self._worker = ThreadPoolExecutor(1, "chat-template")
        """It alone uses the process."""
        self._process: ChildProcess | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process, and compile the template.

        Raises:
            ChatTemplateError: the template cannot be compiled.
            ChatTemplateUnavailable: the process cannot be started.
        """
        self._worker.submit(self._started).result()

    def render(self, messages: Sequence[Message], options: RenderOptions = DEFAULT) -> str:
        """Return the prompt of a conversation; as `submit`, for a caller that may wait."""
        return self.submit(messages, options).result()

    def submit(self, messages: Sequence[Message], options: RenderOptions = DEFAULT) -> Future[str]:
        """Begin to render the prompt of a conversation, when those before it are rendered.

        Raises:
            ChatTemplateError: (the future) the template refuses these messages, with its own text, or was stopped.
            ChatTemplateUnavailable: (the future) the process cannot be started, was killed, or got no processor.
            UnicodeEncodeError: (the future) a text has an unpaired surrogate.
        """
        self._check_open()
        return self._worker.submit(self._render, messages, options)

    def close(self) -> None:
        """End the process, and fail the renderings that have not ended. Does not wait."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        self._worker.submit(self._end)
        self._worker.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ChatTemplateUnavailable("the chat template is closed")

    def _render(self, messages: Sequence[Message], options: RenderOptions) -> str:
        frame = msgspec.msgpack.encode([messages, options])
        process = self._started()
        longest = FREE_BYTES + BYTES_PER_BYTE * len(frame)
        match self._exchange(process, frame, self._timeout, longest):
            case Rendered(text):
                return text
            case TemplateRefused(reason):
                raise ChatTemplateRefusal(f"the chat template refuses the messages: {reason}")

    def _started(self) -> ChildProcess:
        """Return the process, a new one if there is none or it has ended."""
        self._check_open()
        if self._process is not None and self._process.is_running:
            return self._process
        self._end()
        try:
            self._process = ChildProcess(RENDERER)
        except OSError as error:
            message = f"the process that renders chat templates cannot be started: {error}"
            raise ChatTemplateUnavailable(message) from error
        self._finalizer = weakref.finalize(self, self._process.end)
        self._check_open()  # `close` kills a process that it finds; this one it may have missed
        answer = self._exchange(self._process, msgspec.msgpack.encode(self._load), START_SECONDS, FREE_BYTES)
        if isinstance(answer, TemplateRefused):
            self._end()
            raise ChatTemplateError(f"the chat template cannot be read: {answer.reason}")
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._finalizer()
            self._process = None

    def _exchange(
        self, process: ChildProcess, frame: bytes, seconds: float, longest: int
    ) -> Rendered | TemplateRefused:
        """Send a frame and return the answer; end the process if there is none."""
        try:
            answer = process.exchange(frame, time.monotonic() + seconds, longest)
            return msgspec.msgpack.decode(answer, type=Rendered | TemplateRefused)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            failure = self._failure(process, error)
            self._end()
            raise failure from error

    def _failure(self, process: ChildProcess, error: Exception) -> ChatTemplateError:
        """Return why there is no answer. A slow template is ended by its processor time, long before the timeout."""
        if isinstance(error, TimeoutError):
            return ChatTemplateUnavailable("the process that renders chat templates did not answer in time")
        if isinstance(error, TooLong):
            return ChatTemplateError("the chat template was stopped: it makes more text than a chat can need")
        status = process.status()
        if was_killed(status):
            what = f"sent no answer: {error}" if status is None else f"was killed: status {status}"
            return ChatTemplateUnavailable(f"the process that renders chat templates {what}")
        how = end_of(status, self._load.seconds, self._load.memory_mb)
        return ChatTemplateError(f"the chat template was stopped: it {how}")
