"""Reading one JSON object field by field, with its type checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.models.errors import CheckpointError


class Fields:
    """A JSON object whose fields are asked for by name and type. `null` counts as not given.

    Every reader raises `CheckpointError` naming the field, its value and what would be accepted.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self.source = source

    @classmethod
    def read(cls, path: Path) -> Fields:
        """The object in a file.

        Raises:
            CheckpointError: the file is missing, unreadable, no JSON, or no JSON object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path.parent} holds no {path.name}: not a Hugging Face checkpoint") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise CheckpointError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold a JSON object, got {type(values).__name__}")
        return cls(values, path.name)

    def __iter__(self) -> Iterator[str]:
        """Names of the fields that are given."""
        return (name for name, value in self._values.items() if value is not None)

    def __contains__(self, name: str) -> bool:
        """Whether the field is there at all, be it `null`."""
        return name in self._values

    def get(self, name: str) -> object:
        """The value as it stands, None if not given."""
        return self._values.get(name)

    def error(self, name: str, accepted: str) -> CheckpointError:
        """The error that says that a field's value is not accepted."""
        return CheckpointError(f"{self.source}: {name} must be {accepted}, got {self._values.get(name)!r}")

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._given(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(name, f"an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._given(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, "a number above 0")
        if not (value > 0 and math.isfinite(value)):
            raise self.error(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def section(self, name: str) -> Fields | None:
        """A nested object, None if not given or empty."""
        value = self._values.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.source}: {name}")

    def _given(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.source}: {name} is missing")
        return default
