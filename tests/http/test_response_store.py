"""The store of responses: its bounds hold, and what goes is what was used least recently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.http.apis.responses.store import OVERHEAD, ResponseStore, StoredResponse, owner_of
from sluice.http.base.errors import ApiError

OWNER = owner_of(b"key", "")


def stored(size: int) -> StoredResponse:
    return StoredResponse(OWNER, b"x" * size, b"")


def has(store: ResponseStore, response_id: str) -> bool:
    try:
        store.get(response_id, OWNER)
    except ApiError:
        return False
    return True


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(2, 1 << 20)
    store.put("a", stored(1))
    store.put("b", stored(1))
    assert has(store, "a")
    store.put("c", stored(1))
    assert [has(store, name) for name in "abc"] == [True, False, True]
    store.delete("a", OWNER)
    with pytest.raises(ApiError):
        store.delete("a", OWNER)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 9), st.integers(0, 3000)), max_size=60)
)
def test_the_bounds_hold_and_nothing_goes_without_need(calls: list[tuple[str, int, int]]) -> None:
    """Memory that is counted wrong grows for ever, or a full store forgets what it has room for."""
    most_items, most_bytes = 4, 4 * OVERHEAD + 4000
    store = ResponseStore(most_items, most_bytes)
    model: dict[str, int] = {}
    for number, (what, name, size) in enumerate(calls):
        if what == "put":
            response_id = f"{name}-{number}"
            store.put(response_id, stored(size))
            model[response_id] = size + OVERHEAD
            while len(model) > most_items or sum(model.values()) > most_bytes:
                del model[next(iter(model))]
        elif model:
            response_id = [*model][name % len(model)]
            if what == "get":
                assert has(store, response_id)
                model[response_id] = model.pop(response_id)
            else:
                store.delete(response_id, OWNER)
                del model[response_id]
        assert len(store) == len(model)
    assert all(has(store, response_id) for response_id in model)
