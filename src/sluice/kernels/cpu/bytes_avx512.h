// Products of bytes in AVX-512. VNNI multiplies unsigned activations with signed weights and never saturates. Without it,
// as in AVX2, the unsigned side is the magnitude of a weight and the signed side an activation with that weight's sign.

// Sixteen sums of integers. They wrap, so their order does not matter. The type is that of the instructions' results:
// with __m512i GCC 12 holds each sum of a loop twice, and runs out of registers.
struct I {
    __v16si v;
    I(__m512i x) : v(reinterpret_cast<__v16si>(x)) {}
    I() = default;
    operator __m512i() const { return reinterpret_cast<__m512i>(v); }
};

// Four neighbouring inputs of sixteen outputs.
struct Bytes {
    __m512i v;
};

INL Bytes load_bytes(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
INL __m512i four_bytes(const uint8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

#ifdef SLUICE_VNNI
constexpr int BYTE_OFFSET = 128, BYTE_ROWS = 12;
INL I first_sums(const int32_t* sums) {
    return {_mm512_mullo_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(-BYTE_OFFSET))};
}
INL I dot(I sum, const uint8_t* x, Bytes weights) { return {_mm512_dpbusd_epi32(sum, four_bytes(x), weights.v)}; }
// Weights of four bits are not negative, so they are the unsigned side, and activations are signed.
INL I nibble_dot(I sum, const uint8_t* x, Bytes weights) {
    return {_mm512_dpbusd_epi32(sum, weights.v, four_bytes(x))};
}
#else
constexpr int BYTE_OFFSET = 0, BYTE_ROWS = 8;
INL I first_sums(const int32_t*) { return {_mm512_setzero_si512()}; }
INL I dot(I sum, const uint8_t* x, Bytes weights) {
    const __m512i left = four_bytes(x);
    const __m512i with_sign = _mm512_mask_sub_epi8(left, _mm512_movepi8_mask(weights.v), _mm512_setzero_si512(), left);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(weights.v), with_sign);
    return {_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
INL I nibble_dot(I sum, const uint8_t* x, Bytes weights) {
    const __m512i pairs = _mm512_maddubs_epi16(weights.v, four_bytes(x));
    return {_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
#endif

INL void load_nibbles(const uint8_t* p, Bytes* both) {
    const __m512i v = _mm512_loadu_si512(p), low = _mm512_set1_epi8(15);
    both[0] = {_mm512_and_si512(v, low)};
    both[1] = {_mm512_and_si512(_mm512_srli_epi16(v, 4), low)};
}
// What weights in groups need (`grouped_linear.h`). Without VNNI, products with numbers of six bits and fewer are added in
// 16 bits. With it weights are the unsigned side, so those with a sign are shifted.
#ifdef SLUICE_VNNI
constexpr int GROUPED_ROWS = 6, FUSED_ROWS = 4, SIGNED_ZERO = 128;
constexpr bool IN_SHORTS = false;
using Shorts = I;
INL I signed_dot(I sum, const uint8_t* x, Bytes weights) {
    const __m512i shifted = _mm512_xor_si512(weights.v, _mm512_set1_epi8(static_cast<char>(SIGNED_ZERO)));
    return {_mm512_dpbusd_epi32(sum, shifted, four_bytes(x))};
}
#else
constexpr int GROUPED_ROWS = 4, FUSED_ROWS = 4, SIGNED_ZERO = 0;
constexpr bool IN_SHORTS = true;
struct Shorts {
    __m512i v;
};
INL Shorts short_dot(Shorts sum, const uint8_t* x, Bytes weights) {
    __m512i next = _mm512_add_epi16(sum.v, _mm512_maddubs_epi16(weights.v, four_bytes(x)));
    __asm__("" : "+v"(next));    // as in AVX2
    return {next};
}
INL I add_shorts(I sum, Shorts x) {
    return {_mm512_add_epi32(sum, _mm512_madd_epi16(x.v, _mm512_set1_epi16(1)))};
}
INL I signed_dot(I sum, const uint8_t* x, Bytes weights) { return dot(sum, x, weights); }
#endif
INL Bytes joined(Bytes low, Bytes high, int left, int mask) {
    const __m512i moved = left > 0 ? _mm512_slli_epi16(high.v, left) : _mm512_srli_epi16(high.v, -left);
    return {_mm512_or_si512(low.v, _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask))))};
}
INL Bytes looked_up(Bytes numbers, const int8_t* table) {
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm512_shuffle_epi8(all, numbers.v)};
}
INL void put_bytes(uint8_t* p, Bytes bytes) { _mm512_storeu_si512(p, bytes.v); }
INL F from_codes(Codes codes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(codes)))}; }
INL F from_signed_codes(Codes codes) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(codes)))};
}
INL F number_of(Bytes x, int which, bool is_signed) {
    const __m512i moved = is_signed ? _mm512_srai_epi32(_mm512_slli_epi32(x.v, 24 - 8 * which), 24)
                                    : _mm512_and_si512(_mm512_srli_epi32(x.v, 8 * which), _mm512_set1_epi32(255));
    return {_mm512_cvtepi32_ps(moved)};
}
INL I set_sums(int32_t x) { return {_mm512_set1_epi32(x)}; }
INL F fused(F x, F y, F z) { return fma(x, y, z); }

INL F to_float(I x) { return {_mm512_cvtepi32_ps(x)}; }
INL void store_bytes(uint8_t* p, F x, int offset) {
    const __m512i wide = _mm512_add_epi32(_mm512_cvtps_epi32(x.v), _mm512_set1_epi32(offset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(wide));
}

// Pairs of neighbouring bytes for sixteen columns, widened to words, and their products with one pair of words.
struct Words {
    __m512i v;
};

INL Words load_words(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
INL I no_sums() { return {_mm512_setzero_si512()}; }
INL I dot(I sum, const int16_t* pair, Words words) {
    int32_t both;
    std::memcpy(&both, pair, sizeof both);
#ifdef SLUICE_VNNI
    return {_mm512_dpwssd_epi32(sum, _mm512_set1_epi32(both), words.v)};
#else
    return {_mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_set1_epi32(both), words.v))};
#endif
}
INL void store_words(int16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v)));
}
