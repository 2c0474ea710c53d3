"""Stop strings and the end of a text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sluice.text.text_stream import Piece, StopFinder, TextStream
from sluice.text.tokenizer import Tokenizer
from sluice.types import FinishReason, Output
from tokenizer_makers import byte_tokenizer

TOKENIZER = Tokenizer(byte_tokenizer())
LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_stop(text: str, stops: Sequence[str]) -> str | None:
    """Return the text before the first stop string, found by trying every end in turn."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return None


def stream(*stops: str) -> TextStream:
    return TextStream(TOKENIZER.detokenizer(), stops)


def feed(text: TextStream, data: bytes, reason: FinishReason | None = None) -> list[Piece]:
    """Push one output per byte, the last with a finish reason."""
    pieces: list[Piece] = []
    for index, token in enumerate(data):
        pieces += text.push(Output(1, index, (token,), 0, reason if index == len(data) - 1 else None))
    return pieces


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_stops_do_not_depend_on_how_the_text_was_cut(pieces: list[str], stops: list[str]) -> None:
    """A stop string across several tokens must be found, and no part of it shown."""
    finder = StopFinder(stops)
    shown = ""
    for piece in pieces:
        shown += finder.push(piece)
        if finder.found:
            break
    expected = first_stop("".join(pieces), stops)
    assert (finder.found is not None) == (expected is not None)
    assert shown + finder.flush() == ("".join(pieces) if expected is None else expected)


@given(LETTERS, STOPS)
def test_no_more_than_needed_is_held_back(text: str, stops: list[str]) -> None:
    """Text that cannot become a stop string must not wait for the end of the stream."""
    finder = StopFinder(stops)
    shown = finder.push(text)
    if not finder.found:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_each_token_is_a_piece() -> None:
    pieces = feed(stream("stop"), "as🙂".encode(), FinishReason.LENGTH)
    assert [piece.text for piece in pieces] == ["a", "", "", "", "", "s🙂"]
    assert [piece.finish_reason for piece in pieces] == [None] * 5 + [FinishReason.LENGTH]


def test_a_stop_string_ends_the_text_and_counts_its_tokens() -> None:
    text = stream("STOP")
    pieces = feed(text, b"ok STOP and on")
    assert "".join(piece.text for piece in pieces) == "ok "
    assert pieces[-1].finish_reason == text.finish_reason == FinishReason.STOP
    assert text.num_tokens == len(pieces) == len("ok STOP")


def test_tokens_after_a_stop_string_in_one_output_do_not_count() -> None:
    """With several tokens a step, usage must not include discarded tokens."""
    text = stream("b")
    pieces = list(text.push(Output(1, 0, tuple(b"abc"), 0, FinishReason.LENGTH)))
    assert [piece.token_id for piece in pieces] == list(b"ab")
    assert text.num_tokens == 2
    assert text.finish_reason == FinishReason.STOP


def test_a_stop_token_is_counted_and_not_shown() -> None:
    text = stream()
    pieces = feed(text, b"abX", FinishReason.STOP)
    assert "".join(piece.text for piece in pieces) == "ab"
    assert text.num_tokens == 3


def test_the_beginning_of_a_stop_string_is_shown_at_the_end() -> None:
    assert feed(stream("stop"), b"sto", FinishReason.LENGTH)[-1].text == "sto"
    assert feed(stream("stop"), b"stoX", FinishReason.STOP)[-1].text == "sto"


def test_an_end_without_a_token_releases_the_held_text() -> None:
    text = stream("stop")
    feed(text, b"st")
    assert list(text.push(Output(1, 2, (), 0, FinishReason.STOP))) == [Piece(None, "st", FinishReason.STOP)]


def test_offsets_count_text_that_is_held_back() -> None:
    """A token's offset is known when it arrives, even if its text may be part of a stop string."""
    text = stream("bcX")
    pieces = [piece for index, token in enumerate(b"abcd") for piece in text.push(Output(1, index, (token,), 0))]
    assert [piece.text for piece in pieces] == ["a", "", "", "bcd"]
    assert [piece.offset for piece in pieces] == [0, 1, 2, 3]


def test_stop_strings_count_only_after_min_tokens() -> None:
    """`min_tokens` must apply to stop strings as it does to stop tokens."""
    text = TextStream(TOKENIZER.detokenizer(), ["b"], min_tokens=3)
    pieces = feed(text, b"abxabx")
    assert "".join(piece.text for piece in pieces) == "abxa"
    assert (text.num_tokens, text.finish_reason) == (5, FinishReason.STOP)
