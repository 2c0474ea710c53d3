"""Which tokens of an answer a text consists of, although its parser holds some back and drops markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.http.call.blocks import Change, Kind, Step
from sluice.text.text_stream import Piece


class TextTokens:
    """Finds the pieces that texts grow by.

    A parser returns text later than it came, if it might have been the beginning of a marker. Spaces next to markers,
    and the markers, are no part of any text.
    """

    def __init__(self) -> None:
        self._held: list[tuple[str, Piece | None]] = []
        """What has come and belongs to nothing yet. Without a piece: the rest of one that was returned."""
        self._has_grown = False
        """The last change was the growth of a text: what has come since then follows it at once."""

    def match(self, piece: Piece, changes: Iterable[Change]) -> Iterator[tuple[Change, list[Piece]]]:
        """Yield the changes that a piece brings, each with the pieces of the text that grew by it."""
        self._held.append((piece.text, piece))
        has_changed = False
        for change in changes:
            is_text = change.block.kind is Kind.TEXT
            has_changed = True
            if is_text and change.step is Step.GREW:
                yield change, self._taken(change.text)
                self._has_grown = True
            else:
                self._has_grown = False
                yield change, []
        if has_changed and not self._has_grown:
            del self._held[:-1]

    def _taken(self, text: str) -> list[Piece]:
        """Take the pieces of a text out of those that are held. Those before it belong to no text."""
        if len(self._held) == 1 and self._held[0][0] == text:  # of most tokens, nothing is held back
            ((_, whole),) = self._held
            self._held = []
            return [] if whole is None else [whole]
        held = "".join(part for part, _ in self._held)
        # Before a text's first characters there may be markers, and behind its last ones only what is held.
        start = max(0, held.find(text) if self._has_grown else held.rfind(text))
        end = start + len(text)
        at, taken, rest = 0, [], list[tuple[str, Piece | None]]()
        for part, piece in self._held:
            begin, at = at, at + len(part)
            is_taken = begin < end and (at > start or (not part and begin == start))
            if is_taken and piece is not None:
                taken.append(piece)
            if at > end:
                rest.append((part[max(0, end - begin) :], None if is_taken else piece))
            elif begin >= end:
                rest.append((part, piece))
        self._held = rest
        return taken
