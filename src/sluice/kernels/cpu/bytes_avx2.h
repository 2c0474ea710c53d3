// Products of bytes in AVX2. Pairs of products are summed in 16 bits, which saturates beyond 32767: so the unsigned side
// is the magnitude of a weight, at most 128, and the signed side an activation, at most 127, with that weight's sign.
constexpr int BYTE_OFFSET = 0, BYTE_ROWS = 2;

// Sixteen sums of integers. They wrap, so their order does not matter.
struct I {
    __m256i a, b;
};

// Four neighbouring inputs of sixteen outputs.
struct Bytes {
    __m256i a, b;
};

INL I first_sums(const int32_t*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INL Bytes load_bytes(const int8_t* p) {
    const auto* at = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
INL __m256i dot(__m256i sum, __m256i x, __m256i weights) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INL I dot(I sum, const uint8_t* x, Bytes weights) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i left = _mm256_set1_epi32(four);
    return {dot(sum.a, left, weights.a), dot(sum.b, left, weights.b)};
}
// Weights of four bits are not negative, so they are the unsigned side.
INL void load_nibbles(const uint8_t* p, Bytes* both) {
    const auto* at = reinterpret_cast<const __m256i*>(p);
    const __m256i a = _mm256_loadu_si256(at), b = _mm256_loadu_si256(at + 1), low = _mm256_set1_epi8(15);
    both[0] = {_mm256_and_si256(a, low), _mm256_and_si256(b, low)};
    both[1] = {_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_and_si256(_mm256_srli_epi16(b, 4), low)};
}
INL __m256i nibble_dot(__m256i sum, __m256i x, __m256i weights) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1)));
}
INL I nibble_dot(I sum, const uint8_t* x, Bytes weights) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i left = _mm256_set1_epi32(four);
    return {nibble_dot(sum.a, left, weights.a), nibble_dot(sum.b, left, weights.b)};
}
// What weights in groups need (`grouped_linear.h`). Products with numbers of six bits and fewer are added in 16 bits.
constexpr int GROUPED_ROWS = 2, FUSED_ROWS = 2, SIGNED_ZERO = 0;
constexpr bool IN_SHORTS = true;
struct Shorts {
    __m256i a, b;
};
// Sums as they are: GCC adds in another order otherwise, and runs out of registers.
template <class T>
INL T kept(T x) {
    __asm__("" : "+x"(x.a), "+x"(x.b));
    return x;
}
INL Shorts short_dot(Shorts sum, const uint8_t* x, Bytes weights) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i left = _mm256_set1_epi32(four);
    return kept(Shorts{_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(weights.a, left)),
                       _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(weights.b, left))});
}
INL I add_shorts(I sum, Shorts x) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(x.a, ones)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(x.b, ones))};
}
INL I signed_dot(I sum, const uint8_t* x, Bytes weights) { return kept(dot(sum, x, weights)); }
INL __m256i joined(__m256i low, __m256i high, int left, int mask) {
    const __m256i moved = left > 0 ? _mm256_slli_epi16(high, left) : _mm256_srli_epi16(high, -left);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask))));
}
INL Bytes joined(Bytes low, Bytes high, int left, int mask) {
    return {joined(low.a, high.a, left, mask), joined(low.b, high.b, left, mask)};
}
INL Bytes looked_up(Bytes numbers, const int8_t* table) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(both, numbers.a), _mm256_shuffle_epi8(both, numbers.b)};
}
INL void put_bytes(uint8_t* p, Bytes bytes) {
    auto* at = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(at, bytes.a), _mm256_storeu_si256(at + 1, bytes.b);
}
INL F from_codes(Codes codes) {
    const auto x = reinterpret_cast<__m128i>(codes);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
INL F from_signed_codes(Codes codes) {
    const auto x = reinterpret_cast<__m128i>(codes);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
INL __m256 number_of(__m256i x, int which, bool is_signed) {
    const __m256i moved = is_signed ? _mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * which), 24)
                                    : _mm256_and_si256(_mm256_srli_epi32(x, 8 * which), _mm256_set1_epi32(255));
    return _mm256_cvtepi32_ps(moved);
}
INL F number_of(Bytes x, int which, bool is_signed) {
    return {number_of(x.a, which, is_signed), number_of(x.b, which, is_signed)};
}
INL I set_sums(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INL F fused(F x, F y, F z) { return fma(x, y, z); }
INL F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
INL void store_bytes(uint8_t* p, F x, int) {
    const __m256i halves = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    const __m256i in_order = _mm256_permute4x64_epi64(halves, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(in_order), _mm256_extracti128_si256(in_order, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Pairs of neighbouring bytes for sixteen columns, widened to words, and their products with one pair of words.
struct Words {
    __m256i a, b;
};

INL __m256i widened(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INL Words load_words(const int8_t* p) { return {widened(p), widened(p + 16)}; }
INL I no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INL I dot(I sum, const int16_t* pair, Words words) {
    int32_t both;
    std::memcpy(&both, pair, sizeof both);
    const __m256i left = _mm256_set1_epi32(both);
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(left, words.a)),
            _mm256_add_epi32(sum.b, _mm256_madd_epi16(left, words.b))};
}
INL void store_words(int16_t* p, F x) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
