"""What goes wrong with a request, in OpenAI's error shape."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

RETRY_SECONDS = 5
"""When to try again with a server that has no engine at the moment."""


LONGEST_MESSAGE, LONGEST_PARAM = 2000, 200
"""Characters. A message names what it refuses, and that may be a field of megabytes."""


class ApiError(Exception):
    """An answer other than 2xx.

    `param` names the field at fault, as a path ("messages[0].role"); `code` is OpenAI's where one exists; `retry_after`
    is the seconds after which the same request may well succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _clipped(message, LONGEST_MESSAGE)
        self.param = None if param is None else _clipped(param, LONGEST_PARAM)
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = None if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 4 :]}"


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(reason: str) -> ApiError:
    """503: no engine to serve it, now or any more."""
    return ApiError(503, f"cannot serve requests: {reason}", code="service_unavailable", retry_after=RETRY_SECONDS)
