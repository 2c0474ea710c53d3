"""Messages in the form that a chat template takes: what it refuses is tried again, changed as little as may be.

Templates of some models want users and assistants in turn, no system message, or ids of calls in a form of their own.
Clients know none of this.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from sluice.text.chat_template import RenderOptions
from sluice.text.tokenizer import TemplateRefusal

Message = dict[str, Any]
Render = Callable[[Sequence[Message], RenderOptions], Awaitable[str]]
ID_CHARACTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
"""What every template takes for the id of a call: Mistral's take nothing else."""


async def rendered(render: Render, messages: Sequence[Message], options: RenderOptions) -> str:
    """Return the prompt of messages.

    Raises:
        TemplateRefusal: the template refuses the messages in every form. It names the first that it does not take.
    """
    try:
        return await render(messages, options)
    except TemplateRefusal as error:
        refusal = error
    fitted: Sequence[Message] = messages
    for change in (with_plain_ids, in_turn, system_first, in_turn, without_system, user_first, in_results):
        changed = change(fitted)
        if changed != fitted:
            fitted = changed
            try:
                return await render(fitted, options)
            except TemplateRefusal:
                continue
    at = await _first_refused(render, messages, options)
    role = messages[at]["role"]
    raise TemplateRefusal(f"{refusal}; it takes the messages before number {at + 1} of {len(messages)}, of role {role}")


async def _first_refused(render: Render, messages: Sequence[Message], options: RenderOptions) -> int:
    """Return the index of the first message with which the template refuses a conversation."""
    variables = RenderOptions(options.variables)
    taken, refused = 0, len(messages)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        try:
            await render(messages[:middle], variables)
            taken = middle
        except TemplateRefusal:
            refused = middle
    return refused - 1


def leading_joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return messages whose system messages at the beginning are one: templates show one, and some lose the others."""
    found: list[Message] = []
    is_leading = True
    for message in messages:
        is_leading = is_leading and message["role"] == "system"
        if is_leading and found:
            texts = [each for each in (found[0]["content"], message["content"]) if each]
            found[0] = found[0] | {"content": "\n".join(texts)}
        else:
            found.append(message)
    return tuple(found)


def in_turn(messages: Sequence[Message]) -> list[Message]:
    """Return messages of which none has the role of the one before it, but for results of tools."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else {}
        if message["role"] == "system" and not message["content"]:
            continue
        if message["role"] == last.get("role") and message["role"] != "tool" and not last.get("tool_calls"):
            text = "\n".join(each for each in (last["content"], message["content"]) if each)
            found[-1] = last | message | {"content": text}
        else:
            found.append(message)
    return found


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose system message stands at the beginning of what the user says first."""
    first, *rest = messages
    if first["role"] != "system":
        return list(messages)
    if rest and rest[0]["role"] == "user":
        return [rest[0] | {"content": f"{first['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [first | {"role": "user"}, *rest]


def system_first(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose later system messages are said by the user: front ends put some at the end."""
    first, *rest = messages
    return [first, *(each | {"role": "user"} if each["role"] == "system" else each for each in rest)]


def user_first(messages: Sequence[Message]) -> list[Message]:
    """Return messages with an empty one of the user before an assistant who speaks first, as it does in role plays."""
    at = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if at == len(messages) or messages[at]["role"] != "assistant":
        return list(messages)
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]


def in_results(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which what a user says behind results of tools stands in the last one of these.

    Claude Code says something beside its results. Mistral's templates want the assistant to speak next.
    """
    found: list[Message] = []
    for message in messages:
        if found and message["role"] == "user" and found[-1]["role"] == "tool":
            found[-1] = found[-1] | {"content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found


def with_plain_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls have ids of nine letters and digits, the same for the same id.

    Calls without an id are numbered, and results without one answer the calls before them in their order.
    """
    found: list[Message] = []
    waiting: list[str] = []
    count = 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            count += 1
            calls.append(call | {"id": plain_id(call.get("id") or f"call {count}")})
        if calls:
            waiting = [call["id"] for call in calls]
            message = message | {"tool_calls": calls}
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            id = plain_id(given) if given else waiting[0] if waiting else plain_id("")
            waiting = [each for each in waiting if each != id]
            message = message | {"tool_call_id": id}
        found.append(message)
    return found


def plain_id(id: str) -> str:
    """Return an id in the form that every template takes: the same one, if it has that form."""
    if len(id) == ID_LENGTH and id.isascii() and id.isalnum():
        return id
    number = int.from_bytes(hashlib.sha256(id.encode(errors="surrogatepass")).digest()[:8], "big")
    return "".join(ID_CHARACTERS[number // len(ID_CHARACTERS) ** at % len(ID_CHARACTERS)] for at in range(ID_LENGTH))
