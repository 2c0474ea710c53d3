// y = f(x W^T + bias) over weights in groups (`models/grouped.py` defines it). The sums of a group of inputs are of
// integers and exact. Scaled, they are added in the order of the groups and of the runs, each with one rounding.
//
// A run of x, 32 inputs with one scale, is a part of a packed weight. A few rows are multiplied with the packed weights
// themselves. For more rows, some parts of a block of outputs are unpacked once, into bytes that stay in the first-level
// cache.

// Quantise rows `from` to `until` of x in runs, and sum their values in groups of 16.
inline void quantize_runs(const GroupedWork& work, int from, int until) {
    const GroupedLinearCall& call = work.call;
    for (int row = from; row < until; row++) {
        const auto* x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
        uint8_t* to = work.values + row * work.stride;
        float* scales = work.scales + static_cast<int64_t>(row) * (call.in / PART);
        int32_t* totals = work.totals + static_cast<int64_t>(row) * (call.in / GROUP_STEP);
        for (int k = 0; k < call.in; k += PART, x += PART, to += PART, totals += PART / GROUP_STEP) {
            const float largest = widen(largest_bits(x, PART));
            const bool is_zero = largest < 1e-30f;    // the inverse of its scale would not be finite
            *scales++ = is_zero ? 0.0f : largest / 127.0f;
            if (is_zero || !std::isfinite(largest)) {
                std::memset(to, 0, PART);
                std::memset(totals, 0, sizeof *totals * (PART / GROUP_STEP));
                continue;
            }
            const F inverse = set(127.0f / largest);
            for (int i = 0; i < PART; i += GROUP_STEP) {
                store_bytes(to + i, round(mul(load(x + i), inverse)), 0);
                int32_t total = 0;
                for (int j = 0; j < GROUP_STEP; j++) total += static_cast<int8_t>(to[i + j]);
                totals[i / GROUP_STEP] = total;
            }
        }
    }
}

// Some rows of x, from some input on.
struct RowsOfParts {
    const uint8_t* x;
    const int32_t* totals;
    const float* scales;
    int64_t x_stride, totals_stride, scales_stride;
    int parts;
    bool is_first;    // they begin with the first input
};

INL RowsOfParts rows_of_parts(const GroupedWork& work, int row, int first, int parts) {
    const int runs = work.call.in / PART, in_row = work.call.in / GROUP_STEP;
    return {work.values + row * work.stride + first * PART,
            work.totals + static_cast<int64_t>(row) * in_row + first * (PART / GROUP_STEP),
            work.scales + static_cast<int64_t>(row) * runs + first,
            work.stride, in_row, runs, parts, first == 0};
}

// Add the products of one group to `sums`.
template <class Kind, int M, class Source>
INL void add_products(const Source& source, const uint8_t* x, int64_t stride, int group, I* sums) {
    constexpr int QUADS = Kind::GROUP / 4;
    constexpr bool SHORT = IN_SHORTS && !Kind::IS_SIGNED;
    constexpr int TOGETHER = SHORT && Kind::IN_SHORT > 4 ? QUADS : SHORT ? Kind::IN_SHORT : 4;
    for (int first = 0; first < QUADS; first += TOGETHER, x += 4 * TOGETHER) {
        Shorts shorts[M * 2];
        if constexpr (SHORT) {
            UNROLLED for (int i = 0; i < M * 2; i++) shorts[i] = Shorts{};
        }
        UNROLLED_QUADS for (int quad = 0; quad < TOGETHER; quad++) {
            Bytes right[2];
            source.load(group * QUADS + first, quad, right);
            UNROLLED for (int i = 0; i < M * 2; i++) {
                const uint8_t* left = x + i / 2 * stride + 4 * quad;
                if constexpr (SHORT) shorts[i] = short_dot(shorts[i], left, right[i % 2]);
                else if constexpr (Kind::IS_SIGNED) sums[i] = signed_dot(sums[i], left, right[i % 2]);
                else sums[i] = nibble_dot(sums[i], left, right[i % 2]);
            }
        }
        if constexpr (SHORT) {
            UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = add_shorts(sums[i], shorts[i]);
        }
    }
}

// Multiply M rows with some parts of a block, and add that to `to` [M][32].
template <class Kind, int M, class Source>
INL void add_parts(Source& source, const RowsOfParts& rows, float* to) {
    constexpr int GROUPS = PART / Kind::GROUP;
    const uint8_t* x = rows.x;
    const int32_t* totals = rows.totals;
    F y[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) y[i] = rows.is_first ? set(0.0f) : load(to + 16 * i);
    for (int part = 0; part < rows.parts; part++, x += PART, totals += PART / GROUP_STEP) {
        source.begin();
        F found[M * 2];
        UNROLLED_QUADS for (int group = 0; group < GROUPS; group++) {
            int32_t total[M];
            UNROLLED for (int m = 0; m < M; m++) {
                const int32_t* of_row = totals + m * rows.totals_stride;
                total[m] = GROUPS == 2 ? of_row[group] : of_row[0] + of_row[1];
            }
            I sums[M * 2];
            UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = set_sums(-Kind::ZERO * total[i / 2]);
            add_products<Kind, M>(source, x + group * Kind::GROUP, rows.x_stride, group, sums);
            F scales[2], minimums[2];
            source.scales(group, scales, minimums);
            UNROLLED for (int i = 0; i < M * 2; i++) {
                const F sum = to_float(sums[i]);
                found[i] = group == 0 ? mul(sum, scales[i % 2]) : fused(sum, scales[i % 2], found[i]);
                if constexpr (Kind::HAS_MINIMUMS) {
                    found[i] = fused(set(static_cast<float>(total[i / 2])), minimums[i % 2], found[i]);
                }
            }
        }
        UNROLLED for (int i = 0; i < M * 2; i++) {
            y[i] = fused(found[i], set(rows.scales[i / 2 * rows.scales_stride + part]), y[i]);
        }
        source.end();
    }
    UNROLLED for (int i = 0; i < M * 2; i++) store(to + 16 * i, y[i]);
}

// All parts of `rows` rows, at most M, with packed weights.
template <class Type, int M>
void add_packed(int rows, const GroupedWork& work, int row, const uint8_t* block, float* to) {
    if constexpr (M > 1) {
        if (rows < M) return add_packed<Type, M - 1>(rows, work, row, block, to);
    }
    PackedSource<Type> source(block);
    add_parts<KindOf<Type>, M>(source, rows_of_parts(work, row, 0, work.call.in / PART), to);
}

// Some parts of `rows` rows, at most M, with weights that are unpacked.
template <class Kind, int M>
void add_unpacked(int rows, const RowsOfParts& of_x, const uint8_t* bytes, const float* scales, float* to) {
    if constexpr (M > 1) {
        if (rows < M) return add_unpacked<Kind, M - 1>(rows, of_x, bytes, scales, to);
    }
    UnpackedSource<Kind> source(bytes, scales);
    add_parts<Kind, M>(source, of_x, to);
}

// Unpack the next parts: bytes [4 inputs][32 outputs][4], scales [groups][32], minimums behind them.
template <class Type>
void unpack_parts(PackedSource<Type>& source, int parts, uint8_t* bytes, float* scales) {
    for (int part = 0; part < parts; part++) {
        source.begin();
        for (int first = 0; first < PART / 4; first += 4, bytes += 4 * 128) {
            UNROLLED_QUADS for (int quad = 0; quad < 4; quad++) {
                Bytes both[2];
                source.load(first, quad, both);
                put_bytes(bytes + 128 * quad, both[0]), put_bytes(bytes + 128 * quad + 64, both[1]);
            }
        }
        for (int group = 0; group < PART / Type::GROUP; group++, scales += PACKED_BLOCK) {
            F scale[2], minimum[2];
            source.scales(group, scale, minimum);
            UNROLLED for (int n = 0; n < 2; n++) {
                store(scales + 16 * n, scale[n]);
                if constexpr (Type::HAS_MINIMUMS) store(scales + GROUPED_SCALES + 16 * n, minimum[n]);
            }
        }
        source.end();
    }
}

// Multiply rows `from` to `until` with one block of a part, into sums [rows][32]. `unpacked` is memory for some parts.
template <class Type>
void multiply_block(const GroupedWork& work, const uint8_t* weight, int block, int from, int until, float* sums,
                    float* unpacked) {
    const int all = work.call.in / PART;
    const uint8_t* packed = weight + block * Packed<Type>::block_bytes(work.call.in);
    if (until - from <= FUSED_ROWS) return add_packed<Type, FUSED_ROWS>(until - from, work, from, packed, sums);
    auto* bytes = reinterpret_cast<uint8_t*>(unpacked + 2 * GROUPED_SCALES);
    PackedSource<Type> source(packed);
    for (int first = 0; first < all; first += UNPACKED_PARTS) {
        const int parts = std::min(UNPACKED_PARTS, all - first);
        unpack_parts(source, parts, bytes, unpacked);
        packed_pieces(from, until, GROUPED_ROWS, [&](int row, int rows) {
            float* to = sums + (row - from) * PACKED_BLOCK;
            add_unpacked<KindOf<Type>, GROUPED_ROWS>(rows, rows_of_parts(work, row, first, parts), bytes, unpacked, to);
        });
    }
}

// Compute one block of the outputs of a part, for rows `from` to `until`; if gated, with its block of the part behind it.
inline void grouped_block(const GroupedWork& work, int number, int block, int from, int until, float* buffer) {
    const GroupedLinearCall& call = work.call;
    const GroupedPart* part = call.parts + number;
    int column = block * PACKED_BLOCK;
    const int width = std::min<int>(PACKED_BLOCK, part->out - column);
    for (int i = 0; i < number; i++) column += call.parts[i].out;
    float bias[PACKED_BLOCK], gated_bias[PACKED_BLOCK];
    packed_bias(work.finish, column, width, bias);
    if (call.is_gated) packed_bias(work.finish, part->out + column, width, gated_bias);
    float *sums = buffer, *gated_sums = call.is_gated ? buffer + GROUPED_SUMS : nullptr;
    const auto multiply = [&](const GroupedPart& of, float* to) {
        with_stored_type(of.type, [&](auto stored) {
            multiply_block<decltype(stored)>(work, of.weight, block, from, until, to, buffer + 2 * GROUPED_SUMS);
        });
    };
    multiply(*part, sums);
    if (gated_sums) multiply(part[1], gated_sums);
    uint16_t* y = static_cast<uint16_t*>(call.y) + from * call.y_stride + column;
    packed_finish(work.finish, sums, gated_sums, bias, gated_bias, until - from, width, y);
}
