"""Turns torch's errors for lack of memory into `MemoryShortage`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sluice.config import MemoryShortage

MESSAGES = ("can't allocate memory", "cannot allocate memory", "out of memory")
"""In plain RuntimeErrors: of torch's allocator on CPU, of a mapped file, and of CUDA outside torch's allocator."""


@contextmanager
def memory_shortage() -> Iterator[None]:
    """Raise MemoryShortage in place of an error of torch that says that memory is lacking."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise MemoryShortage(f"not enough free memory to build the engine: {str(error).strip()}") from error


def lacks_memory(error: RuntimeError) -> bool:
    """Return whether an error of torch says that memory is lacking, on the device or the host."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(message in text for message in MESSAGES)
