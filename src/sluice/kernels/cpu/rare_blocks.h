// The rarer block types of GGUF files, which `models/rare_blocks.py` defines. Products unpack their blocks, as a file has
// them, a tile at a time: so a code is a byte that may be multiplied, the number and `ZERO`, and below 128. The scale of a
// group is that of the block, its unit, times a small code.
#pragma once

#include <mutex>
#include <type_traits>

#include "stored_blocks.h"

struct Tiled {};
template <class Type>
constexpr bool IS_TILED = std::is_base_of_v<Tiled, Type>;

template <int TYPE_, int BYTES_, int INPUTS_, int GROUP_, int BITS_, int ZERO_>
struct TiledBlock : Tiled {
    static constexpr int TYPE = TYPE_, BITS = BITS_, ZERO = ZERO_, BYTES = BYTES_, INPUTS = INPUTS_, GROUP = GROUP_;
    static constexpr bool HAS_MINIMUMS = false;
    static float number(int code) { return static_cast<float>(code - ZERO); }
};

// Combinations of four or eight neighbouring codes without signs, by their indices. Python hands them over before the
// first use of a type that needs them (`models/iq_grids.py`).
struct Grids {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1[2048];
    uint32_t iq3_xxs[256], iq3_s[512];
};
inline Grids GRIDS;

inline void take_grids(const void* grids) {
    static std::once_flag once;
    std::call_once(once, [=] { std::memcpy(&GRIDS, grids, sizeof GRIDS); });
}

constexpr uint64_t EIGHT_ONES = 0x0101010101010101;

// For the signs of eight numbers, the lowest bit first: 127 in each byte whose bit is set.
struct SignMasks {
    uint64_t all[256], even[128];    // `even`: the eighth bit makes the number of set bits even

    constexpr SignMasks() : all(), even() {
        for (int bits = 0; bits < 256; bits++) {
            int odd = 0;
            for (int i = 0; i < 8; i++) {
                if (bits >> i & 1) all[bits] |= uint64_t{127} << 8 * i, odd ^= 1;
            }
            if (!odd) even[bits & 127] = all[bits];
        }
    }
};
inline constexpr SignMasks SIGNS;

// Write eight codes, negated where the mask says so. 64 stands for zero: 127 less a code and one more negates it.
inline void put_signed(uint64_t codes, uint64_t mask, uint32_t* words) {
    const uint64_t found = (codes ^ mask) + (mask & EIGHT_ONES);
    std::memcpy(words, &found, sizeof found);
}

template <int TYPE, int BYTES, int GROUP>
struct GridBlock : TiledBlock<TYPE, BYTES, 256, GROUP, 7, 64> {
    static float unit(const uint8_t* block) { return from_float16(half_at(block)); }
};

struct IQ2_XXS : GridBlock<TYPE_IQ2_XXS, 66, 32> {
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * (0.5f + static_cast<float>(block[9 + 8 * k] >> 4)) * 0.25f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint8_t* indices = block + 2 + 8 * part;
        const uint32_t signs = word_at(indices + 4);
        UNROLLED for (int i = 0; i < 4; i++) {
            put_signed(GRIDS.iq2_xxs[indices[i]], SIGNS.even[signs >> 7 * i & 127], words + 2 * i);
        }
    }
};

struct IQ2_XS : GridBlock<TYPE_IQ2_XS, 74, 16> {
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * (0.5f + static_cast<float>(block[66 + k / 2] >> 4 * (k % 2) & 15)) * 0.25f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        UNROLLED for (int i = 0; i < 4; i++) {
            const uint16_t both = half_at(block + 2 + 8 * part + 2 * i);
            put_signed(GRIDS.iq2_xs[both & 511], SIGNS.even[both >> 9], words + 2 * i);
        }
    }
};

struct IQ2_S : GridBlock<TYPE_IQ2_S, 82, 16> {
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * (0.5f + static_cast<float>(block[74 + k / 2] >> 4 * (k % 2) & 15)) * 0.25f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint8_t *low = block + 2 + 4 * part, *signs = block + 34 + 4 * part;
        UNROLLED for (int i = 0; i < 4; i++) {
            const int index = low[i] | (block[66 + part] >> 2 * i & 3) << 8;
            put_signed(GRIDS.iq2_s[index], SIGNS.all[signs[i]], words + 2 * i);
        }
    }
};

struct IQ3_XXS : GridBlock<TYPE_IQ3_XXS, 98, 32> {
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * (0.5f + static_cast<float>(block[69 + 4 * k] >> 4)) * 0.5f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint8_t* indices = block + 2 + 8 * part;
        const uint32_t signs = word_at(block + 66 + 4 * part);
        UNROLLED for (int i = 0; i < 4; i++) {
            const uint64_t second = GRIDS.iq3_xxs[indices[2 * i + 1]];
            put_signed(GRIDS.iq3_xxs[indices[2 * i]] | second << 32, SIGNS.even[signs >> 7 * i & 127], words + 2 * i);
        }
    }
};

struct IQ3_S : GridBlock<TYPE_IQ3_S, 110, 32> {
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * static_cast<float>(1 + 2 * (block[106 + k / 2] >> 4 * (k % 2) & 15));
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint8_t *low = block + 2 + 8 * part, *signs = block + 74 + 4 * part;
        const int high = block[66 + part];
        UNROLLED for (int i = 0; i < 4; i++) {
            const int first = low[2 * i] | (high >> 2 * i & 1) << 8, second = low[2 * i + 1] | (high >> (2 * i + 1) & 1) << 8;
            const uint64_t upper = GRIDS.iq3_s[second];
            put_signed(GRIDS.iq3_s[first] | upper << 32, SIGNS.all[signs[i]], words + 2 * i);
        }
    }
};

// Eight times the numbers -1, 0 and 1, shifted up or down by one: the shift is an eighth.
inline void put_shifted(int index, bool is_lower, uint32_t* words) {
    const uint64_t found = GRIDS.iq1[index] + EIGHT_ONES - 2 * EIGHT_ONES * is_lower;    // no branch: it would be random
    std::memcpy(words, &found, sizeof found);
}

struct IQ1_S : GridBlock<TYPE_IQ1_S, 50, 32> {
    static uint16_t high(const uint8_t* block, int part) { return half_at(block + 34 + 2 * part); }
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * static_cast<float>(2 * (high(block, k) >> 12 & 7) + 1) * 0.125f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint16_t upper = high(block, part);
        UNROLLED for (int i = 0; i < 4; i++) {
            put_shifted(block[2 + 4 * part + i] | (upper >> 3 * i & 7) << 8, upper >> 15, words + 2 * i);
        }
    }
};

struct IQ1_M : GridBlock<TYPE_IQ1_M, 56, 16> {
    static uint16_t word(const uint8_t* block, int i) { return half_at(block + 48 + 2 * i); }
    // The scale of the block lies in the upper four bits of the words with the groups' scales.
    static float unit(const uint8_t* block) {
        int bits = 0;
        for (int i = 0; i < 4; i++) bits |= word(block, i) >> 12 << 4 * i;
        return from_float16(static_cast<uint16_t>(bits));
    }
    static float scale(float unit, const uint8_t* block, int k) {
        return unit * static_cast<float>(2 * (word(block, k / 4) >> 3 * (k % 4) & 7) + 1) * 0.125f;
    }
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        UNROLLED for (int i = 0; i < 4; i++) {
            const int high = block[32 + 2 * part + i / 2] >> 4 * (i % 2);
            put_shifted(block[4 * part + i] | (high & 7) << 8, high & 8, words + 2 * i);
        }
    }
};

// Types of two bits and fewer, with one scale for a block that lies at a byte of it.
template <int TYPE, int BYTES, int INPUTS, int SCALE>
struct TernaryBlock : TiledBlock<TYPE, BYTES, INPUTS, 32, 2, 1> {
    static float unit(const uint8_t* block) { return from_float16(half_at(block + SCALE)); }
    static float scale(float unit, const uint8_t*, int) { return unit; }
};

struct TQ1_0 : TernaryBlock<TYPE_TQ1_0, 54, 256, 52> {
    typedef uint16_t Pairs __attribute__((vector_size(16)));

    // A byte is a fraction, whose ternary digits are the numbers: those at a place of 16 bytes.
    static void digits(const uint8_t* stored, int place, uint8_t* to) {
        constexpr uint16_t POWERS[5] = {1, 3, 9, 27, 81};
        Pairs pairs;
        std::memcpy(&pairs, stored, sizeof pairs);
        const Pairs low = (pairs & 255) * POWERS[place] & 255, high = (pairs >> 8) * POWERS[place] & 255;
        const Pairs found = low * 3 >> 8 | (high * 3 & 0xff00);
        std::memcpy(to, &found, sizeof found);
    }
    // Five digits of 32 bytes, five of the next 16, and four of the last four.
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        uint8_t found[PART];
        const int place = 2 * (part - 5);
        if (part < 5) {
            digits(block, part, found), digits(block + 16, part, found + 16);
        } else if (part < 7) {
            digits(block + 32, place, found), digits(block + 32, place + 1, found + 16);
        } else {
            digits(block + 32, place, found);
            UNROLLED for (int i = 0; i < 4; i++) {
                uint8_t last[16];
                digits(block + 36, i, last);
                std::memcpy(found + 16 + 4 * i, last + 12, 4);
            }
        }
        std::memcpy(words, found, sizeof found);
    }
};

struct TQ2_0 : TernaryBlock<TYPE_TQ2_0, 66, 256, 64> {
    static void codes(const uint8_t* block, int part, uint32_t* words) { read_pairs_of_bits(block, part, words); }
};

struct Q1_0 : TernaryBlock<TYPE_Q1_0, 18, 128, 0> {
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        const uint32_t bits = word_at(block + 2 + 4 * part);
        UNROLLED for (int i = 0; i < PART_WORDS; i++) words[i] = spread(bits >> 4 * i) << 1;
    }
};

struct Q2_0 : TernaryBlock<TYPE_Q2_0, 18, 64, 0> {
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        UNROLLED for (int i = 0; i < PART_WORDS; i++) {
            const uint32_t four = block[2 + 8 * part + i];
            words[i] = (four | four << 6 | four << 12 | four << 18) & 0x03030303;
        }
    }
};

struct NVFP4 : TiledBlock<TYPE_NVFP4, 36, 64, 16, 7, 64> {
    // Numbers of e4m3 without a sign, halved because the others are doubled.
    static float unit(const uint8_t*) { return 0x1p-10f; }
    static float scale(float unit, const uint8_t* block, int k) {
        const int stored = block[k], exponent = stored >> 3 & 15, is_normal = exponent > 0;
        if (stored == 0x7f) return 0.0f;
        return static_cast<float>(((stored & 7) | is_normal << 3) << (exponent - is_normal)) * unit;
    }
    typedef uint64_t Halves __attribute__((vector_size(16)));

    // Twice the numbers of e2m1: 0 to 4, and then 6, 8 and 12. Those of the lower halves of eight bytes come first.
    static void codes(const uint8_t* block, int part, uint32_t* words) {
        UNROLLED for (int i = 0; i < 2; i++) {
            uint64_t both;
            std::memcpy(&both, block + 4 + 16 * part + 8 * i, sizeof both);
            const Halves numbers = Halves{both, both >> 4} & 15 * EIGHT_ONES, upper = numbers >> 2 & EIGHT_ONES;
            const Halves above = (numbers & 3 * EIGHT_ONES) + ((numbers & numbers >> 1 & EIGHT_ONES) << 1);
            const Halves magnitudes = (numbers & 7 * EIGHT_ONES) + (above & ((upper << 3) - upper));
            const Halves negative = numbers >> 3 & EIGHT_ONES, mask = (negative << 7) - negative;
            const Halves found = ((magnitudes + 64 * EIGHT_ONES) ^ mask) + negative;
            std::memcpy(words + 4 * i, &found, sizeof found);
        }
    }
};
