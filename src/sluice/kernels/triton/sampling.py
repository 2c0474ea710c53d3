"""Samples without sorting: every filter is a threshold, and a threshold is found by bisection.

    maxima      the largest logit of each block                     S x blocks programs
    keys        only for rows with top-k or top-p: |(logit - largest) / T| as ordered integers
    thresholds  only for those rows: the last key that is kept      a program per row
    best        score and id of the best token of each block        S x blocks programs
    choose      the token of each row

`runner.sampler` defines which tokens are kept, the order of equal ones, when a row fails, and the noise. The block of a
logit depends only on its id, so the result of a row does not depend on the other rows.

Small tensors may be aligned or not. A kernel that assumed either would be compiled again for the other, which stalls
all requests.

A key is the bit pattern of a float32 that is not negative, so keys are integers in the order of the distances from the
largest logit. The k-th smallest key, and the smallest key with enough mass up to it, are found by a binary search over
counts. Both bounds move to keys that occur, so few distinct logits take few rounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Logits that one program reads."""
SEARCH_BLOCK = 8192
"""Keys that a program that searches a row reads at once."""
_INF: tl.constexpr = tl.constexpr(0x7F800000)
"""The key of a token that a filter removed, or whose logit is -inf."""
_BEYOND: tl.constexpr = tl.constexpr(0x7F800001)
_NO_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_FAILED: tl.constexpr = tl.constexpr(-1)

_WEYL: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLY_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLY_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit(do_not_specialize_on_alignment=["maxima_ptr"])
def _maxima(logits_ptr, maxima_ptr, stride, vocab, BLOCK: tl.constexpr):
    """Find the largest logit of each block; +inf if one is NaN, so that the row fails."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    largest = tl.max(tl.where(logits == logits, logits, float("inf")), 0)
    tl.store(maxima_ptr + row * tl.num_programs(1) + block, largest)


@triton.jit
def _largest(maxima_ptr, row, blocks, BLOCKS: tl.constexpr):
    block = tl.arange(0, BLOCKS)
    return tl.max(tl.load(maxima_ptr + row * blocks + block, mask=block < blocks, other=-float("inf")), 0)


@triton.jit
def _divisor(temperature_ptr, row):
    """Return the float32 to divide logits by, from a temperature in float64."""
    temperature = tl.load(temperature_ptr + row)
    return tl.minimum(tl.maximum(temperature, 1.1754943508222875e-38), 3.4028234663852886e38).to(tl.float32)


@triton.jit
def _keys(scaled, min_p_ptr, row):
    """Return the keys of `scaled`, which is at most 0, under the row's min-p."""
    floor = tl.log(tl.load(min_p_ptr + row).to(tl.float32))
    keys = tl.abs(scaled).to(tl.int32, bitcast=True)
    return tl.where(scaled < floor, _INF, tl.minimum(keys, _INF))


@triton.jit(do_not_specialize_on_alignment=["maxima_ptr", "rows_ptr", "temperature_ptr", "min_p_ptr"])
def _write_keys(
    logits_ptr,
    maxima_ptr,
    rows_ptr,
    temperature_ptr,
    min_p_ptr,
    keys_ptr,
    stride,
    vocab,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    place, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows_ptr + place)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    logits = tl.load(logits_ptr + row * stride + ids, mask=inside, other=-float("inf")).to(tl.float32)
    largest = _largest(maxima_ptr, row, tl.num_programs(1), BLOCKS)
    scaled = tl.div_rn(logits - largest, _divisor(temperature_ptr, row))
    tl.store(keys_ptr + place * vocab + ids, _keys(scaled, min_p_ptr, row), mask=inside)


@triton.jit
def _masses(keys):
    return tl.exp(-keys.to(tl.float32, bitcast=True))


@triton.jit
def _smallest_with_count(keys_ptr, vocab, wanted, SEARCH: tl.constexpr):
    """Return the smallest key with at least `wanted` keys up to it, and the number of keys below it.

    `wanted` is at most `vocab`.
    """
    low, high, below = tl.full((), 0, tl.int32), tl.full((), _INF, tl.int32), tl.full((), 0, tl.int32)
    while low < high:
        middle = low + (high - low) // 2
        counts, lasts = tl.zeros((SEARCH,), tl.int32), tl.zeros((SEARCH,), tl.int32)
        firsts = tl.full((SEARCH,), _BEYOND, tl.int32)
        for start in range(0, vocab, SEARCH):
            ids = start + tl.arange(0, SEARCH)
            keys = tl.load(keys_ptr + ids, mask=ids < vocab, other=_BEYOND)
            fits = keys <= middle
            counts += fits.to(tl.int32)
            lasts = tl.maximum(lasts, tl.where(fits, keys, 0))
            firsts = tl.minimum(firsts, tl.where(fits, _BEYOND, keys))
        count = tl.sum(counts, 0)
        if count >= wanted:
            high = tl.max(lasts, 0)
        else:
            low, below = tl.min(firsts, 0), count
    return low, below


@triton.jit
def _smallest_with_mass(keys_ptr, vocab, wanted, limit, SEARCH: tl.constexpr):
    """Return the smallest key up to `limit` with a mass of `wanted` up to it (else `limit`), and the mass below it."""
    low, high, below = tl.full((), 0, tl.int32), limit, tl.full((), 0.0, tl.float32)
    while low < high:
        middle = low + (high - low) // 2
        masses, lasts = tl.zeros((SEARCH,), tl.float32), tl.zeros((SEARCH,), tl.int32)
        firsts = tl.full((SEARCH,), _BEYOND, tl.int32)
        for start in range(0, vocab, SEARCH):
            ids = start + tl.arange(0, SEARCH)
            keys = tl.load(keys_ptr + ids, mask=ids < vocab, other=_BEYOND)
            fits = keys <= middle
            masses += tl.where(fits, _masses(keys), 0.0)
            lasts = tl.maximum(lasts, tl.where(fits, keys, 0))
            firsts = tl.minimum(firsts, tl.where(fits, _BEYOND, keys))
        mass = tl.sum(masses, 0)
        if mass >= wanted:
            high = tl.maximum(tl.max(lasts, 0), low)
        else:
            low, below = tl.minimum(tl.min(firsts, 0), limit), mass
    return low, below


@triton.jit
def _mass_below(keys_ptr, vocab, limit, SEARCH: tl.constexpr):
    masses = tl.zeros((SEARCH,), tl.float32)
    for start in range(0, vocab, SEARCH):
        ids = start + tl.arange(0, SEARCH)
        keys = tl.load(keys_ptr + ids, mask=ids < vocab, other=_BEYOND)
        masses += tl.where(keys < limit, _masses(keys), 0.0)
    return tl.sum(masses, 0)


@triton.jit
def _id_of_equal(keys_ptr, vocab, key, wanted, SEARCH: tl.constexpr):
    """Return the id of the `wanted`-th token with this key; `_NO_ID` if there are not more than that."""
    found, seen = tl.full((), _NO_ID, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, vocab, SEARCH):
        ids = start + tl.arange(0, SEARCH)
        equal = (tl.load(keys_ptr + ids, mask=ids < vocab, other=_BEYOND) == key).to(tl.int32)
        number = seen + tl.cumsum(equal, 0)
        found = tl.minimum(found, tl.min(tl.where((equal > 0) & (number == wanted), ids, _NO_ID), 0))
        seen += tl.sum(equal, 0)
    return tl.where(seen > wanted, found, _NO_ID)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "top_k_ptr", "top_p_ptr", "last_key_ptr", "last_id_ptr"])
def _thresholds(keys_ptr, rows_ptr, top_k_ptr, top_p_ptr, last_key_ptr, last_id_ptr, vocab, SEARCH: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place)
    keys_ptr += place * vocab
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row).to(tl.float32)
    last_key, below = tl.full((), _INF, tl.int32), tl.full((), 0, tl.int32)
    equal = tl.full((), _NO_ID, tl.int32)  # number of tokens with the last key that are kept, if there are as many
    if top_k < vocab:
        last_key, below = _smallest_with_count(keys_ptr, vocab, top_k.to(tl.int32), SEARCH)
        equal = top_k.to(tl.int32) - below
    if top_p < 1:
        total = _mass_below(keys_ptr, vocab, last_key, SEARCH)
        if last_key < _INF:
            total += equal.to(tl.float32) * _masses(last_key)
        wanted = top_p * total
        key, mass = _smallest_with_mass(keys_ptr, vocab, wanted, last_key, SEARCH)
        one = _masses(key)
        if key < _INF:
            # At least one is kept: the mass before it is below `wanted`.
            stay = tl.ceil((wanted - mass) / tl.maximum(one, 1e-45))
            stay = tl.minimum(tl.maximum(stay, 1.0), vocab).to(tl.int32)
            equal = tl.where(key == last_key, tl.minimum(equal, stay), stay)
        last_key = key
    last_id = tl.full((), _NO_ID, tl.int32)
    if last_key < _INF:
        last_id = _id_of_equal(keys_ptr, vocab, last_key, equal, SEARCH)
    tl.store(last_key_ptr + row, last_key)
    tl.store(last_id_ptr + row, last_id)


@triton.jit(
    do_not_specialize_on_alignment=[
        "maxima_ptr",
        "temperature_ptr",
        "min_p_ptr",
        "noise_keys_ptr",
        "positions_ptr",
        "last_key_ptr",
        "last_id_ptr",
        "best_ptr",
        "best_id_ptr",
    ]
)
def _best(
    logits_ptr,
    maxima_ptr,
    temperature_ptr,
    min_p_ptr,
    noise_keys_ptr,
    positions_ptr,
    last_key_ptr,
    last_id_ptr,
    best_ptr,
    best_id_ptr,
    stride,
    vocab,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    blocks = tl.num_programs(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    scores = tl.load(logits_ptr + row * stride + ids, mask=inside, other=-float("inf")).to(tl.float32)
    if tl.load(temperature_ptr + row) > 0:
        largest = _largest(maxima_ptr, row, blocks, BLOCKS)
        scaled = tl.div_rn(scores - largest, _divisor(temperature_ptr, row))
        keys = _keys(scaled, min_p_ptr, row)
        last_key = tl.load(last_key_ptr + row)
        stays = (keys < last_key) | ((keys == last_key) & (ids <= tl.load(last_id_ptr + row)))
        stays &= keys < _INF
        key = row_key(tl.load(noise_keys_ptr + row), tl.load(positions_ptr + row))
        scores = tl.where(stays, scaled + gumbel(key, ids), -float("inf"))
    best = tl.max(scores, 0)
    tl.store(best_ptr + row * blocks + block, best)
    tl.store(best_id_ptr + row * blocks + block, tl.min(tl.where(scores == best, ids, _NO_ID), 0))


@triton.jit(do_not_specialize_on_alignment=["maxima_ptr", "best_ptr", "best_id_ptr"])
def _choose(maxima_ptr, best_ptr, best_id_ptr, tokens_ptr, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    scores = tl.load(best_ptr + row * blocks + block, mask=inside, other=-float("inf"))
    ids = tl.load(best_id_ptr + row * blocks + block, mask=inside, other=_NO_ID)
    token = tl.min(tl.where(scores == tl.max(scores, 0), ids, _NO_ID), 0)
    is_usable = tl.abs(_largest(maxima_ptr, row, blocks, BLOCKS)) < float("inf")
    tl.store(tokens_ptr + row, tl.where(is_usable, token, _FAILED).to(tl.int64))


def sample_rows(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    noise_keys: torch.Tensor,
    positions: torch.Tensor,
    ranked: torch.Tensor | None,
    ranked_at_once: int,
) -> torch.Tensor:
    """Sample one token for each row.

    Args:
        logits: [S, vocab] float32, bfloat16 or float16, without gaps inside a row.
        temperature: [S] float64; 0 is greedy.
        min_p, top_p: [S] float64.
        top_k: [S] int64, at least 1; `vocab` or more disables it.
        noise_keys, positions: [S] int64, see `runner.noise`.
        ranked: [n] int64, the rows that are not greedy and have top-k or top-p; None if there are none.
        ranked_at_once: the most rows whose keys are in memory together, at 4 bytes a logit.

    Returns:
        [S] int64 token ids, -1 for a row with NaN or +inf, or with nothing above -inf.
    """
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return tokens
    blocks = triton.cdiv(vocab, BLOCK)
    sizes = {"BLOCK": BLOCK, "BLOCKS": triton.next_power_of_2(blocks)}
    maxima, best = torch.empty((2, rows, blocks), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    last_key, last_id = torch.full((2, rows), _NO_ID.value, dtype=torch.int32, device=logits.device)
    _maxima[(rows, blocks)](logits, maxima, logits.stride(0), vocab, BLOCK=BLOCK, num_warps=8)
    for part in () if ranked is None else ranked.split(ranked_at_once):
        keys = torch.empty((len(part), vocab), dtype=torch.int32, device=logits.device)
        _write_keys[(len(part), blocks)](
            logits, maxima, part, temperature, min_p, keys, logits.stride(0), vocab, **sizes, num_warps=8
        )
        _thresholds[(len(part),)](keys, part, top_k, top_p, last_key, last_id, vocab, SEARCH=SEARCH_BLOCK, num_warps=32)
    _best[(rows, blocks)](
        logits,
        maxima,
        temperature,
        min_p,
        noise_keys,
        positions,
        last_key,
        last_id,
        best,
        best_ids,
        logits.stride(0),
        vocab,
        **sizes,
        num_warps=8,
    )
    _choose[(rows,)](maxima, best, best_ids, tokens, blocks, BLOCKS=sizes["BLOCKS"], num_warps=1)
    return tokens


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _MULTIPLY_1
    z = (z ^ (z >> 27)) * _MULTIPLY_2
    return z ^ (z >> 31)


@triton.jit
def row_key(noise_key, position):
    """Return the key of a row (uint64) from its noise key and position (int64)."""
    step = _mix((position + 1).to(tl.uint64, bitcast=True) * _WEYL)
    return _mix(noise_key.to(tl.uint64, bitcast=True) + step)


@triton.jit
def _minus_log1p(u):
    """Return -log(1 - u) of float32 u in (0, 1). It is precise for small u, since small draws win."""
    w = 1.0 - u
    series = u * (1.0 + u * (0.5 + u * (1.0 / 3 + u * (0.25 + u * (0.2 + u * (1.0 / 6))))))
    return tl.where(u < 0.0625, series, -tl.log(w) + ((w - 1.0) + u) / w)


@triton.jit
def gumbel(key, ids):
    """Return standard Gumbel noise (float32) for vocabulary ids of the row with this key."""
    bits = _mix(key + (ids + 1).to(tl.uint64) * _WEYL) >> 12
    uniform = (bits.to(tl.int64).to(tl.float32) + 0.5) * 2.220446049250313e-16  # 2 ** -52
    uniform = tl.minimum(uniform, 0.99999994)  # the largest float32 below 1
    return -tl.log(_minus_log1p(uniform))
