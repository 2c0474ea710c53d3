"""What stops a measurement."""

from __future__ import annotations


class BenchError(RuntimeError):
    """A measurement that cannot be made, or a file that holds none; the message is for the user."""
