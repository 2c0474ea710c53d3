"""Where the thoughts of an answer end, for those that look at the answer alone: stop strings, and counts of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Thoughts:
    """Splits a text that arrives in pieces into thoughts and answer. The tags belong to the thoughts.

    Args:
        begin: what thoughts begin with.
        ends: what may end them.
        is_open: the text begins within thoughts; None: it may begin with the first tag.
        recur: thoughts may begin anywhere, and not only at the beginning.
    """

    def __init__(self, begin: str, ends: Sequence[str], is_open: bool | None, *, recur: bool = False) -> None:
        self._begin, self._ends, self._recur = begin, ends, recur
        self._may_begin = is_open is None or recur
        self.is_inside = bool(is_open)
        """The last text was a thought."""
        self.has_text = False
        """There was a thought that is not only space."""
        self._held = ""

    @property
    def may_come(self) -> bool:
        """There are thoughts now, or they may come."""
        return self.is_inside or self._may_begin

    @property
    def is_undecided(self) -> bool:
        """Some text was not returned yet: it may be the beginning of a tag."""
        return bool(self._held)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a text that are certain, each with whether it belongs to the answer."""
        text, self._held = self._held + text, ""
        while text:
            part, text = self._part(text)
            if part is None:
                self._held = text
                return
            yield part

    def flush(self) -> Iterator[tuple[str, bool]]:
        """Yield what is held, when the text has ended."""
        if self._held:
            yield self._held, not self.is_inside
        self._held = ""

    def _part(self, text: str) -> tuple[tuple[str, bool] | None, str]:
        """Return the first part of a text, None if more is needed to tell, and the rest."""
        if self.is_inside:
            return self._thought(text)
        if not self._may_begin:
            return (text, True), ""
        at = text.find(self._begin) if self._recur else len(text) - len(text.lstrip())
        if text.startswith(self._begin, max(at, 0)):
            self.is_inside, self._may_begin = not at or not self._recur, self._recur
            begin = at + len(self._begin) if self.is_inside else at
            return (text[:begin], not self.is_inside), text[begin:]
        if self._recur:
            at = len(text) - _beginning(text, (self._begin,))
            return ((text[:at], True), text[at:]) if at else (None, text)
        if self._begin.startswith(text[at:]):
            return None, text
        self._may_begin = False
        return (text, True), ""

    def _thought(self, text: str) -> tuple[tuple[str, bool] | None, str]:
        found = [(at, end) for end in self._ends if (at := text.find(end)) >= 0]
        if found:
            at, end = min(found)
            self.is_inside = False
            self.has_text = self.has_text or bool(text[:at].strip())
            return (text[: at + len(end)], False), text[at + len(end) :]
        at = len(text) - _beginning(text, self._ends)
        self.has_text = self.has_text or bool(text[:at].strip())
        return ((text[:at], False), text[at:]) if at else (None, text)


def _beginning(text: str, markers: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a marker."""
    longest = min(max(map(len, markers)) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in markers)), 0)
