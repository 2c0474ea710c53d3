// y = x W^T + bias for a few rows of x, in bfloat16: bound by the reading of W, which is streamed once.

// Sums of 32 products in sixteen lanes.
INL F add_products(F sum, const uint16_t* x, const uint16_t* w) {
#ifdef SLUICE_BF16_DOT
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(_mm512_loadu_si512(x)),
                             reinterpret_cast<__m512bh>(_mm512_loadu_si512(w)))};
#else
    return fma(odd(x), odd(w), fma(even(x), even(w), sum));
#endif
}

// Up to M rows of x, of which there are `rows`, with W rows of weights.
template <int M, int W>
void linear_block(const LinearCall& call, int row, int rows, int column) {
    const int64_t in = call.in;
    const uint16_t *x[M], *w[W];
    F sums[M * W];
    UNROLLED for (int m = 0; m < M; m++) {
        x[m] = static_cast<const uint16_t*>(call.x) + (row + std::min(m, rows - 1)) * in;
    }
    UNROLLED for (int n = 0; n < W; n++) w[n] = static_cast<const uint16_t*>(call.weight) + (column + n) * in;
    UNROLLED for (int i = 0; i < M * W; i++) sums[i] = set(0.0f);
    int k = 0;
    for (; k + 32 <= in; k += 32) {
        UNROLLED for (int n = 0; n < W; n++) __builtin_prefetch(w[n] + k + PREFETCH);
        UNROLLED for (int i = 0; i < M * W; i++) sums[i] = add_products(sums[i], x[i / W] + k, w[i % W] + k);
    }
    if (k < in) {
        uint16_t left[32] = {}, right[32] = {};
        for (int i = 0; i < M * W; i++) {
            std::memcpy(left, x[i / W] + k, sizeof(uint16_t) * (in - k));
            std::memcpy(right, w[i % W] + k, sizeof(uint16_t) * (in - k));
            sums[i] = add_products(sums[i], left, right);
        }
    }
    for (int i = 0; i < rows * W; i++) {
        const int n = column + i % W;
        const float bias = call.bias ? widen(static_cast<const uint16_t*>(call.bias)[n]) : 0.0f;
        static_cast<uint16_t*>(call.y)[static_cast<int64_t>(row + i / W) * call.out + n] = narrow(hsum(sums[i]) + bias);
    }
}

template <int M>
void linear_columns(const LinearCall& call, int row, int rows, int from, int until) {
    constexpr int W = M <= 4 ? 4 : 2;
    int column = from;
    for (; column + W <= until; column += W) linear_block<M, W>(call, row, rows, column);
    for (; column < until; column++) linear_block<M, 1>(call, row, rows, column);
}

// Outputs `from` to `until` of all rows.
inline void linear_part(const LinearCall& call, int from, int until) {
    for (int row = 0; row < call.rows; row += 8) {
        const int rows = std::min(8, call.rows - row);
        if (rows == 1) linear_columns<1>(call, row, rows, from, until);
        else if (rows == 2) linear_columns<2>(call, row, rows, from, until);
        else if (rows <= 4) linear_columns<4>(call, row, rows, from, until);
        else linear_columns<8>(call, row, rows, from, until);
    }
}
