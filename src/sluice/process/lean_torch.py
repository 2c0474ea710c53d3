"""Imports torch without the kernels that it has in Python for tensors without data.

They serve its compiler, and take a quarter of the time of its import: half a second of an engine's start. Models are
built on the device "meta" with kernels in C++ alone.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

PYTHON_KERNELS = "torch._meta_registrations"


class _Placeholder(ModuleType):
    """Stands for the module while torch is imported, and imports it if something wants more of it than its name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(PYTHON_KERNELS), name)


@contextmanager
def without_python_kernels() -> Iterator[None]:
    """Leave these kernels out of an import of torch. Whatever imports them later gets them."""
    if "torch" in sys.modules:
        yield
        return
    placeholder = _Placeholder(PYTHON_KERNELS)
    sys.modules[PYTHON_KERNELS] = placeholder
    try:
        yield
    finally:
        _remove(placeholder)


def _remove(placeholder: ModuleType) -> None:
    if sys.modules.get(PYTHON_KERNELS) is placeholder:
        del sys.modules[PYTHON_KERNELS]
    torch = sys.modules.get("torch")
    if torch is not None and vars(torch).get("_meta_registrations") is placeholder:
        del torch.__dict__["_meta_registrations"]
