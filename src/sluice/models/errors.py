"""The one error of this package."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be served: not found, broken, or asking for something that is not supported.

    The message is one line, names the file, field or tensor, and says what would be accepted.
    """
