// The rotation of a head beside pages of int8 (`attention/hadamard.py` defines it): signs, and then sums and differences of
// pairs, first of those that are farthest apart.

// Each block of `rotated_size` elements is rotated by itself.
INL int rotated_size(int d) { return d & -d; }

// Factors of one and minus one.
template <int COUNT>
struct Signs {
    alignas(64) float of[COUNT];

    template <class IsMinus>
    constexpr explicit Signs(IsMinus is_minus) : of() {
        for (int i = 0; i < COUNT; i++) of[i] = is_minus(i) ? -1.0f : 1.0f;
    }
};

constexpr bool is_odd(int bits) { return bits != 0 && !is_odd(bits & (bits - 1)); }
constexpr Signs<MAX_HEAD_DIM> HEAD_SIGNS([](int i) { return is_odd(i & i >> 1 & 0x155); });

// Multiply a head by its signs. They are those of a block, from its beginning.
INL void change_signs(float* x, int d) {
    const int block = rotated_size(d);
    for (int i = 0; i < d; i += 16) store(x + i, mul(load(x + i), load(HEAD_SIGNS.of + i % block)));
}

// Lanes that are STRIDE apart: the sum in the lower one, the difference in the upper one.
template <int STRIDE>
INL F in_lanes(F x) {
    static constexpr Signs<16> UPPER([](int i) { return (i & STRIDE) != 0; });
    return fma(x, load(UPPER.of), swapped<STRIDE>(x));
}

INL void sums_and_differences(float* x, int d) {
    for (int stride = rotated_size(d) / 2; stride >= 16; stride /= 2) {
        for (int from = 0; from < d; from += 2 * stride) {
            for (int i = from; i < from + stride; i += 16) {
                const F a = load(x + i), b = load(x + i + stride);
                store(x + i, add(a, b)), store(x + i + stride, sub(a, b));
            }
        }
    }
    for (int i = 0; i < d; i += 16) store(x + i, in_lanes<1>(in_lanes<2>(in_lanes<4>(in_lanes<8>(load(x + i))))));
}

// Rotate a head of `d` elements, a multiple of sixteen. Its length grows by the root of the block's size.
INL void rotate_head(float* x, int d) {
    change_signs(x, d);
    sums_and_differences(x, d);
}
