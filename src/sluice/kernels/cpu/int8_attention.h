// Attention's two products over pages of int8, whose keys and values have a scale for each token.
//
// Keys are stored rotated (`hadamard.h`), so queries are rotated in the same way. Queries are rounded to sixteen bits by their largest element, and the weights of a row, times the scales of their
// values, by the largest in a block. So a query is at most 1/65534 of its largest element off, and a weight as much of the
// largest one in its block. The products are of integers and their sums are exact: 512 products of a word and a byte, or
// 256, fit into 32 bits. Therefore the result is the same for any number of rows or columns that are computed together.
// A key's scale multiplies its score.

// Pages of int8 beside queries of `Element`.
template <class Element>
struct Int8Pages {
    using E = Element;
    using P = int8_t;
    using A = int16_t;
    static constexpr int SCALE = sizeof(float);
};

constexpr float MOST_WORD = 32767.0f, TINY = 1e-30f;    // below TINY an inverse would not be finite

template <class X>
void round_queries(const Tile<X>& tile, Scratch<X>& scratch) {
    const AttentionCall& call = tile.call;
    for (int row = 0; row < tile.rows; row++) {
        const int64_t at = tile.token(row) * call.q_stride + tile.head(row) * call.head_dim;
        const auto* from = static_cast<const typename X::E*>(call.q) + at;
        int16_t* to = scratch.q + row * scratch.width;
        alignas(64) float wide[MAX_HEAD_DIM];
        for (int i = 0; i < call.head_dim; i += 16) store(wide + i, load(from + i));
        rotate_head(wide, call.head_dim);
        F tops = set(0.0f), bad = set(0.0f);    // a maximum may lose NaN, a sum does not
        for (int i = 0; i < call.head_dim; i += 16) {
            const F x = load(wide + i);
            tops = max(tops, max(x, sub(set(0.0f), x)));
            bad = fma(x, set(0.0f), bad);
        }
        const float top = hmax(tops), inverse = top < TINY || !std::isfinite(top) ? 0.0f : MOST_WORD / top;
        // The rotation made query and key longer.
        scratch.q_scales[row] = top / MOST_WORD / static_cast<float>(rotated_size(call.head_dim)) + hsum(bad);
        for (int i = 0; i < call.head_dim; i += 16) store_words(to + i, mul(load(wide + i), set(inverse)));
    }
}

// Copy the scales of a block's tokens. Those of no key are 0: memory that was never written may hold NaN.
template <class X>
void copy_scales(const Block& block, const typename X::P* const* pieces, int head_dim, float* to) {
    for (int i = 0; i < block.groups; i++) std::memcpy(to + 16 * i, pieces[i] + 16 * head_dim, 16 * sizeof(float));
    std::fill(to, to + (block.keys.low - block.start), 0.0f);
    std::fill(to + (block.keys.high - block.start), to + 16 * block.groups, 0.0f);
}

// scores[m][16 n] = q[m][..] * keys[n], for the first N pieces, without scales.
template <int M, int N>
void times_int8_keys(const int16_t* q, int64_t q_stride, const int8_t* const* keys, int pairs, float* scores,
                     int64_t stride) {
    I sums[M * N];
    Words right[N];
    UNROLLED for (int i = 0; i < M * N; i++) sums[i] = no_sums();
    for (int pair = 0; pair < pairs; pair += 2) {    // a cache line
        UNROLLED for (int half = 0; half < 2; half++, q += 2) {
            UNROLLED for (int n = 0; n < N; n++) {
                if (half == 0) fetch(keys[n + AHEAD] + 32 * pair);
                right[n] = load_words(keys[n] + 32 * (pair + half));
            }
            UNROLLED for (int i = 0; i < M * N; i++) sums[i] = dot(sums[i], q + i / N * q_stride, right[i % N]);
        }
    }
    UNROLLED for (int i = 0; i < M * N; i++) store(scores + i / N * stride + i % N * 16, to_float(sums[i]));
}

template <class X>
void int8_scores(const Tile<X>& tile, const Block& block, Scratch<X>& scratch) {
    const int d = tile.call.head_dim;
    const Pieces<X> keys(tile, block, tile.call.k, tile.call.v, block.start);
    copy_scales<X>(block, keys.at, d, scratch.k_scales);
    in_pieces(tile.rows, block.groups, [&](auto m, auto n, int row, int group) {
        times_int8_keys<m, n>(scratch.q + row * scratch.width, scratch.width, keys.at + group, d / 2,
                              scratch.s + row * BLOCK + 16 * group, BLOCK);
    });
    const Pieces<X> values(tile, block, tile.call.v, tile.call.k, block.start);
    copy_scales<X>(block, values.at, d, scratch.v_scales);
}

// Round the weights of a row, which are in the place of its scores, times the scales of their values.
template <class X>
void round_weights(const Block& block, Scratch<X>& scratch, int row) {
    float* s = scratch.s + row * BLOCK;
    F tops = set(0.0f), bad = set(0.0f);
    for (int i = 0; i < block.groups; i++) {
        const F weight = mul(load(s + 16 * i), load(scratch.v_scales + 16 * i));
        store(s + 16 * i, weight);
        tops = max(tops, weight);
        bad = fma(weight, set(0.0f), bad);
    }
    const float top = hmax(tops), inverse = top < TINY || !std::isfinite(top) ? 0.0f : MOST_WORD / top;
    scratch.p_scales[row] = top / MOST_WORD + hsum(bad);
    for (int i = 0; i < block.groups; i++) {
        store_words(scratch.p + row * BLOCK + 16 * i, mul(load(s + 16 * i), set(inverse)));
    }
}

// out[m][16 n] (+)= weights[m][..] * scales[m] * values, for their elements from `column` on. TOGETHER pieces are read in
// parallel.
template <int M, int N>
void times_int8_values(const int16_t* weights, const float* scales, const int8_t* const* values, int pieces, int column,
                       int d, float* out, bool accumulate) {
    constexpr int TOGETHER = 4;
    I sums[M * N];
    Words right[N];
    UNROLLED for (int i = 0; i < M * N; i++) sums[i] = no_sums();
    for (int first = 0; first < pieces; first += TOGETHER) {
        const int until = std::min(pieces, first + TOGETHER);
        for (int pair = 0; pair < 8; pair++) {
            const int64_t offset = 2 * column + 2 * static_cast<int64_t>(d) * pair;
            for (int piece = first; piece < until; piece++) {
                const int16_t* left = weights + 16 * piece + 2 * pair;
                UNROLLED for (int n = 0; n < N; n++) {
                    if (n % 2 == 0) fetch(values[piece + AHEAD] + offset + 32 * n);
                    right[n] = load_words(values[piece] + offset + 32 * n);
                }
                UNROLLED for (int i = 0; i < M * N; i++) sums[i] = dot(sums[i], left + i / N * BLOCK, right[i % N]);
            }
        }
    }
    UNROLLED for (int i = 0; i < M * N; i++) {
        float* to = out + i / N * static_cast<int64_t>(d) + i % N * 16;
        store(to, fma(to_float(sums[i]), set(scales[i / N]), accumulate ? load(to) : set(0.0f)));
    }
}

template <class X>
void add_int8_values(const Tile<X>& tile, const Block& block, Scratch<X>& scratch, bool accumulate) {
    const Pieces<X> values(tile, block, tile.call.v, tile.call.k, block.start + 16 * block.groups);
    const int d = tile.call.head_dim;
    in_pieces(tile.rows, d / 16, [&](auto m, auto n, int row, int vector) {
        times_int8_values<m, n>(scratch.p + row * BLOCK, scratch.p_scales + row, values.at, block.groups, 16 * vector, d,
                                scratch.split.out + static_cast<int64_t>(row) * d + 16 * vector, accumulate);
    });
}
