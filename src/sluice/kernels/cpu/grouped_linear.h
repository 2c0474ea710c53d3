// y = f(x W^T + bias) over weights in groups (`models/grouped.py` defines it). The sums of a group of inputs are of
// integers and exact. Scaled, they are added in the order of the groups and of the runs, each with one rounding.
//
// A run of x, 32 inputs with one scale, is a part of a packed weight. A few rows are multiplied with the packed weights
// themselves. For more rows, some parts of a block of outputs are unpacked once, into bytes that stay in the first-level
// cache. Outliers of x are multiplied by themselves, with what the weights stand for.

// Store the values of a run as bytes, and their sums.
INL void put_run(uint8_t* to, int32_t* totals, const F* values) {
    for (int i = 0; i < PART / GROUP_STEP; i++, to += GROUP_STEP) {
        store_bytes(to, values[i], 0);
        int32_t total = 0;
        for (int j = 0; j < GROUP_STEP; j++) total += static_cast<int8_t>(to[j]);
        totals[i] = total;
    }
}

// Quantise one run, without its outliers: they count as zeros. If its largest magnitude is not finite, or the inverse of
// that, all do. `total`: of the largest magnitudes of the row's runs.
INL void quantize_run(const GroupedWork& work, const uint16_t* x, int row, int run, double total) {
    const int64_t at = work.run_of(row, run);
    const int runs = work.call.in / PART;
    float largest = work.scales[at];
    uint16_t inside[PART];
    uint32_t marks = 0;
    if (static_cast<double>(largest) * runs > total) {
        for (int i = 0; i < PART; i++) {
            const bool is_outlier = static_cast<double>(widen(x[i] & 0x7fff)) * runs > total;
            marks |= static_cast<uint32_t>(is_outlier) << i;
            inside[i] = is_outlier ? 0 : x[i];
        }
        x = inside;
        largest = widen(largest_bits(x, PART));
    }
    work.outliers.marks[static_cast<int64_t>(run) * work.call.rows + row] = marks;
    const bool is_zero = largest < 1e-30f;
    work.scales[at] = is_zero ? 0.0f : largest / 127.0f;
    F values[PART / GROUP_STEP];
    for (int i = 0; i < PART / GROUP_STEP; i++) {
        values[i] = set(0.0f);
        if (is_zero || !std::isfinite(largest)) continue;
        values[i] = round(mul(load(x + i * GROUP_STEP), set(127.0f / largest)));
    }
    put_run(work.values + row * work.stride + run * PART, work.totals + at * (PART / GROUP_STEP), values);
}

// Quantise rows `from` to `until` of x in runs, sum their values in groups of 16, and mark their outliers: what is larger
// than the mean of the largest magnitudes of the row's runs.
inline void quantize_runs(const GroupedWork& work, int from, int until) {
    const int runs = work.call.in / PART;
    for (int row = from; row < until; row++) {
        const auto* x = static_cast<const uint16_t*>(work.call.x) + row * work.call.x_stride;
        double total = 0.0;
        for (int run = 0; run < runs; run++) {
            total += work.scales[work.run_of(row, run)] = widen(largest_bits(x + run * PART, PART));
        }
        for (int run = 0; run < runs; run++) quantize_run(work, x + run * PART, row, run, total);
    }
}

// A part of some rows that are neighbours.
struct PartOfRows {
    const uint8_t* first;
    const int32_t* first_totals;
    int64_t stride, totals_stride;

    INL_MEMBER const uint8_t* values(int m) const { return first + m * stride; }
    INL_MEMBER const int32_t* totals(int m) const { return first_totals + m * totals_stride; }
};

// Add the products of one group to `sums`.
template <class Kind, int M, class Source>
INL void add_products(const Source& source, const PartOfRows& rows, int group, I* sums) {
    constexpr int QUADS = Kind::GROUP / 4;
    constexpr bool SHORT = IN_SHORTS && !Kind::IS_SIGNED && Kind::IN_SHORT > 1;
    constexpr int TOGETHER = SHORT && Kind::IN_SHORT > 4 ? QUADS : SHORT ? Kind::IN_SHORT : 4;
    for (int first = 0; first < QUADS; first += TOGETHER) {
        const int offset = group * Kind::GROUP + 4 * first;
        Shorts shorts[M * 2];
        if constexpr (SHORT) {
            UNROLLED for (int i = 0; i < M * 2; i++) shorts[i] = Shorts{};
        }
        UNROLLED_QUADS for (int quad = 0; quad < TOGETHER; quad++) {
            Bytes right[2];
            source.load(group * QUADS + first, quad, right);
            UNROLLED for (int i = 0; i < M * 2; i++) {
                const uint8_t* left = rows.values(i / 2) + offset + 4 * quad;
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

// Multiply a part of M rows with a part of a block, into found[M][2], without the scales of x.
template <class Kind, int M, class Source>
INL void multiply_part(const Source& source, const PartOfRows& rows, F* found) {
    constexpr int GROUPS = PART / Kind::GROUP;
    UNROLLED_QUADS for (int group = 0; group < GROUPS; group++) {
        int32_t total[M];
        UNROLLED for (int m = 0; m < M; m++) {
            const int32_t* of_row = rows.totals(m);
            total[m] = GROUPS == 2 ? of_row[group] : of_row[0] + of_row[1];
        }
        I sums[M * 2];
        UNROLLED for (int i = 0; i < M * 2; i++) sums[i] = set_sums(-Kind::ZERO * total[i / 2]);
        add_products<Kind, M>(source, rows, group, sums);
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
}

// What the numbers and scales of one input of a part stand for, of 32 outputs.
template <class Kind, class Source>
INL void widen_input(const Source& source, int k, F* weights) {
    Bytes numbers[2];
    F scales[2], minimums[2];
    source.load(k / 16 * 4, k / 4 % 4, numbers);
    source.scales(k / Kind::GROUP, scales, minimums);
    UNROLLED for (int n = 0; n < 2; n++) {
        F number = number_of(numbers[n], k % 4, Kind::IS_SIGNED);
        if constexpr (!Kind::IS_SIGNED) number = sub(number, set(Kind::ZERO));
        if constexpr (Kind::HAS_MINIMUMS) weights[n] = fused(number, scales[n], minimums[n]);
        else weights[n] = mul(number, scales[n]);
    }
}

// Add the outliers in one run of rows `from` to `until`, times a part of a block, to `to` [until - from][32].
template <class Kind, class Source>
void add_outliers(const GroupedWork& work, const Source& source, int run, int from, int until, float* to) {
    int input = -1;
    F weights[2];
    for (const Outlier& outlier : work.outliers.of(run)) {
        if (outlier.row < from || outlier.row >= until) continue;
        if (outlier.input != input) widen_input<Kind>(source, (input = outlier.input) % PART, weights);
        float* at = to + (outlier.row - from) * PACKED_BLOCK;
        UNROLLED for (int n = 0; n < 2; n++) {
            store(at + 16 * n, fused(set(outlier.x), weights[n], load(at + 16 * n)));
        }
    }
}

// Multiply M rows with some parts of a block, from part `first` on, and add that to `to` [M][32]; and their outliers to
// `outliers` [M][32], if it is not null.
template <class Kind, int M, class Source>
INL void add_parts(Source& source, const GroupedWork& work, int row, int first, int parts, float* to, float* outliers) {
    constexpr int STEPS = PART / GROUP_STEP;
    const int runs = work.call.in / PART;
    PartOfRows x{work.values + row * work.stride + first * PART, work.totals + work.run_of(row, first) * STEPS,
                 work.stride, runs * STEPS};
    const float* scales = work.scales + work.run_of(row, first);
    F y[M * 2];
    UNROLLED for (int i = 0; i < M * 2; i++) y[i] = first == 0 ? set(0.0f) : load(to + 16 * i);
    for (int part = 0; part < parts; part++, x.first += PART, x.first_totals += STEPS) {
        source.begin();
        F found[M * 2];
        multiply_part<Kind, M>(source, x, found);
        UNROLLED for (int i = 0; i < M * 2; i++) y[i] = fused(found[i], set(scales[i / 2 * runs + part]), y[i]);
        if (outliers) add_outliers<Kind>(work, source, first + part, row, row + M, outliers);
        source.end();
    }
    UNROLLED for (int i = 0; i < M * 2; i++) store(to + 16 * i, y[i]);
}

// All parts of `rows` rows, at most M, with packed weights.
template <class Type, int M>
void add_packed(int rows, const GroupedWork& work, int row, const uint8_t* block, float* to, float* outliers) {
    if constexpr (M > 1) {
        if (rows < M) return add_packed<Type, M - 1>(rows, work, row, block, to, outliers);
    }
    PackedSource<Type> source(block);
    add_parts<KindOf<Type>, M>(source, work, row, 0, work.call.in / PART, to, outliers);
}

// Some parts of `rows` rows, at most M, with weights that are unpacked.
template <class Kind, int M>
void add_unpacked(int rows, const GroupedWork& work, int row, int first, int parts, UnpackedSource<Kind> source,
                  float* to) {
    if constexpr (M > 1) {
        if (rows < M) return add_unpacked<Kind, M - 1>(rows, work, row, first, parts, source, to);
    }
    add_parts<Kind, M>(source, work, row, first, parts, to, nullptr);
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

// Multiply rows `from` to `until` with one block of a part that is unpacked, into sums [rows][32]. Behind `outliers`, as
// many numbers, is memory for some unpacked parts. `unpack`: unpacks the next parts.
template <class Kind, class Unpack>
void multiply_unpacked(const GroupedWork& work, int from, int until, float* sums, float* outliers, Unpack unpack) {
    const int all = work.call.in / PART;
    float* scales = outliers + GROUPED_SUMS;
    auto* bytes = reinterpret_cast<uint8_t*>(scales + 2 * GROUPED_SCALES);
    for (int first = 0; first < all; first += UNPACKED_PARTS) {
        const int parts = std::min(UNPACKED_PARTS, all - first);
        unpack(parts, bytes, scales);
        UnpackedSource<Kind> unpacked(bytes, scales);
        packed_pieces(from, until, GROUPED_ROWS, [&](int row, int count) {
            float* to = sums + (row - from) * PACKED_BLOCK;
            add_unpacked<Kind, GROUPED_ROWS>(count, work, row, first, parts, unpacked, to);
        });
        for (int run = first; run < first + parts; run++, unpacked.end()) {
            add_outliers<Kind>(work, unpacked, run, from, until, outliers);
        }
    }
}

// Multiply rows `from` to `until` with one block of a part, into sums [rows][32].
template <class Type>
void multiply_block(const GroupedWork& work, const uint8_t* weight, int block, int from, int until, float* sums,
                    float* outliers) {
    using Kind = KindOf<Type>;
    const int rows = until - from;
    const uint8_t* packed = weight + block * Packed<Type>::block_bytes(work.call.in);
    std::fill(outliers, outliers + rows * PACKED_BLOCK, 0.0f);
    if constexpr (IS_TILED<Type>) {
        multiply_unpacked<Kind>(work, from, until, sums, outliers, Records(Type(), packed));
    } else if (rows <= FUSED_ROWS) {
        add_packed<Type, FUSED_ROWS>(rows, work, from, packed, sums, outliers);
    } else {
        PackedSource<Type> source(packed);
        multiply_unpacked<Kind>(work, from, until, sums, outliers, [&](int parts, uint8_t* bytes, float* scales) {
            unpack_parts(source, parts, bytes, scales);
        });
    }
    for (int i = 0; i < rows * PACKED_BLOCK; i += 16) store(sums + i, add(load(sums + i), load(outliers + i)));
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
    packed_finish(work.finish, sums, gated_sums, bias, gated_bias, until - from, width, from * call.y_stride + column);
}
