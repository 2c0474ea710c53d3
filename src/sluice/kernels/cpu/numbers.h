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

// The float16 with these bits, as a number.
inline float from_float16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = static_cast<uint32_t>(half & 0x7fff) << 13;
    const uint32_t bits = rest >= 0x0f800000 ? rest | 0x7f800000 : rest;    // infinite, or no number
    float x;
    std::memcpy(&x, &bits, sizeof x);
    if (rest < 0x0f800000) x *= 0x1p112f;    // the bias of the exponent; exact for the smallest numbers, too
    return sign ? -x : x;
}

// Round to the nearest, ties to even; NaN stays NaN.
inline uint16_t narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
