// y = x W^T + bias for any number of rows, in bfloat16 summed in float32, over weights laid out as `packing.h` says.
//
// A block of 32 outputs is what one item streams through, in the order in which it lies in memory. Every output is one
// chain of sums in the order of `in`, whatever the number of rows and threads: what a row comes to depends on that row
// alone. (Tiles have another order, and serve when there are many rows.)

// M rows of x with one block.
template <class X, int M>
void packed_tile(const typename X::A* x, int64_t x_stride, const uint16_t* block, int pairs, const float* bias,
                 uint16_t* y, int64_t y_stride) {
    F sums[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = load(bias + i % 2 * 16);
    for (int pair = 0; pair < pairs; pair++, block += 2 * PACKED_BLOCK, x += 2) {
        typename X::B right[2];
        UNROLLED for (int n = 0; n < 2; n++) {
            __builtin_prefetch(reinterpret_cast<const char*>(block + n * 32) + PACKED_AHEAD);
            right[n] = X::right(block + n * 32);
        }
        UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = X::step(sums[i], x + i / 2 * x_stride, right[i % 2]);
    }
    UNROLLED for (int i = 0; i < M * 2; i++) store(y + i / 2 * y_stride + i % 2 * 16, sums[i]);
}

template <class X, int M>
void packed_tile_of(int rows, const typename X::A* x, int64_t x_stride, const uint16_t* block, int pairs,
                    const float* bias, uint16_t* y, int64_t y_stride) {
    if (rows == M) return packed_tile<X, M>(x, x_stride, block, pairs, bias, y, y_stride);
    if constexpr (M > 1) packed_tile_of<X, M - 1>(rows, x, x_stride, block, pairs, bias, y, y_stride);
}

// Up to 32 rows of x with one block, on tiles. `in` is a multiple of 32.
template <class Tiles>
void packed_tiles(Tiles& tiles, const uint16_t* x, int64_t x_stride, int rows, const uint16_t* block, int in,
                  const float* bias, uint16_t* y, int64_t y_stride, float* buffer) {
    constexpr int STEPS = 64;
    float* sums = buffer;    // [32][32]
    if (rows % 16) {         // or a tile would read behind the last row
        auto* copy = reinterpret_cast<uint16_t*>(buffer + 32 * PACKED_BLOCK);
        for (int row = 0; row < rows; row++) std::memcpy(copy + static_cast<int64_t>(row) * in, x + row * x_stride, 2 * in);
        std::memset(copy + static_cast<int64_t>(rows) * in, 0, sizeof(uint16_t) * in * (32 - rows));
        x = copy, x_stride = in;
    }
    for (int from = 0; from < in; from += 32 * STEPS) {
        const uint16_t* right[2 * STEPS];
        const int steps = std::min(STEPS, (in - from) / 32);
        for (int i = 0; i < 2 * steps; i++) right[i] = block + (from + i / 2 * 32) * PACKED_BLOCK + i % 2 * 32;
        tiles.multiply({x + from, x_stride, right, 2 * PACKED_BLOCK, sums, PACKED_BLOCK, steps, rows > 16, true, from > 0});
    }
    for (int row = 0; row < rows; row++) {
        for (int n = 0; n < PACKED_BLOCK; n += 16) {
            store(y + row * y_stride + n, add(load(sums + row * PACKED_BLOCK + n), load(bias + n)));
        }
    }
}

// Rows of one block, cut into pieces of nearly equal height: a last one of one row would read the block again for it.
template <class Piece>
void packed_pieces(int from, int until, int most, Piece piece) {
    for (int left = (until - from + most - 1) / most, row = from; left > 0; left--) {
        const int rows = (until - row + left - 1) / left;
        piece(row, rows);
        row += rows;
    }
}

// Rows `from` to `until` with one block.
template <class X, class Tiles>
void packed_linear_block(const PackedLinearCall& call, int block, int from, int until, float* buffer) {
    const int column = block * PACKED_BLOCK, width = std::min<int>(PACKED_BLOCK, call.out - column);
    const uint16_t* weight = static_cast<const uint16_t*>(call.weight) + static_cast<int64_t>(column) * call.in;
    float bias[PACKED_BLOCK] = {};
    if (call.bias) {
        for (int n = 0; n < width; n++) bias[n] = widen(static_cast<const uint16_t*>(call.bias)[column + n]);
    }
    const auto piece = [&](int row, int rows, auto compute) {
        uint16_t* y = static_cast<uint16_t*>(call.y) + row * call.y_stride + column;
        if (width == PACKED_BLOCK) return compute(y, call.y_stride);
        uint16_t spare[32 * PACKED_BLOCK];
        compute(spare, PACKED_BLOCK);
        for (int m = 0; m < rows; m++) std::memcpy(y + m * call.y_stride, spare + m * PACKED_BLOCK, 2 * width);
    };
    if constexpr (!std::is_same_v<Tiles, NoTiles>) {
        if (until - from > LINEAR_ROWS && call.in % 32 == 0) {
            Tiles tiles;
            return packed_pieces(from, until, 32, [&](int row, int rows) {
                const auto* x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
                piece(row, rows, [&](uint16_t* y, int64_t stride) {
                    packed_tiles(tiles, x, call.x_stride, rows, weight, call.in, bias, y, stride, buffer);
                });
            });
        }
    }
    packed_pieces(from, until, LINEAR_ROWS, [&](int row, int rows) {
        const auto* x = static_cast<const typename X::A*>(call.x) + row * call.x_stride;
        piece(row, rows, [&](uint16_t* y, int64_t stride) {
            packed_tile_of<X, LINEAR_ROWS>(rows, x, call.x_stride, weight, call.in / 2, bias, y, stride);
        });
    });
}
