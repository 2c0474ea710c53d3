"""Several chat templates of one checkpoint, such as one for conversations with tools, in one source."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates that checkpoints have. Others, such as "rag", are for programs that ask for them."""


def combined(named: Mapping[str, str]) -> str | None:
    """Return the source of a template that renders as the one for the conversation does; None if there is none.

    The signs in the tags keep the line breaks and the spaces beside them, which the renderer would remove.
    """
    default, with_tools = named.get(DEFAULT), named.get(WITH_TOOLS)
    if default is None or with_tools is None:
        return with_tools if default is None else default
    first, second = (source.removesuffix("\n") for source in (with_tools, default))
    return "".join(("{% if tools +%}", first, "{%+ else +%}", second, "{%+ endif %}"))
