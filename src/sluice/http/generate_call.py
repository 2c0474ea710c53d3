"""What a client asks for, checked and typed, whichever API it came by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from sluice.http.errors import bad_request
from sluice.limits import LimitError, check_cache_salt
from sluice.types import SamplingParams

MAX_CHOICES = 4096
"""Most requests that one call may become: prompts times samples."""
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
"""Characters. Stop strings cost time for every token of every stream."""
LONGEST_SECONDS = 1e7


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """What all calls that generate have in common."""

    names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What is called otherwise in this API than in `limits` and `SamplingParams`."""

    model: str | None = None
    sampling: SamplingParams
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    """Every event of a stream tells the usage so far."""
    priority: int = 0
    extra_key: str = ""
    """Namespace of the prefix cache: the salt, or the one of all who send none."""
    max_queue_time: float | None = None
    """Seconds after which a request that has not begun is dropped."""
    timeout: float | None = None
    """Seconds after which it is ended, wherever it is."""
    tells_prompt_logprobs: bool = False
    """The answer has a field for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall(GenerateCall):
    """`POST /v1/completions`: each prompt is a text or token ids, and becomes `sampling.n` choices."""

    prompts: tuple[str | list[int], ...]
    echo: bool = False
    """The prompt comes before the completion."""
    is_empty: bool = False
    """Nothing is to be generated: what `sampling` asks for, a token, is not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall(GenerateCall):
    """`POST /v1/chat/completions`: messages as chat templates take them."""

    names: ClassVar[Mapping[str, str]] = MappingProxyType({"prompt": "messages"})
    messages: tuple[dict[str, str], ...]


def checked_stops(stop: str | list[str]) -> tuple[str, ...]:
    """
    Raises:
        ApiError: 400, too many or too long.
    """
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOPS or any(len(each) > MAX_STOP_LENGTH for each in stops):
        raise bad_request(
            f"stop may hold at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH} characters, got {len(stops)}"
            f" of at most {max(map(len, stops))}",
            param="stop",
        )
    return tuple(stops)


def checked_choices(prompts: int, samples: int) -> None:
    """
    Raises:
        ApiError: 400, one call would become too many requests.
    """
    if prompts * samples > MAX_CHOICES:
        raise bad_request(
            f"{prompts} prompts with {samples} samples each are {prompts * samples} choices; at most {MAX_CHOICES} are"
            " accepted in one call",
            param="prompt" if prompts > 1 else "n",
        )


def checked_salt(name: str, salt: str | None) -> str:
    """
    Args:
        name: of the field.

    Raises:
        ApiError: 400, a text that is no salt.
    """
    if salt is None:
        return ""
    try:
        check_cache_salt(salt)
    except LimitError as error:
        raise bad_request(str(error).replace(error.param, name, 1), param=name) from error
    return salt


def checked_seconds(name: str, seconds: float | None) -> float | None:
    """
    Raises:
        ApiError: 400, no time to wait.
    """
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= LONGEST_SECONDS):
        raise bad_request(
            f"{name} must be a number of seconds above 0 and at most {LONGEST_SECONDS:g}, got {seconds}", param=name
        )
    return seconds
