// Products with int8 weights in the layout of `packing.h`. Their sums are of integers and exact.

// Multiply M rows of x with one block, into sums[M][32], scaled.
template <int M>
void int8_tile(const uint8_t* x, int64_t x_stride, const float* x_scales, const int8_t* block, const float* scales,
               const int32_t* weight_sums, int quads, float* to) {
    I sums[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = first_sums(weight_sums + i % 2 * 16);
    for (int quad = 0; quad < quads; quad++, block += 4 * PACKED_BLOCK, x += 4) {
        Bytes right[2];
        UNROLLED for (int n = 0; n < 2; n++) {
            __builtin_prefetch(reinterpret_cast<const char*>(block + n * 64) + PACKED_AHEAD);
            right[n] = load_bytes(block + n * 64);
        }
        UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = dot(sums[i], x + i / 2 * x_stride, right[i % 2]);
    }
    UNROLLED for (int i = 0; i < M * 2; i++) {
        store(to + i * 16, mul(to_float(sums[i]), mul(set(x_scales[i / 2]), load(scales + i % 2 * 16))));
    }
}

template <int M>
void int8_tile_of(int rows, const uint8_t* x, int64_t x_stride, const float* x_scales, const int8_t* block,
                  const float* scales, const int32_t* weight_sums, int quads, float* to) {
    if (rows == M) return int8_tile<M>(x, x_stride, x_scales, block, scales, weight_sums, quads, to);
    if constexpr (M > 1) int8_tile_of<M - 1>(rows, x, x_stride, x_scales, block, scales, weight_sums, quads, to);
}

// The same for up to 32 rows, on tiles. `in` is a multiple of 64, and behind the rows is memory for whole tiles of them.
template <class Tiles>
void int8_tiles(Tiles& tiles, const QuantizedCall& call, int row, int rows, int first, float* to) {
    using Left = std::conditional_t<BYTE_OFFSET == 0, int8_t, uint8_t>;
    constexpr int STEPS = 64;
    const PackedLinearCall& linear = call.linear;
    const auto* block = static_cast<const int8_t*>(linear.weight) + static_cast<int64_t>(first) * linear.in;
    const auto* x = reinterpret_cast<const Left*>(call.values + row * call.stride);
    alignas(64) int32_t sums[32 * PACKED_BLOCK];
    for (int from = 0; from < linear.in; from += 64 * STEPS) {
        const int8_t* right[2 * STEPS];
        const int steps = std::min(STEPS, (linear.in - from) / 64);
        for (int i = 0; i < 2 * steps; i++) right[i] = block + (from + i / 2 * 64) * PACKED_BLOCK + i % 2 * 64;
        tiles.multiply(TileProduct<Left>{x + from, call.stride, right, 4 * PACKED_BLOCK, sums, PACKED_BLOCK, steps,
                                         rows > 16, true, from > 0});
    }
    const float* scales = static_cast<const float*>(linear.scales) + first;
    for (int m = 0; m < rows; m++) {
        for (int n = 0; n < PACKED_BLOCK; n++) {
            const uint32_t added = static_cast<uint32_t>(BYTE_OFFSET) * static_cast<uint32_t>(linear.sums[first + n]);
            const auto sum = static_cast<int32_t>(static_cast<uint32_t>(sums[m * PACKED_BLOCK + n]) - added);
            to[m * PACKED_BLOCK + n] = static_cast<float>(sum) * (call.scales[row + m] * scales[n]);
        }
    }
}

// Multiply `rows` rows with the block that begins at output `first`.
INL void int8_multiply(const QuantizedCall& call, int row, int rows, int first, float* to) {
    const PackedLinearCall& linear = call.linear;
    const auto* weight = static_cast<const int8_t*>(linear.weight) + static_cast<int64_t>(first) * linear.in;
    const auto* scales = static_cast<const float*>(linear.scales);
    int8_tile_of<BYTE_ROWS>(rows, call.values + row * call.stride, call.stride, call.scales + row, weight,
                            scales + first, linear.sums + first, linear.in / 4, to);
}
