// y += scale * (x A^T) B^T for the rows of each adapter, in bfloat16 summed in float32 (`models/blocks/lora.py`).
//
// First the rows are shrunk: one sum for each row of A, which sixteen lanes add up in the order of `in`. Then they are
// expanded: each output is summed in the order of the ranks, and added to y. Rows of one adapter are computed in tiles,
// so that its matrices are read once for several rows; the result of a row depends only on that row.

// Call `each(row of A, scale, its place among the sums of a row)` for the rows `from` to `until` of all that A has.
template <class Each>
INL void lora_ranks(const LoraCall& call, int64_t slot, int from, int until, Each each) {
    for (int part = 0, first = 0; part < call.parts; part++) {
        const int64_t at = slot * call.parts + part;
        const auto* a = static_cast<const uint16_t*>(call.a) + at * call.max_rank * call.in;
        const int rank = call.ranks[at];
        for (int r = std::max(0, from - first); r < std::min(rank, until - first); r++) {
            each(a + static_cast<int64_t>(r) * call.in, call.scales[at], part * call.max_rank + r);
        }
        first += rank;
    }
}

// Add the products of M rows of x with a row of A, of `size` inputs, to totals[m][16].
template <int M, class X>
INL void shrink(const X* x, int64_t x_stride, const uint16_t* a, int size, float* totals) {
    F sums[M];
    UNROLLED for (int m = 0; m < M; m++) sums[m] = load(totals + 16 * m);
    for (int k = 0; k < size; k += 16) {
        const F right = load_at(a, k, size);
        UNROLLED for (int m = 0; m < M; m++) sums[m] = fma(load_at(x + m * x_stride, k, size), right, sums[m]);
    }
    UNROLLED for (int m = 0; m < M; m++) store(totals + 16 * m, sums[m]);
}

// One row of x, with rows of A that are read four at a time.
inline void shrink_row(const LoraWork& work, const LoraTile& tile, int from, int until) {
    const LoraCall& call = work.call;
    const uint16_t* x = work.x(tile.first);
    float* to = work.sums(tile.first);
    const uint16_t* rows[4];
    float scales[4];
    int places[4], count = 0;
    const auto run = [&] {
        F sums[4];
        UNROLLED for (int n = 0; n < 4; n++) sums[n] = set(0.0f);
        for (int n = count; n < 4; n++) rows[n] = rows[0];
        for (int k = 0; k < call.in; k += 16) {
            const F left = load_at(x, k, call.in);
            UNROLLED for (int n = 0; n < 4; n++) {
                fetch(rows[n] + k + 512);
                sums[n] = fma(left, load_at(rows[n], k, call.in), sums[n]);
            }
        }
        for (int n = 0; n < count; n++) to[places[n]] = hsum(sums[n]) * scales[n];
        count = 0;
    };
    lora_ranks(call, tile.slot, from, until, [&](const uint16_t* row, float scale, int place) {
        rows[count] = row, scales[count] = scale, places[count++] = place;
        if (count == 4) run();
    });
    if (count) run();
}

// Shrink the rows of a tile with the rows `from` to `until` of all that its adapter's A has, at most SHRINK_RANKS.
inline void lora_shrink(const LoraWork& work, const LoraTile& tile, int from, int until, float* buffer) {
    if (tile.slot < 0) return;
    if (tile.rows == 1) return shrink_row(work, tile, from, until);
    const LoraCall& call = work.call;
    float *totals = buffer + LoraTile::MOST * SHRINK_INPUTS, *to = work.sums(tile.first);
    std::fill(totals, totals + (until - from) * LoraTile::MOST * 16, 0.0f);
    for (int first = 0; first < call.in; first += SHRINK_INPUTS) {
        const int size = std::min(SHRINK_INPUTS, call.in - first);
        for (int m = 0; m < tile.rows; m++) {
            const uint16_t* x = work.x(tile.first + m) + first;
            for (int k = 0; k < size; k += 16) store(buffer + m * SHRINK_INPUTS + k, load_at(x, k, size));
        }
        float* at = totals;
        lora_ranks(call, tile.slot, from, until, [&](const uint16_t* row, float, int) {
            int m = 0;
            const auto run = [&](auto rows) {
                constexpr int M = decltype(rows)::value;
                for (; m + M <= tile.rows; m += M) {
                    shrink<M>(buffer + m * SHRINK_INPUTS, SHRINK_INPUTS, row + first, size, at + 16 * m);
                }
            };
            run(std::integral_constant<int, 4>{});
            run(std::integral_constant<int, 2>{});
            run(std::integral_constant<int, 1>{});
            at += LoraTile::MOST * 16;
        });
    }
    lora_ranks(call, tile.slot, from, until, [&](const uint16_t*, float scale, int place) {
        for (int m = 0; m < tile.rows; m++) to[m * work.width + place] = hsum(load(totals + 16 * m)) * scale;
        totals += LoraTile::MOST * 16;
    });
}

// Add to `width` outputs of M rows, at most 16 * N of them.
template <int M, int N, class E>
void expand(const float* sums, int64_t stride, const uint16_t* b, int64_t b_stride, int rank, E* const* y, int width) {
    F totals[M * N];
    UNROLLED for (int i = 0; i < M * N; i++) totals[i] = set(0.0f);
    for (int r = 0; r < rank; r++, b += b_stride) {
        F right[N];
        fetch(b + 64);
        UNROLLED for (int n = 0; n < N; n++) right[n] = load_at(b, 16 * n, width);
        UNROLLED for (int i = 0; i < M * N; i++) {
            totals[i] = fma(set(sums[i / N * stride + r]), right[i % N], totals[i]);
        }
    }
    UNROLLED for (int i = 0; i < M * N; i++) {
        E* to = y[i / N];
        store_at(to, add(load_at(to, i % N * 16, width), totals[i]), i % N * 16, width);
    }
}

// Expand M rows into the outputs `from` to `until` of a part.
template <int M, class E>
void expand_rows(const LoraCall& call, const float* sums, int64_t stride, const uint16_t* b, int rank, E* const* rows,
                 int from, int until) {
    constexpr int N = vectors(M);
    E* y[M];
    int column = from;
    const auto at = [&](int count) {
        UNROLLED for (int m = 0; m < M; m++) y[m] = rows[m] + column;
        column += count;
    };
    for (; column + 16 * N <= until;) {
        at(16 * N);
        expand<M, N>(sums, stride, b + column - 16 * N, call.b_stride, rank, y, 16 * N);
    }
    while (column < until) {
        const int width = std::min(16, until - column);
        at(width);
        expand<M, 1>(sums, stride, b + column - width, call.b_stride, rank, y, width);
    }
}

template <class E>
void lora_expand_as(const LoraWork& work, const LoraTile& tile, int from, int until) {
    const LoraCall& call = work.call;
    const int64_t slot = tile.slot;
    const auto* b = static_cast<const uint16_t*>(call.b) + slot * call.max_rank * call.b_stride;
    for (int part = 0, first = 0; part < call.parts; first += call.outputs[part++]) {
        const int low = std::max(from, first), high = std::min(until, first + call.outputs[part]);
        const int rank = call.ranks[slot * call.parts + part];
        if (low >= high || !rank) continue;
        const float* sums = work.sums(tile.first) + part * call.max_rank;
        E* rows[LoraTile::MOST];
        for (int m = 0; m < tile.rows; m++) rows[m] = static_cast<E*>(call.y) + work.order[tile.first + m] * call.y_stride;
        int m = 0;
        for (; m + 4 <= tile.rows; m += 4) {
            expand_rows<4, E>(call, sums + m * work.width, work.width, b, rank, rows + m, low, high);
        }
        for (; m + 2 <= tile.rows; m += 2) {
            expand_rows<2, E>(call, sums + m * work.width, work.width, b, rank, rows + m, low, high);
        }
        for (; m < tile.rows; m++) {
            expand_rows<1, E>(call, sums + m * work.width, work.width, b, rank, rows + m, low, high);
        }
    }
}

// Expand the rows of a tile into the outputs `from` to `until`; of a gated layer those of both halves, which are then
// joined as `packed_finish` does it.
inline void lora_expand(const LoraWork& work, const LoraTile& tile, int from, int until, float*) {
    const LoraCall& call = work.call;
    const int half = call.out / 2;
    if (tile.slot >= 0) {
        const auto add_to = call.is_float_y ? lora_expand_as<float> : lora_expand_as<uint16_t>;
        add_to(work, tile, from, until);
        if (call.gated) add_to(work, tile, from + half, until + half);
    }
    for (int m = 0; call.gated && m < tile.rows; m++) {
        const int64_t row = work.order[tile.first + m];
        const float* gate = static_cast<const float*>(call.y) + row * call.y_stride;
        auto* to = static_cast<uint16_t*>(call.gated) + row * half;
        for (int at = from; at < until; at += 16) {
            const F value = mul(activated(load_at(gate, at, until), call.activation), load_at(gate + half, at, until));
            store_at(to, value, at, until);
        }
    }
}
