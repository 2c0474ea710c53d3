// Products of bytes in plain C++: the slow, obvious reference for the other levels.
//
// Weights are signed. Activations are signed, with BYTE_OFFSET added where an instruction takes them unsigned; the sums
// then start at what that adds.
constexpr int BYTE_OFFSET = 0, BYTE_ROWS = 1;

// Sixteen sums of integers. They wrap, so their order does not matter.
struct I {
    int32_t x[16];
};

// Four neighbouring inputs of sixteen outputs.
struct Bytes {
    int8_t x[64];
};

INL I first_sums(const int32_t*) { return {}; }
INL Bytes load_bytes(const int8_t* p) {
    Bytes r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
}
INL I dot(I sum, const uint8_t* x, const Bytes& weights) {
    for (int i = 0; i < 64; i++) sum.x[i / 4] += static_cast<int8_t>(x[i % 4]) * weights.x[i];
    return sum;
}
INL void load_nibbles(const uint8_t* p, Bytes* both) {
    for (int i = 0; i < 64; i++) both[0].x[i] = p[i] & 15, both[1].x[i] = p[i] >> 4;
}
INL I nibble_dot(I sum, const uint8_t* x, const Bytes& weights) { return dot(sum, x, weights); }
// What weights in groups need (`grouped_linear.h`).
constexpr int GROUPED_ROWS = 1, FUSED_ROWS = 1, SIGNED_ZERO = 0;
constexpr bool IN_SHORTS = false;    // sums of a few products have 16 bits
using Shorts = I;
INL I signed_dot(I sum, const uint8_t* x, const Bytes& weights) { return dot(sum, x, weights); }
INL Bytes joined(const Bytes& low, const Bytes& high, int left, int mask) {
    Bytes r;
    for (int i = 0; i < 64; i++) {
        const auto byte = static_cast<uint8_t>(high.x[i]);
        r.x[i] = static_cast<int8_t>(low.x[i] | ((left > 0 ? byte << left : byte >> -left) & mask));
    }
    return r;
}
INL Bytes looked_up(const Bytes& numbers, const int8_t* table) {
    Bytes r;
    for (int i = 0; i < 64; i++) r.x[i] = table[numbers.x[i]];
    return r;
}
INL void put_bytes(uint8_t* p, const Bytes& bytes) { std::memcpy(p, bytes.x, sizeof bytes.x); }
INL F from_codes(Codes x) { return each([&](int i) { return static_cast<float>(x[i]); }); }
INL F from_signed_codes(Codes x) { return each([&](int i) { return static_cast<float>(static_cast<int8_t>(x[i])); }); }
// Byte `which` of the four of each output.
INL F number_of(const Bytes& x, int which, bool is_signed) {
    return each([&](int i) { return static_cast<float>(is_signed ? x.x[4 * i + which] : static_cast<uint8_t>(x.x[4 * i + which])); });
}
INL I set_sums(int32_t x) {
    I r;
    std::fill(r.x, r.x + 16, x);
    return r;
}
INL F fused(F a, F b, F c) { return each([&](int i) { return std::fma(a.x[i], b.x[i], c.x[i]); }); }
INL F to_float(const I& a) { return each([&](int i) { return static_cast<float>(a.x[i]); }); }
INL void store_bytes(uint8_t* p, F a, int) {
    for (int i = 0; i < 16; i++) p[i] = static_cast<uint8_t>(static_cast<int>(a.x[i]));
}

// Pairs of neighbouring bytes for sixteen columns, widened to words, and their products with one pair of words.
struct Words {
    int16_t x[32];
};

INL Words load_words(const int8_t* p) {
    Words r;
    for (int i = 0; i < 32; i++) r.x[i] = p[i];
    return r;
}
INL I no_sums() { return {}; }
INL I dot(I sum, const int16_t* pair, const Words& words) {
    for (int i = 0; i < 32; i++) {
        sum.x[i / 2] = static_cast<int32_t>(static_cast<uint32_t>(sum.x[i / 2]) + pair[i % 2] * words.x[i]);
    }
    return sum;
}
// Round to the nearest words. What is no number becomes any word.
INL void store_words(int16_t* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = std::isfinite(a.x[i]) ? static_cast<int16_t>(std::nearbyintf(a.x[i])) : 0;
}
