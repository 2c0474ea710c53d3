// Sixteen float lanes in one AVX-512 register.
struct F {
    __m512 v;
};

INL F set(float x) { return {_mm512_set1_ps(x)}; }
INL F load(const float* p) { return {_mm512_loadu_ps(p)}; }
INL void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
INL F add(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
INL F sub(F x, F y) { return {_mm512_sub_ps(x.v, y.v)}; }
INL F mul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
INL F div(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
INL F fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
INL F max(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }
INL F min(F x, F y) { return {_mm512_min_ps(x.v, y.v)}; }
INL F round(F x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
INL F times_pow2(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
INL F zero_below(F x, F y, F limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.v, limit.v, _CMP_NLT_UQ), x.v)};
}
INL F keep_range(F x, int low, int high) {
    const uint32_t from = low <= 0 ? 0xffff : low >= 16 ? 0 : 0xffffu << low;
    const uint32_t until = high >= 16 ? 0xffff : high <= 0 ? 0 : (1u << high) - 1;
    return {_mm512_mask_mov_ps(_mm512_set1_ps(NEG_INF), static_cast<__mmask16>(from & until), x.v)};
}
INL float hmax(F x) { return _mm512_reduce_max_ps(x.v); }
INL float hsum(F x) { return _mm512_reduce_add_ps(x.v); }
INL F load(const uint16_t* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}
INL F load_float16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <int STRIDE>
INL F swapped(F x) {
    if constexpr (STRIDE < 4) return {_mm512_permute_ps(x.v, STRIDE == 1 ? 0xb1 : 0x4e)};
    else return {_mm512_shuffle_f32x4(x.v, x.v, STRIDE == 4 ? 0xb1 : 0x4e)};
}
INL F even(const uint16_t* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
INL F odd(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff0000)))};
}
INL void store(uint16_t* p, F x) {
#ifdef SLUICE_BF16_DOT
    const __m256i packed = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
#else
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
    const __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#endif
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

constexpr int LINEAR_ROWS = 12;
#ifdef SLUICE_BF16_DOT
constexpr int MAX_ROWS = 6;
constexpr int vectors(int rows) { return rows <= 2 ? 8 : 4; }
#else
constexpr int MAX_ROWS = 8;
constexpr int vectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }
#endif
