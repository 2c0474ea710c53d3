"""What a process has made before it serves stays for good: the garbage collector need not look at it again."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """Call it once everything is loaded, in a process of our own.

    A full collection walks over every object there is, torch's modules among them: hundreds of milliseconds without a
    token.
    """
    gc.collect()
    gc.freeze()
