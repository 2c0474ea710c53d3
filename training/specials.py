"""The tokens that mark turns, and the one for the end of a text, which no turn has."""

from __future__ import annotations

END, TURN_START, TURN_END = "<|end|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END, TURN_START, TURN_END)
