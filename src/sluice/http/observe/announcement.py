"""What a server prints when it can be used: the model, its URL, and commands that can be pasted as they are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from sluice.assembly.ranks import layout_of, shown_sizes
from sluice.models.catalog.estimate import gigabytes
from sluice.models.catalog.suggested import SUGGESTED, Suggested
from sluice.process.wire import Ready
from sluice.text.parsers.choosing import Chosen


def announcement(
    url: str, name: str, ready: Ready, replies: Chosen, *, chat: bool, command: str, page: bool = False
) -> str:
    """Return what a person who started the server needs to know: the model, its URL, and a command to try it.

    Args:
        url: by which this machine reaches the server.
        name: the served model's.
        replies: how it writes calls and reasoning.
        chat: the model has a chat template.
        command: `own_command`.
        page: there is one at `/`.
    """
    limits = ready.limits
    lines = [f"Sluice serves {name} at {url}/v1 (up to {limits.max_request_tokens} tokens a request)."]
    parallel = ready.config.parallel
    if (ranks := layout_of(parallel).size) > 1:
        lines.append(f"It is computed by {ranks} ranks ({shown_sizes(parallel)}).")
    if ready.is_default:
        lines.append(
            "No model was named: this is a small one to try the server with, which is often wrong."
            " Larger ones to begin with, and the memory of their weights:"
        )
        lines += [f"  {command} serve {each.id}    # {_needs(each)}" for each in SUGGESTED]
    lines += _settings(ready)
    if replies.tool_name is not None:
        lines.append(f"Calls of tools are read as {replies.tool_name} writes them{_reason(replies.tool_reason)}.")
    if replies.reasoning_name is not None:
        lines.append(f"Reasoning is read as {replies.reasoning_name} writes it{_reason(replies.reasoning_reason)}.")
    if not chat:
        lines.append("It has no chat template, so it continues texts (/v1/completions) and cannot chat.")
    if page:
        lines.append(f"Open {url}/ in a browser to {'chat with it' if chat else 'see its steps'}.")
    lines += ["Try it:", f"  {curl(url, name, chat=chat)}"]
    return "\n".join(lines)


def _needs(model: Suggested) -> str:
    plain, small = (gigabytes(model.estimate(each).weights_bytes) for each in ("none", "int8"))
    return f"{plain}, or {small} with --quantization int8"


def _settings(ready: Ready) -> list[str]:
    """Return what was chosen of what changes answers or their pace."""
    model, target = ready.config.model, ready.config.scheduler.itl_target
    weights = ready.reasons.get("quantization")  # of weights that the checkpoint has quantised
    chosen = [
        f"{what} {value}"
        for what, value, usual in (
            ("weights in", model.quantization if weights is None else None, "none"),
            ("KV in", model.kv_cache_dtype, "auto"),
            ("an ITL target of", target, "off"),
        )
        if value not in (None, usual)
    ]
    lines = [] if weights is None else [f"Its weights are {weights}."]
    return lines + ([f"It has {', '.join(chosen)}."] if chosen else [])


def _reason(reason: str) -> str:
    return f" ({reason})" if reason else ""


def curl(url: str, name: str, *, chat: bool) -> str:
    """Return a command that streams an answer, ready to paste."""
    question = "What is a sluice?"
    body: dict[str, object] = {"model": name}
    body |= {"messages": [{"role": "user", "content": question}]} if chat else {"prompt": question}
    body |= {"max_tokens": 64, "stream": True}
    path = "chat/completions" if chat else "completions"
    data = shlex.quote(json.dumps(body))
    return f"curl -N {url}/v1/{path} -H 'Content-Type: application/json' -d {data}"


def own_command(script: str, interpreter: str) -> str:
    """Return the command that runs this program again: `sluice` is on the path in an active environment only.

    Args:
        script: `sys.argv[0]`.
        interpreter: `sys.executable`.
    """
    if Path(script).name == "__main__.py":
        return f"{_shown(interpreter)} -m sluice"
    return _shown(script)


def _shown(file: str) -> str:
    """Return the path of a file for a shell, from the current folder where it is below that."""
    path, here = Path(file), Path.cwd()
    if path.is_relative_to(here):
        path = path.relative_to(here)
        return shlex.quote(str(path) if path.parent.name else f"./{path}")
    return shlex.quote(str(path))
