// Products with weights of four bits in the layout of `packing.h`. The sums of a group of inputs are of integers and exact;
// scaled, they are added in the order of the groups, each with one rounding.

// What a weight of four bits has for the outputs of one block: [groups][32] each.
struct GroupScales {
    const void* scales;
    const void* minimums;    // or null
    int type;
};

INL F load_scales(const void* values, int type, int64_t i) {
    if (type == FLOAT_SCALES) return load(static_cast<const float*>(values) + i);
    const uint16_t* halves = static_cast<const uint16_t*>(values) + i;
    return type == BFLOAT16_SCALES ? load(halves) : load_float16(halves);
}

// Multiply M rows of x with one block, into sums[M][32], scaled.
template <int M, bool HAS_MINIMUMS>
void int4_tile(const QuantizedCall& call, int row, const uint8_t* block, const GroupScales& weight, float* to) {
    const int groups = call.linear.in / call.linear.group, quads = call.linear.group / 4;
    const uint8_t* x = call.values + row * call.stride;
    const int32_t* totals = call.group_sums + static_cast<int64_t>(row) * groups;
    F found[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) found[i] = set(0.0f);
    for (int group = 0; group < groups; group++) {
        I sums[M * 2];
        UNROLLED for (int i = 0; i < M * 2; i++) {
            sums[i] = HAS_MINIMUMS ? set_sums(0) : set_sums(totals[i / 2 * groups + group]);
        }
        for (int quad = 0; quad < quads; quad++, block += 2 * PACKED_BLOCK, x += 4) {
            __builtin_prefetch(block + PACKED_AHEAD);
            Bytes right[2];
            load_nibbles(block, right);
            UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = nibble_dot(sums[i], x + i / 2 * call.stride, right[i % 2]);
        }
        F scales[2], minimums[2];
        UNROLLED for (int n = 0; n < 2; n++) {
            const int64_t at = group * PACKED_BLOCK + n * 16;
            scales[n] = load_scales(weight.scales, weight.type, at);
            if constexpr (HAS_MINIMUMS) minimums[n] = load_scales(weight.minimums, weight.type, at);
        }
        UNROLLED for (int i = 0; i < M * 2; i++) {
            found[i] = fused(to_float(sums[i]), scales[i % 2], found[i]);
            if constexpr (HAS_MINIMUMS) {
                found[i] = fused(to_float(set_sums(totals[i / 2 * groups + group])), minimums[i % 2], found[i]);
            }
        }
    }
    UNROLLED for (int i = 0; i < M * 2; i++) store(to + i * 16, mul(found[i], set(call.scales[row + i / 2])));
}

template <int M>
void int4_tile_of(int rows, const QuantizedCall& call, int row, const uint8_t* block, const GroupScales& weight,
                  float* to) {
    if (rows == M) {
        const auto tile = weight.minimums ? int4_tile<M, true> : int4_tile<M, false>;
        return tile(call, row, block, weight, to);
    }
    if constexpr (M > 1) int4_tile_of<M - 1>(rows, call, row, block, weight, to);
}

// Multiply `rows` rows with the block that begins at output `first`.
INL void int4_multiply(const QuantizedCall& call, int row, int rows, int first, float* to) {
    const PackedLinearCall& linear = call.linear;
    const auto* block = static_cast<const uint8_t*>(linear.weight) + static_cast<int64_t>(first) * linear.in / 2;
    const int type = linear.scale_type;
    const int64_t skipped = static_cast<int64_t>(first) * (linear.in / linear.group) * (type == FLOAT_SCALES ? 4 : 2);
    const auto from = [&](const void* p) { return p ? static_cast<const char*>(p) + skipped : nullptr; };
    int4_tile_of<BYTE_ROWS>(rows, call, row, block, {from(linear.scales), from(linear.minimums), type}, to);
}
