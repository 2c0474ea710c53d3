"""What can be wrong with a page file."""

from __future__ import annotations


class PageFileError(ValueError):
    """A path that cannot hold pages; the message is one line for the user."""


class PageFileInUse(PageFileError):
    """Another engine has it."""


class PageLost(Exception):
    """A stored page that cannot be had back: cut off, or not what was stored. Whoever needs it computes it again."""
