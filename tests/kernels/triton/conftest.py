"""Skips all tests where Triton is not installed: it has builds for Linux only."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
