// y = f(x W^T + bias) for any number of rows, in bfloat16 summed in float32, over weights in the layout of `packing.h`.
//
// An item reads one block of 32 outputs, in the order in which it lies in memory. Every output is summed in the order of
// `in`, for any number of rows and threads, so the result of a row depends only on that row. (Tiles sum in another
// order; they are used when there are many rows.)

// Multiply M rows of x with one block, into sums[M][32].
template <class X, int M>
void packed_tile(const typename X::A* x, int64_t x_stride, const uint16_t* block, int pairs, float* to) {
    F sums[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = set(0.0f);
    for (int pair = 0; pair < pairs; pair++, block += 2 * PACKED_BLOCK, x += 2) {
        typename X::B right[2];
        UNROLLED for (int n = 0; n < 2; n++) {
            __builtin_prefetch(reinterpret_cast<const char*>(block + n * 32) + PACKED_AHEAD);
            right[n] = X::right(block + n * 32);
        }
        UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = X::step(sums[i], x + i / 2 * x_stride, right[i % 2]);
    }
    UNROLLED for (int i = 0; i < M * 2; i++) store(to + i * 16, sums[i]);
}

template <class X, int M>
void packed_tile_of(int rows, const typename X::A* x, int64_t x_stride, const uint16_t* block, int pairs, float* to) {
    if (rows == M) return packed_tile<X, M>(x, x_stride, block, pairs, to);
    if constexpr (M > 1) packed_tile_of<X, M - 1>(rows, x, x_stride, block, pairs, to);
}

// The same for up to 32 rows, on tiles. `in` is a multiple of 32, and x has whole tiles of sixteen rows.
template <class Tiles>
void packed_tiles(Tiles& tiles, const uint16_t* x, int64_t x_stride, int rows, const uint16_t* block, int in, float* to) {
    constexpr int STEPS = 64;
    for (int from = 0; from < in; from += 32 * STEPS) {
        const uint16_t* right[2 * STEPS];
        const int steps = std::min(STEPS, (in - from) / 32);
        for (int i = 0; i < 2 * steps; i++) right[i] = block + (from + i / 2 * 32) * PACKED_BLOCK + i % 2 * 32;
        tiles.multiply(TileProduct<uint16_t>{x + from, x_stride, right, 2 * PACKED_BLOCK, to, PACKED_BLOCK, steps,
                                             rows > 16, true, from > 0});
    }
}

// Swish and the tanh form of GELU are x * sigmoid(u), where u is x or 2 sqrt(2 / pi) (x + 0.044715 x^3).
INL F activated(F x, int activation) {
    if (activation == NO_ACTIVATION) return x;
    if (activation == RELU) return max(x, set(0.0f));
    const F cubic = fma(mul(x, x), set(2 * 0.7978845608f * 0.044715f), set(2 * 0.7978845608f));
    const F u = activation == SILU ? x : mul(x, cubic);
    return div(x, add(set(1.0f), exp2(mul(max(set(-88.0f), u), set(-LOG2_E)))));
}

// The gate of gpt-oss: (second + 1) g sigmoid(alpha g), both limited, g only from above. What is no number stays none.
INL F clamped_gate(const PackedLinearCall& call, F first, F second) {
    const F limit = set(call.limit), g = min(limit, first), e = mul(max(set(-88.0f), mul(g, set(call.alpha))), set(-LOG2_E));
    const F up = max(sub(set(0.0f), limit), min(limit, second));
    return mul(div(g, add(set(1.0f), exp2(e))), add(up, set(1.0f)));
}

// Finish the sums of some rows of a block: bias, activation, store from element `at` of y on. With `gated` [rows][32], the
// sums are the gate of `gated`.
INL void packed_finish(const PackedLinearCall& call, const float* sums, const float* gated, const float* bias,
                       const float* gated_bias, int rows, int width, int64_t at) {
    for (int row = 0; row < rows; row++, at += call.y_stride) {
        for (int n = 0; n < width; n += 16) {
            F value = add(load(sums + row * PACKED_BLOCK + n), load(bias + n));
            if (gated) {
                const F second = add(load(gated + row * PACKED_BLOCK + n), load(gated_bias + n));
                value = call.activation == CLAMPED_SILU ? clamped_gate(call, value, second)
                                                        : mul(activated(value, call.activation), second);
            } else {
                value = activated(value, call.activation);
            }
            if (call.is_float_y) store_at(static_cast<float*>(call.y) + at, value, n, width);
            else store_at(static_cast<uint16_t*>(call.y) + at, value, n, width);
        }
    }
}

// The bias of a block, padded with zeros.
INL void packed_bias(const PackedLinearCall& call, int column, int width, float* to) {
    for (int n = 0; n < PACKED_BLOCK; n++) {
        to[n] = call.bias && n < width ? widen(static_cast<const uint16_t*>(call.bias)[column + n]) : 0.0f;
    }
}

// Divide the rows of one block into pieces of nearly equal height: a last piece of one row would read the whole block
// again for that row.
template <class Piece>
void packed_pieces(int from, int until, int most, Piece piece) {
    for (int left = (until - from + most - 1) / most, row = from; left > 0; left--) {
        const int rows = (until - row + left - 1) / left;
        piece(row, rows);
        row += rows;
    }
}

// Multiply rows `from` to `until` with one block, and with the block that it gates.
template <class X, class Tiles>
void packed_linear_block(const PackedLinearCall& call, int block, int from, int until, float* buffer) {
    const int column = block * PACKED_BLOCK, width = std::min<int>(PACKED_BLOCK, call.out - column);
    const auto* weight = static_cast<const uint16_t*>(call.weight) + static_cast<int64_t>(column) * call.in;
    const uint16_t* gated = call.is_gated ? weight + static_cast<int64_t>(call.out) * call.in : nullptr;
    float bias[PACKED_BLOCK], gated_bias[PACKED_BLOCK];
    packed_bias(call, column, width, bias);
    if (gated) packed_bias(call, call.out + column, width, gated_bias);
    float *sums = buffer, *gated_sums = gated ? buffer + 32 * PACKED_BLOCK : nullptr;
    const auto finish = [&](int row, int rows) {
        packed_finish(call, sums, gated_sums, bias, gated_bias, rows, width, row * call.y_stride + column);
    };
    if constexpr (!std::is_same_v<Tiles, NoTiles>) {
        if ((until - from > LINEAR_ROWS || call.is_one_order) && call.in % 32 == 0) {
            Tiles tiles;
            return packed_pieces(from, until, 32, [&](int row, int rows) {
                const auto* x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
                int64_t stride = call.x_stride;
                if (rows % 16) {    // else a tile would read behind the last row
                    auto* copy = reinterpret_cast<uint16_t*>(buffer + 64 * PACKED_BLOCK);
                    std::memset(copy, 0, sizeof(uint16_t) * (rows > 16 ? 32 : 16) * call.in);
                    for (int m = 0; m < rows; m++) std::memcpy(copy + m * call.in, x + m * stride, 2 * call.in);
                    x = copy, stride = call.in;
                }
                packed_tiles(tiles, x, stride, rows, weight, call.in, sums);
                if (gated) packed_tiles(tiles, x, stride, rows, gated, call.in, gated_sums);
                finish(row, rows);
            });
        }
    }
    packed_pieces(from, until, LINEAR_ROWS, [&](int row, int rows) {
        const auto* x = static_cast<const typename X::A*>(call.x) + row * call.x_stride;
        packed_tile_of<X, LINEAR_ROWS>(rows, x, call.x_stride, weight, call.in / 2, sums);
        if (gated) packed_tile_of<X, LINEAR_ROWS>(rows, x, call.x_stride, gated, call.in / 2, gated_sums);
        finish(row, rows);
    });
}
