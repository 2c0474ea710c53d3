// The two products of attention, a few rows with sixteen columns at a time.
//
// The left side holds rows, the right side packed columns: at each step KP elements of the summed dimension for sixteen
// columns. Each sum has one accumulator, and its order depends only on positions. So the result of a row does not depend
// on the number of rows or columns that are computed with it.
//
// The right side is a list of pieces of sixteen keys or values, far apart in memory. While one piece is read, the piece
// AHEAD places later in the list is prefetched; for this the list continues with the pieces that are read next.
constexpr int AHEAD = 4;

// Prefetch into the second-level cache.
INL void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// float32 on both sides.
struct Float32 {
    using E = float;    // elements of queries and results
    using P = float;    // elements of the right side: pages
    using A = float;    // elements of the left side
    static constexpr int SCALE = 0;    // elements of a token's scale
    using B = F;
    static constexpr int KP = 1;
    INL B right(const E* p) { return load(p); }
    INL F step(F sum, const A* a, B b) { return fma(set(a[0]), b, sum); }
    INL F half_step(F sum, const A*, B) { return sum; }
};

// bfloat16 on the right, widened; on the left float32, or (`Left` uint16_t) bfloat16 too.
template <class Left>
struct Widened {
    using E = uint16_t;
    using P = uint16_t;
    using A = Left;
    static constexpr int SCALE = 0;
    struct B {
        F even, odd;
    };
    static constexpr int KP = 2;
    INL B right(const E* p) { return {even(p), odd(p)}; }
    INL F step(F sum, const A* a, B b) { return fma(set(as_float(a[1])), b.odd, half_step(sum, a, b)); }
    INL F half_step(F sum, const A* a, B b) { return fma(set(as_float(a[0])), b.even, sum); }
};

#ifdef SLUICE_BF16_DOT
// bfloat16 on both sides, two products at a time.
struct Dotted {
    using E = uint16_t;
    using P = uint16_t;
    using A = uint16_t;
    static constexpr int SCALE = 0;
    using B = __m512i;
    static constexpr int KP = 2;
    INL B right(const E* p) { return _mm512_loadu_si512(p); }
    INL __m512bh left(const A* a) {
        int32_t pair;
        std::memcpy(&pair, a, sizeof pair);
        return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
    }
    INL F step(F sum, const A* a, B b) {
        return {_mm512_dpbf16_ps(sum.v, left(a), reinterpret_cast<__m512bh>(b))};
    }
    INL F half_step(F sum, const A* a, B b) { return step(sum, a, _mm512_and_si512(b, _mm512_set1_epi32(0xffff))); }
};
using Bf16 = Dotted;
using Bf16BesideTiles = Dotted;
#else
using Bf16 = Widened<float>;
using Bf16BesideTiles = Widened<uint16_t>;
#endif

// scores[m][16 n] = q[m][..] * keys[n], for the first N pieces. They are read in parallel, because memory
// delivers several distant pieces faster that way than one after the other.
template <class X, int M, int N>
void times_keys(const typename X::A* q, int64_t q_stride, const typename X::E* const* keys, int steps, float* scores,
                int64_t stride) {
    F sums[M * N];
    const typename X::E* at[N];
    typename X::B right[N];
    UNROLLED for (int i = 0; i < M * N; i++) sums[i] = set(0.0f);
    UNROLLED for (int n = 0; n < N; n++) at[n] = keys[n];
    for (int s = 0; s < steps; s++, q += X::KP) {
        UNROLLED for (int n = 0; n < N; n++) {
            right[n] = X::right(at[n]);
            fetch(keys[n + AHEAD] + (at[n] - keys[n]));
            at[n] += 16 * X::KP;
        }
        UNROLLED for (int i = 0; i < M * N; i++) sums[i] = X::step(sums[i], q + i / N * q_stride, right[i % N]);
    }
    UNROLLED for (int i = 0; i < M * N; i++) store(scores + i / N * stride + i % N * 16, sums[i]);
}

// out[m][16 n] (+)= weights[m][..] * values, for `count` values and their elements from `column` on. TOGETHER pieces are
// read in parallel, grouped at multiples of TOGETHER: `first` is the number of the first piece, counted from position 0.
template <class X, int M, int N>
void times_values(const typename X::A* weights, int64_t weights_stride, const typename X::E* const* values, int first,
                  int count, int column, int64_t row, float* out, int64_t stride, bool accumulate) {
    constexpr int TOGETHER = 4;
    F sums[M * N];
    typename X::B right[N];
    UNROLLED for (int i = 0; i < M * N; i++) {
        sums[i] = accumulate ? load(out + i / N * stride + i % N * 16) : set(0.0f);
    }
    for (int pieces = TOGETHER - first % TOGETHER; count > 0; pieces = TOGETHER) {
        pieces = std::min(pieces, (count + 15) / 16);
        for (int at = 0; at < 16; at += X::KP) {
            const int64_t offset = column * X::KP + at / X::KP * row;
            for (int piece = 0; piece < pieces; piece++) {
                const typename X::A* left = weights + 16 * piece + at;
                const int after = count - 16 * piece - at;
                UNROLLED for (int n = 0; n < N; n++) {
                    right[n] = X::right(values[piece] + offset + 16 * X::KP * n);
                    fetch(values[piece + AHEAD] + offset + 16 * X::KP * n);
                }
                if (after >= X::KP) {
                    UNROLLED for (int i = 0; i < M * N; i++) {
                        sums[i] = X::step(sums[i], left + i / N * weights_stride, right[i % N]);
                    }
                } else if (after > 0) {
                    UNROLLED for (int i = 0; i < M * N; i++) {
                        sums[i] = X::half_step(sums[i], left + i / N * weights_stride, right[i % N]);
                    }
                }
            }
        }
        values += pieces, weights += 16 * pieces, count -= 16 * pieces;
    }
    UNROLLED for (int i = 0; i < M * N; i++) store(out + i / N * stride + i % N * 16, sums[i]);
}

// Run `product` over all rows and vectors of columns in pieces of a size that registers hold: product(M, N, row, vector).
// A few columns at a time, so that these stay in the first-level cache for all rows.
template <class Product>
INL void in_pieces(int rows, int vectors_of_columns, Product product) {
    const int columns = rows <= MAX_ROWS ? vectors_of_columns : 4;
    for (int from = 0; from < vectors_of_columns; from += columns) {
        const int until = std::min(vectors_of_columns, from + columns);
        int row = 0;
        const auto run = [&](auto m) {
            constexpr int M = decltype(m)::value, N = vectors(M);
            for (; row + M <= rows; row += M) {
                int v = from;
                for (; v + N <= until; v += N) product(m, std::integral_constant<int, N>{}, row, v);
                for (; N > 2 && v + 2 <= until; v += 2) product(m, std::integral_constant<int, 2>{}, row, v);
                for (; N > 1 && v < until; v++) product(m, std::integral_constant<int, 1>{}, row, v);
            }
        };
        run(std::integral_constant<int, MAX_ROWS>{});
        if constexpr (MAX_ROWS > 4) run(std::integral_constant<int, 4>{});
        run(std::integral_constant<int, 2>{});
        run(std::integral_constant<int, 1>{});
    }
}
