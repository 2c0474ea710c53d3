"""The C library's heap keeps what a step frees for the next step.

Hidden states of a large chunk are blocks of many megabytes, which glibc gives back to the system at once and gets anew
for every layer: page by page, at a cost of a fifth of the step.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 28
"""Larger blocks (weights, the KV pool) still come from the system alone, and go back to it."""


def keep_freed_memory() -> bool:
    """Tell glibc, for the whole process; twice is once. Returns False where there is none to tell."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) and library.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES))
