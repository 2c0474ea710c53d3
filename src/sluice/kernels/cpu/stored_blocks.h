// The block types of GGUF files: rows of blocks of 32 to 256 inputs, as `ggml-common.h` of llama.cpp lays them out.
// Python's definition of the same is `models/block_types.py`.
//
// Each type reads the codes of 32 inputs of a block: a part. A code is the number as it is stored, without its zero and
// before it is looked up in a table. Four codes are a word, the first one in its lowest byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "abi.h"
#include "numbers.h"

#define UNROLLED _Pragma("GCC unroll 32")

constexpr int PART = 32;          // inputs
constexpr int PART_WORDS = 8;     // of four codes
constexpr uint32_t LOW_HALVES = 0x0f0f0f0f;

inline uint32_t word_at(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}

inline uint16_t half_at(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return half;
}

// Four bits, each in the lowest place of a byte.
inline uint32_t spread(uint32_t four) { return (four & 15) * 0x00204081 & 0x01010101; }

// Sixteen bytes: the inputs 0 to 15 in their lower halves, 16 to 31 in the upper ones.
inline void read_halves(const uint8_t* p, uint32_t* words) {
    for (int i = 0; i < 4; i++) {
        words[i] = word_at(p + 4 * i) & LOW_HALVES;
        words[i + 4] = word_at(p + 4 * i) >> 4 & LOW_HALVES;
    }
}

// Types with one scale, and perhaps a minimum, for each block of 32 inputs: both in float16, at the beginning.
template <int TYPE_, int BITS_, int ZERO_, bool HAS_MINIMUMS_, int BYTES_>
struct SmallBlock {
    static constexpr int TYPE = TYPE_, BITS = BITS_, ZERO = ZERO_, BYTES = BYTES_, INPUTS = 32, GROUP = 32;
    static constexpr bool HAS_MINIMUMS = HAS_MINIMUMS_;
    static constexpr int NUMBERS = HAS_MINIMUMS ? 4 : 2;    // where they begin
    static float number(int code) { return static_cast<float>(code - ZERO); }
    static float scale(const uint8_t* block, int) { return from_float16(half_at(block)); }
    static float minimum(const uint8_t* block, int) { return from_float16(half_at(block + 2)); }
};

template <int TYPE, int ZERO, bool HAS_MINIMUMS, int BYTES>
struct FourBits : SmallBlock<TYPE, 4, ZERO, HAS_MINIMUMS, BYTES> {
    static void codes(const uint8_t* block, int, uint32_t* words) { read_halves(block + FourBits::NUMBERS, words); }
};

template <int TYPE, int ZERO, bool HAS_MINIMUMS, int BYTES>
struct FiveBits : SmallBlock<TYPE, 5, ZERO, HAS_MINIMUMS, BYTES> {
    static void codes(const uint8_t* block, int, uint32_t* words) {
        const uint32_t high = word_at(block + FiveBits::NUMBERS);
        read_halves(block + FiveBits::NUMBERS + 4, words);
        for (int i = 0; i < PART_WORDS; i++) words[i] |= spread(high >> 4 * i) << 4;
    }
};

struct Q4_0 : FourBits<TYPE_Q4_0, 8, false, 18> {};
struct Q4_1 : FourBits<TYPE_Q4_1, 0, true, 20> {};
struct Q5_0 : FiveBits<TYPE_Q5_0, 16, false, 22> {};
struct Q5_1 : FiveBits<TYPE_Q5_1, 0, true, 24> {};

struct Q8_0 : SmallBlock<TYPE_Q8_0, 8, 0, false, 34> {
    static float number(int code) { return static_cast<float>(static_cast<int8_t>(code)); }
    static void codes(const uint8_t* block, int, uint32_t* words) { std::memcpy(words, block + 2, PART); }
};

constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};    // twice those of e2m1

struct IQ4_NL : FourBits<TYPE_IQ4_NL, 0, false, 18> {
    static float number(int code) { return IQ4_VALUES[code]; }
};

struct MXFP4 : FourBits<TYPE_MXFP4, 0, false, 17> {
    static float number(int code) { return MXFP4_VALUES[code]; }
    static float scale(const uint8_t* block, int) { return std::ldexp(1.0f, block[0] - 128); }
    static void codes(const uint8_t* block, int, uint32_t* words) { read_halves(block + 1, words); }
};

// Types of blocks of 256 inputs: a scale in float16, and small codes by which it is multiplied for each group. `BITS` are
// those of a packed number: two and three bits take the place of four.
template <int TYPE_, int BITS_, int ZERO_, bool HAS_MINIMUMS_, int BYTES_, int GROUP_, int SCALE>
struct LargeBlock {
    static constexpr int TYPE = TYPE_, BITS = BITS_, ZERO = ZERO_, BYTES = BYTES_, INPUTS = 256, GROUP = GROUP_;
    static constexpr bool HAS_MINIMUMS = HAS_MINIMUMS_;
    static float number(int code) { return static_cast<float>(code - ZERO); }
    static uint16_t unit(const uint8_t* block) { return half_at(block + SCALE); }
};

// The lower two bits of 32 numbers. Four parts share 32 bytes.
inline void read_pairs_of_bits(const uint8_t* numbers, int part, uint32_t* words) {
    const uint8_t* from = numbers + part / 4 * 32;
    for (int i = 0; i < PART_WORDS; i++) words[i] = word_at(from + 4 * i) >> 2 * (part % 4) & 0x03030303;
}

struct Q2_K : LargeBlock<TYPE_Q2_K, 4, 0, true, 84, 16, 80> {
    static uint16_t minimum_unit(const uint8_t* block) { return half_at(block + 82); }
    static int scale_code(const uint8_t* block, int k) { return block[k] & 15; }
    static int minimum_code(const uint8_t* block, int k) { return block[k] >> 4; }
    static float scale(const uint8_t* block, int k) {
        return from_float16(unit(block)) * static_cast<float>(scale_code(block, k));
    }
    static float minimum(const uint8_t* block, int k) {
        return -from_float16(minimum_unit(block)) * static_cast<float>(minimum_code(block, k));
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) { read_pairs_of_bits(block + 16, part, words); }
};

struct Q3_K : LargeBlock<TYPE_Q3_K, 4, 4, false, 110, 16, 108> {
    static int scale_code(const uint8_t* block, int k) {
        const uint8_t* sc = block + 96;
        return ((sc[k % 8] >> k / 8 * 4 & 15) | (sc[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32;
    }
    static float scale(const uint8_t* block, int k) {
        return from_float16(unit(block)) * static_cast<float>(scale_code(block, k));
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        read_pairs_of_bits(block + 32, part, words);
        for (int i = 0; i < PART_WORDS; i++) words[i] |= (word_at(block + 4 * i) >> part & 0x01010101) << 2;
    }
};

// Six bits for the scale and six for the minimum of each group of 32: 12 bytes behind the two units.
template <int TYPE, int BITS, int BYTES>
struct KBlock : LargeBlock<TYPE, BITS, 0, true, BYTES, 32, 0> {
    static uint16_t minimum_unit(const uint8_t* block) { return half_at(block + 2); }
    static int scale_code(const uint8_t* block, int k) {
        const uint8_t* sc = block + 4;
        return k < 4 ? sc[k] & 63 : (sc[k + 4] & 15) | sc[k - 4] >> 6 << 4;
    }
    static int minimum_code(const uint8_t* block, int k) {
        const uint8_t* sc = block + 4;
        return k < 4 ? sc[k + 4] & 63 : sc[k + 4] >> 4 | sc[k] >> 6 << 4;
    }
    static float scale(const uint8_t* block, int k) {
        return from_float16(KBlock::unit(block)) * static_cast<float>(scale_code(block, k));
    }
    static float minimum(const uint8_t* block, int k) {
        return -from_float16(minimum_unit(block)) * static_cast<float>(minimum_code(block, k));
    }
    // Two parts share 32 bytes.
    static void read(const uint8_t* numbers, int part, uint32_t* words) {
        for (int i = 0; i < PART_WORDS; i++) words[i] = word_at(numbers + part / 2 * 32 + 4 * i) >> part % 2 * 4 & LOW_HALVES;
    }
};

struct Q4_K : KBlock<TYPE_Q4_K, 4, 144> {
    static void codes(const uint8_t* block, int part, uint32_t* words) { read(block + 16, part, words); }
};

struct Q5_K : KBlock<TYPE_Q5_K, 5, 176> {
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        read(block + 48, part, words);
        for (int i = 0; i < PART_WORDS; i++) words[i] |= (word_at(block + 16 + 4 * i) >> part & 0x01010101) << 4;
    }
};

struct Q6_K : LargeBlock<TYPE_Q6_K, 6, 32, false, 210, 16, 208> {
    static int scale_code(const uint8_t* block, int k) { return static_cast<int8_t>(block[192 + k]); }
    static float scale(const uint8_t* block, int k) {
        return from_float16(unit(block)) * static_cast<float>(scale_code(block, k));
    }
    // Half of a block, four parts: 64 bytes of lower halves, 32 of the two bits above them.
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const int quarter = part % 4;
        const uint8_t *low = block + part / 4 * 64 + quarter % 2 * 32, *high = block + 128 + part / 4 * 32;
        for (int i = 0; i < PART_WORDS; i++) {
            words[i] = (word_at(low + 4 * i) >> quarter / 2 * 4 & LOW_HALVES) |
                       (word_at(high + 4 * i) >> 2 * quarter & 0x03030303) << 4;
        }
    }
};

struct IQ4_XS : LargeBlock<TYPE_IQ4_XS, 4, 0, false, 136, 32, 0> {
    static float number(int code) { return IQ4_VALUES[code]; }
    static int scale_code(const uint8_t* block, int k) {
        return ((block[4 + k / 2] >> k % 2 * 4 & 15) | (half_at(block + 2) >> 2 * k & 3) << 4) - 32;
    }
    static float scale(const uint8_t* block, int k) {
        return from_float16(unit(block)) * static_cast<float>(scale_code(block, k));
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) { read_halves(block + 8 + 16 * part, words); }
};
