// y = f(x W^T + bias) over quantised weights. Each row of x is quantised first, symmetrically, by its largest magnitude. Its
// result depends on that row alone.

// Return the bits of the largest magnitude of a row. As integers, those of an infinite value and of no number are larger
// than all others, so the scale shows them.
INL uint16_t largest_bits(const uint16_t* x, int size) {
    uint16_t largest = 0;
    for (int k = 0; k < size; k++) largest = std::max<uint16_t>(largest, x[k] & 0x7fff);
    return largest;
}

// Sum the bytes of each group of a row. Where 8 stands for zero, what its sums start at.
INL void sum_groups(const QuantizedCall& call, int row) {
    const auto* x = reinterpret_cast<const int8_t*>(call.values + row * call.stride);
    const int group = call.linear.group, factor = call.linear.minimums ? 1 : -NIBBLE_ZERO;
    int32_t* to = call.group_sums + static_cast<int64_t>(row) * (call.linear.in / group);
    for (int k = 0; k < call.linear.in; k += group) {
        int32_t sum = 0;
        for (int i = 0; i < group; i++) sum += x[k + i];
        *to++ = factor * sum;
    }
}

// Quantise rows `from` to `until` of x, and sum their groups for weights of four bits.
inline void quantize_rows(const QuantizedCall& call, int from, int until) {
    for (int row = from; row < until; row++) {
        const auto* x = static_cast<const uint16_t*>(call.linear.x) + row * call.linear.x_stride;
        uint8_t* to = call.values + row * call.stride;
        const int size = call.linear.in, whole = size / 16 * 16, offset = call.linear.group ? 0 : BYTE_OFFSET;
        const float largest = widen(largest_bits(x, size));
        const bool is_zero = largest < 1e-30f;    // the inverse of its scale would not be finite
        call.scales[row] = is_zero ? 0.0f : largest / 127.0f;
        if (is_zero || !std::isfinite(largest)) {
            std::memset(to, offset, call.stride);
            if (call.linear.group) sum_groups(call, row);
            continue;
        }
        const float inverse = 127.0f / largest;
        for (int k = 0; k < whole; k += 16) store_bytes(to + k, round(mul(load(x + k), set(inverse))), offset);
        if (whole < size) {
            uint16_t rest[16] = {};
            std::memcpy(rest, x + whole, sizeof(uint16_t) * (size - whole));
            store_bytes(to + whole, round(mul(load(rest), set(inverse))), offset);    // rows have room for whole vectors
        }
        if (call.linear.group) sum_groups(call, row);
    }
}

// Multiply rows `from` to `until` with one block, and with the block that it gates.
template <class Tiles>
void quantized_linear_block(const QuantizedCall& call, int block, int from, int until, float* buffer) {
    const PackedLinearCall& linear = call.linear;
    const int column = block * PACKED_BLOCK, width = std::min<int>(PACKED_BLOCK, linear.out - column);
    float bias[PACKED_BLOCK], gated_bias[PACKED_BLOCK];
    packed_bias(linear, column, width, bias);
    if (linear.is_gated) packed_bias(linear, linear.out + column, width, gated_bias);
    float *sums = buffer, *gated_sums = linear.is_gated ? buffer + 32 * PACKED_BLOCK : nullptr;
    const auto in_pieces_of = [&](int most, auto multiply) {
        packed_pieces(from, until, most, [&](int row, int rows) {
            multiply(row, rows, column, sums);
            if (gated_sums) multiply(row, rows, linear.out + column, gated_sums);
            packed_finish(linear, sums, gated_sums, bias, gated_bias, rows, width, row * linear.y_stride + column);
        });
    };
    if constexpr (!std::is_same_v<Tiles, NoTiles>) {
        if (!linear.group && until - from > BYTE_ROWS && linear.in % 64 == 0) {
            Tiles tiles;
            return in_pieces_of(32, [&](int row, int rows, int first, float* to) {
                int8_tiles(tiles, call, row, rows, first, to);
            });
        }
    }
    in_pieces_of(BYTE_ROWS, [&](int row, int rows, int first, float* to) {
        if (linear.group) int4_multiply(call, row, rows, first, to);
        else int8_multiply(call, row, rows, first, to);
    });
}
