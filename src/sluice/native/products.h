// Products of a few rows with sixteen columns at a time: the inner loop of attention and of linear layers.
//
// The left side holds rows, the right side packed columns: at each step KP elements of the summed dimension for sixteen
// columns. A sum is made in one accumulator, step after step, so what a row comes to does not depend on how many rows or
// columns are computed beside it.

// float32 on both sides.
struct Float32 {
    using E = float;    // of the right side, and of queries
    using A = float;    // of the left side
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
    using A = Left;
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
    using A = uint16_t;
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

// The right side of a product: `segments` runs of `steps` steps each, the last one shorter perhaps.
template <class X>
struct Right {
    const typename X::E* const* base;    // of each segment; with `by_vector` 1, of each sixteen columns
    int by_vector;
    int64_t vector;    // elements between sixteen columns and the next sixteen, from one base
    int64_t step;      // elements between steps
    int segments, steps, last_steps;
    bool half_last;    // one more step, of which only the first element counts: the other may be anything
};

// c[m][16 n] (+)= sum of a[m][..] * right[..][16 n] for M rows and N vectors of columns.
template <class X, int M, int N>
void product(const typename X::A* a, int64_t a_stride, const Right<X>& r, int first_vector, float* c, int64_t c_stride,
             bool accumulate) {
    F sums[M * N];
    UNROLLED for (int i = 0; i < M * N; i++) sums[i] = accumulate ? load(c + i / N * c_stride + i % N * 16) : set(0.0f);
    for (int segment = 0; segment < r.segments; segment++) {
        const typename X::E* b[N];
        typename X::B right[N];
        UNROLLED for (int n = 0; n < N; n++) {
            b[n] = r.base[segment + (first_vector + n) * r.by_vector] + (first_vector + n) * r.vector;
        }
        const bool is_last = segment + 1 == r.segments;
        const int steps = is_last ? r.last_steps : r.steps;
        for (int s = 0; s < steps; s++, a += X::KP) {
            UNROLLED for (int n = 0; n < N; n++) {
                right[n] = X::right(b[n]);
                b[n] += r.step;
            }
            UNROLLED for (int i = 0; i < M * N; i++) sums[i] = X::step(sums[i], a + i / N * a_stride, right[i % N]);
        }
        if (!is_last || !r.half_last) continue;
        UNROLLED for (int n = 0; n < N; n++) right[n] = X::right(b[n]);
        UNROLLED for (int i = 0; i < M * N; i++) sums[i] = X::half_step(sums[i], a + i / N * a_stride, right[i % N]);
    }
    UNROLLED for (int i = 0; i < M * N; i++) store(c + i / N * c_stride + i % N * 16, sums[i]);
}

template <class X, int M>
void product_of_rows(const typename X::A* a, int64_t a_stride, const Right<X>& r, int from, int until, float* c,
                     int64_t c_stride, bool accumulate) {
    constexpr int N = vectors(M);
    int v = from;
    for (; v + N <= until; v += N) product<X, M, N>(a, a_stride, r, v, c + v * 16, c_stride, accumulate);
    for (; v < until; v++) product<X, M, 1>(a, a_stride, r, v, c + v * 16, c_stride, accumulate);
}

// c[rows][16 count] (+)= a * right, a few columns at a time, so that these stay in the first-level cache for all rows.
// What is left after runs of MAX_ROWS is done in fours, twos and ones.
template <class X>
void product_of_all(int rows, const typename X::A* a, int64_t a_stride, const Right<X>& r, int count, float* c,
                    int64_t c_stride, bool accumulate) {
    const int columns = rows <= MAX_ROWS ? count : 4;
    for (int from = 0; from < count; from += columns) {
        const int until = std::min(count, from + columns);
        int m = 0;
        const auto run = [&](auto count) {
            constexpr int M = decltype(count)::value;
            for (; m + M <= rows; m += M) {
                product_of_rows<X, M>(a + m * a_stride, a_stride, r, from, until, c + m * c_stride, c_stride, accumulate);
            }
        };
        run(std::integral_constant<int, MAX_ROWS>{});
        if constexpr (MAX_ROWS > 4) run(std::integral_constant<int, 4>{});
        run(std::integral_constant<int, 2>{});
        run(std::integral_constant<int, 1>{});
    }
}
