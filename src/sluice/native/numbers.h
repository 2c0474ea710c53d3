// bfloat16 is the upper half of a float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

constexpr float NEG_INF = -std::numeric_limits<float>::infinity();

inline float widen(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float as_float(uint16_t half) { return widen(half); }
inline float as_float(float x) { return x; }

// Round to the nearest, ties to even; NaN stays NaN.
inline uint16_t narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
