"""Makes and checks the grammars of shapes: the process that `ConstraintChecker` starts.

Each frame on its standard input is a shape, and is answered by one on its standard output. The kernel ends a process
that exceeds its time, and gives it no more than its memory.
"""

from __future__ import annotations

import msgspec

from sluice.text.child_side import begin_timing, frame, limit, pipes, run, send
from sluice.text.constraints.checker import MEMORY_MB, ShapeRefused
from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.grammars import LONGEST_REASON, Checked, checked_grammar, place_of
from sluice.text.constraints.shapes import Shape


def main() -> None:
    """Answer frames until the standard input ends. The first one is the limit of the processor time in seconds."""
    source, sink = pipes()
    decoder = msgspec.msgpack.Decoder(Shape)
    seconds = msgspec.msgpack.decode(frame(source), type=float)
    limit(MEMORY_MB)
    send(sink, b"")
    while True:
        question = frame(source)
        begin_timing(seconds)
        send(sink, msgspec.msgpack.encode(_answer(decoder, question)))


def _answer(decoder: msgspec.msgpack.Decoder[Shape], question: bytes) -> Checked | ShapeRefused:
    place = ""
    try:
        shape = decoder.decode(question)
        place = place_of(shape)
        return checked_grammar(shape)
    except ConstraintError as error:
        return ShapeRefused(error.place, error.reason)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        # An error of any kind is an answer: a process that ended would say nothing.
        return ShapeRefused(
            place, f"it cannot be made into a grammar: {type(error).__name__}: {error}"[:LONGEST_REASON]
        )


if __name__ == "__main__":
    run(main)
