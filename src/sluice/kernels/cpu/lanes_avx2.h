// Sixteen float lanes in two AVX2 registers.
struct F {
    __m256 a, b;
};

INL F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INL F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INL void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
INL F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
INL F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
INL F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
INL F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
INL F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
INL F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
INL F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
INL __m256 round(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INL F round(F x) { return {round(x.a), round(x.b)}; }
INL __m256 times_pow2(__m256 x, __m256 n) {
    const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23)));
}
INL F times_pow2(F x, F n) { return {times_pow2(x.a, n.a), times_pow2(x.b, n.b)}; }
INL __m256 zero_below(__m256 x, __m256 y, __m256 limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(y, limit, _CMP_LT_OQ), x);
}
INL F zero_below(F x, F y, F limit) { return {zero_below(x.a, y.a, limit.a), zero_below(x.b, y.b, limit.b)}; }
INL __m256 keep_range(__m256 x, __m256i lane, int low, int high) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane);
    const __m256i inside = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return _mm256_blendv_ps(_mm256_set1_ps(NEG_INF), x, _mm256_castsi256_ps(inside));
}
INL F keep_range(F x, int low, int high) {
    return {keep_range(x.a, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), low, high),
            keep_range(x.b, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), low, high)};
}
INL float hmax(F x) {
    const __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
INL float hsum(F x) {
    const __m256 m = _mm256_add_ps(x.a, x.b);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
INL __m256 widened(const uint16_t* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
INL F load(const uint16_t* p) { return {widened(p), widened(p + 8)}; }
INL F load_float16(const uint16_t* p) {
    const auto* at = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
template <int STRIDE>
INL __m256 swapped(__m256 x) {
    if constexpr (STRIDE == 4) return _mm256_permute2f128_ps(x, x, 1);
    else return _mm256_permute_ps(x, STRIDE == 1 ? 0xb1 : 0x4e);
}
template <int STRIDE>
INL F swapped(F x) {
    if constexpr (STRIDE == 8) return {x.b, x.a};
    else return {swapped<STRIDE>(x.a), swapped<STRIDE>(x.b)};
}
INL __m256i pairs(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
INL __m256 even(__m256i p) { return _mm256_castsi256_ps(_mm256_slli_epi32(p, 16)); }
INL __m256 odd(__m256i p) { return _mm256_castsi256_ps(_mm256_and_si256(p, _mm256_set1_epi32(0xffff0000))); }
INL F even(const uint16_t* p) { return {even(pairs(p)), even(pairs(p + 16))}; }
INL F odd(const uint16_t* p) { return {odd(pairs(p)), odd(pairs(p + 16))}; }
INL __m256i narrowed(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), is_nan), 16);
}
INL void store(uint16_t* p, F x) {
    const __m256i packed = _mm256_packus_epi32(narrowed(x.a), narrowed(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

constexpr int MAX_ROWS = 4, LINEAR_ROWS = 2;
constexpr int vectors(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
