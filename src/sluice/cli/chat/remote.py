"""Answers of a server with OpenAI's API."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from sluice.cli.chat.answers import STOPPED, AnswerError, AnswerPart, AnswerUsage, Messages
from sluice.cli.chat.progress import Waiting
from sluice.cli.chat.stopping import Stopper
from sluice.config.server_url import ServerURL

CONNECT_SECONDS = 10
LIST_SECONDS = 30
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Address(ServerURL):
    """Where a server listens, and the key that it asks for."""

    api_key: str | None = None

    def connect(self) -> HTTPConnection:
        """Return a connection that is open.

        Raises:
            AnswerError: nothing answers there.
        """
        connection: HTTPConnection
        if self.is_tls:
            connection = HTTPSConnection(
                self.host, self.port, timeout=CONNECT_SECONDS, context=ssl.create_default_context()
            )
        else:
            connection = HTTPConnection(self.host, self.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            raise AnswerError(f"cannot reach {self.url}: {error.strerror or error}; is the server running?") from error
        return connection

    def headers(self) -> dict[str, str]:
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"Content-Type": "application/json", "User-Agent": "sluice-chat", **key}


class RemoteSource:
    """Answers over HTTP. Each answer has a connection of its own, whose end ends the answer on the server too.

    Args:
        model: its name on the server.
        asked: sampling parameters that the user set; the server decides on the others.
    """

    def __init__(self, address: Address, model: str, asked: Mapping[str, Any]) -> None:
        self._address = address
        self._model = model
        self._asked = asked

    @property
    def model(self) -> str:
        return self._model

    @property
    def where(self) -> str:
        return f"at {self._address.url}"

    def answer(self, messages: Messages, stopper: Stopper) -> Generator[AnswerPart, None, None]:
        body = {
            "model": self._model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._asked,
        }
        connection = self._address.connect()
        wire = connection.sock  # kept here, as the connection forgets it where the answer ends it
        assert wire is not None
        wire.settimeout(None)  # a long prompt may take minutes, and Ctrl-C ends the wait
        parts = _Parts()
        try:
            with stopper.waking(lambda: _hang_up(wire)), Waiting("waiting for the answer") as waiting:
                path = f"{self._address.path}/v1/chat/completions"
                connection.request("POST", path, json.dumps(body), self._address.headers())
                response = connection.getresponse()
                if response.status != 200:
                    raise AnswerError(error_of(response))
                for data in events(response):
                    part = parts.read(data)
                    waiting.close()
                    yield part
        except (OSError, HTTPException) as error:
            if not stopper.is_asked:
                raise AnswerError(f"the connection broke: {error}") from error
        finally:
            connection.close()
        if not parts.has_ended and not stopper.is_asked:
            raise AnswerError("the connection ended before the answer did")
        yield AnswerPart(usage=parts.usage, finish_reason=parts.finish_reason or STOPPED)

    def close(self) -> None:
        """Do nothing: no connection is open between answers."""


class _Parts:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: AnswerUsage | None = None
        self.has_ended = False

    def read(self, data: bytes) -> AnswerPart:
        """Return what an event adds to the answer.

        Raises:
            AnswerError: it is no event of a streamed chat, or tells of an error.
        """
        if data == DONE:
            self.has_ended = True
            return AnswerPart()
        try:
            event = json.loads(data)
            if error := event.get("error"):
                raise AnswerError(str(error.get("message", error) if isinstance(error, dict) else error))
            if found := event.get("usage"):
                details = found.get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens") or 0
                self.usage = AnswerUsage(found["prompt_tokens"], cached, found["completion_tokens"])
            if not event["choices"]:
                return AnswerPart()
            choice = event["choices"][0]
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.has_ended |= self.finish_reason is not None
            delta = choice.get("delta") or {}
            return AnswerPart(
                delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise AnswerError(f"the server sent what is no event of a streamed chat: {data[:200]!r}") from error


def _hang_up(wire: socket.socket) -> None:
    """End a connection from both sides, so that a read which waits comes back."""
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)


def events(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the data of server-sent events as they come."""
    lines: list[bytes] = []
    while line := response.readline():
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []


def error_of(response: HTTPResponse) -> str:
    """Return what a server says of a request that it refuses, in one line."""
    content = response.read(65536)
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        found = json.loads(content)
        found = found.get("error", found)
        message = found["message"] if isinstance(found, dict) else found
        return f"{message} (HTTP {response.status})"
    return f"HTTP {response.status}: {content[:200].decode(errors='replace').strip() or response.reason}"


def served_model(address: Address, wanted: str | None) -> str:
    """Return the name of the model to talk to.

    Args:
        wanted: the user's choice; None: the server's only one, beside its adapters.

    Raises:
        AnswerError: the server does not answer, or has not this model or several.
    """
    connection = address.connect()
    try:
        assert connection.sock is not None
        connection.sock.settimeout(LIST_SECONDS)
        connection.request("GET", f"{address.path}/v1/models", headers=address.headers())
        response = connection.getresponse()
        if response.status != 200:
            raise AnswerError(f"{address.url}/v1/models: {error_of(response)}")
        listed = json.loads(response.read())["data"]
        names = [str(item["id"]) for item in listed]
        models = [str(item["id"]) for item in listed if not item.get("parent")]
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AnswerError(f"{address.url} does not list its models as OpenAI's API does: {error}") from error
    finally:
        connection.close()
    if wanted is not None:
        if wanted not in names:
            raise AnswerError(f"{address.url} has no model {wanted!r}; it has {', '.join(map(repr, names)) or 'none'}")
        return wanted
    if len(models) != 1:
        shown = ", ".join(map(repr, names)) or "none"
        raise AnswerError(f"{address.url} has not one model but these: {shown}; name one: sluice chat NAME --url ...")
    return models[0]
