// y = f(x W^T + bias) over int8 weights in the layout of `packing.h`. Each row of x is quantised first, symmetrically, by
// its largest magnitude. The sums are of integers and exact, so the result of a row depends on that row alone.

// Return the bits of the largest magnitude of a row. As integers, those of an infinite value and of no number are larger
// than all others, so the scale shows them.
INL uint16_t largest_bits(const uint16_t* x, int size) {
    uint16_t largest = 0;
    for (int k = 0; k < size; k++) largest = std::max<uint16_t>(largest, x[k] & 0x7fff);
    return largest;
}

// Quantise rows `from` to `until` of x.
inline void quantize_rows(const Int8Call& call, int from, int until) {
    for (int row = from; row < until; row++) {
        const auto* x = static_cast<const uint16_t*>(call.linear.x) + row * call.linear.x_stride;
        uint8_t* to = call.values + row * call.stride;
        const int size = call.linear.in, whole = size / 16 * 16;
        const float largest = widen(largest_bits(x, size));
        const bool is_zero = largest < 1e-30f;    // the inverse of its scale would not be finite
        call.scales[row] = is_zero ? 0.0f : largest / 127.0f;
        if (is_zero || !std::isfinite(largest)) {
            std::memset(to, BYTE_OFFSET, call.stride);
            continue;
        }
        const float inverse = 127.0f / largest;
        for (int k = 0; k < whole; k += 16) store_bytes(to + k, round(mul(load(x + k), set(inverse))));
        if (whole < size) {
            uint16_t rest[16] = {};
            std::memcpy(rest, x + whole, sizeof(uint16_t) * (size - whole));
            store_bytes(to + whole, round(mul(load(rest), set(inverse))));    // rows have room for whole vectors
        }
    }
}

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

// Multiply rows `from` to `until` with one block, and with the block that it gates.
inline void int8_linear_block(const Int8Call& call, int block, int from, int until, float* buffer) {
    const PackedLinearCall& linear = call.linear;
    const int column = block * PACKED_BLOCK, width = std::min<int>(PACKED_BLOCK, linear.out - column);
    float bias[PACKED_BLOCK], gated_bias[PACKED_BLOCK];
    packed_bias(linear, column, width, bias);
    if (linear.is_gated) packed_bias(linear, linear.out + column, width, gated_bias);
    float *sums = buffer, *gated_sums = linear.is_gated ? buffer + 32 * PACKED_BLOCK : nullptr;
    const auto multiply = [&](int row, int rows, int first, float* to) {
        const auto* weight = static_cast<const int8_t*>(linear.weight) + static_cast<int64_t>(first) * linear.in;
        int8_tile_of<BYTE_ROWS>(rows, call.values + row * call.stride, call.stride, call.scales + row, weight,
                                linear.scales + first, linear.sums + first, linear.in / 4, to);
    };
    packed_pieces(from, until, BYTE_ROWS, [&](int row, int rows) {
        multiply(row, rows, column, sums);
        if (gated_sums) multiply(row, rows, linear.out + column, gated_sums);
        uint16_t* y = static_cast<uint16_t*>(linear.y) + row * linear.y_stride + column;
        packed_finish(linear, sums, gated_sums, bias, gated_bias, rows, width, y);
    });
}
