"""Codewords of the extended binary Golay code [24, 12, 8] (Golay, 1949), as vectors that hardly correlate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CODE_LENGTH = 24
MAX_CODES = 1 << 12
GENERATOR = 0b110001110101
"""x^11 + x^10 + x^6 + x^5 + x^4 + x^2 + 1, the generator of the perfect code of 23 bits. A parity bit makes it 24."""


def golay_codes(count: int) -> npt.NDArray[np.float64]:
    """Return the first codewords, [count, 24], of +1 and -1.

    Any two differ in at least 8 places, so their product is at most 8.

    Raises:
        ValueError: `count` is not from 1 to 4,096.
    """
    if not 1 <= count <= MAX_CODES:
        raise ValueError(f"count must be from 1 to {MAX_CODES}, got {count}")
    messages = np.arange(count)
    words = np.zeros(count, dtype=np.int64)
    for bit in range(12):
        words ^= np.where(messages >> bit & 1, GENERATOR << bit, 0)
    bits = words[:, None] >> np.arange(CODE_LENGTH - 1) & 1
    parity = bits.sum(axis=1, keepdims=True) & 1
    return 1.0 - 2.0 * np.concatenate((bits, parity), axis=1)
