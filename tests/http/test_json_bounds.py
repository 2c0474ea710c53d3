"""Bodies that would take seconds to parse are refused before; what their strings hold does not count."""

from __future__ import annotations

import json

import pytest

from serving import run, serving
from sluice.http.base.errors import ApiError
from sluice.http.base.json_bounds import MAX_LISTS, MAX_NAMES, MAX_VALUES, PIECE, check_contents

STRUCTURE = '[{",: \\" \\\\ \\n'
"""What would be counted outside of strings."""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" + b"1," * (1 << 23) + b"1]", f"more than {MAX_VALUES} values"),
        (b"[" + b"[1]," * MAX_LISTS + b"[1]]", f"more than {MAX_LISTS} lists and objects"),
        (b"[" + b"{}," * MAX_LISTS + b"{}]", f"more than {MAX_LISTS} lists and objects"),
        (b"[" + b'"a",' * MAX_VALUES + b'"a"]', f"more than {MAX_VALUES} values"),
        (b"{" + b'"a":1,' * MAX_NAMES + b'"a":1}', f"more than {MAX_NAMES} names in objects"),
        (b"[" * (1 << 22), f"more than {MAX_LISTS} lists and objects"),
    ],
)
def test_too_many_values(body: bytes, message: str) -> None:
    """8 million lists in 32 MB stopped every stream for 8 s, in whichever thread they were parsed."""
    with pytest.raises(ApiError, match=message) as error:
        check_contents(body)
    assert error.value.status == 413


@pytest.mark.parametrize("shift", range(8))
def test_strings_hold_what_they_like(shift: int) -> None:
    """A long prompt of code has many brackets and commas. Escapes and quotes may lie across the ends of pieces."""
    text = "x" * shift + STRUCTURE * (3 * PIECE // len(STRUCTURE))
    check_contents(json.dumps({"prompt": [text, "é" * PIECE], "n": 1}).encode())
    check_contents(b'"' + b"\\\\" * PIECE + b'"')
    lists = ",".join(["[]"] * MAX_LISTS)
    with pytest.raises(ApiError, match="lists"):
        check_contents(f'{{"prompt": {json.dumps(text)}, "stop": [{lists}]}}'.encode())


def test_as_many_as_are_accepted() -> None:
    check_contents(b"[" + b"1," * (MAX_VALUES - 2) + b"1]")
    check_contents(b"[" + b"[]," * (MAX_LISTS - 2) + b"[]]")


def test_the_refusal_reaches_the_client() -> None:
    async def test() -> None:
        async with serving(max_body_bytes=1 << 20) as server:
            body = b'{"prompt": [' + b"[1]," * MAX_LISTS + b"[1]]}"
            answer = await server.http.post("/v1/completions", content=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (413, "invalid_request_error")

    run(test)
