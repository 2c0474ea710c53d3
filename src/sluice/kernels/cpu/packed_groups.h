// The layout of weights in groups that are multiplied as a GGUF file stores them, and its packing.
//
// As in `packing.h`, 32 outputs are a block, and what the product reads lies in the order in which it reads it:
//
//   [out / 32][in / INPUTS] { units, [INPUTS / 32] { low, high, scales } }
//
//   units     float16, of types with 256 inputs in a block: [32] scales, [32] of minimums if there are any
//   low       the lower four bits of 32 inputs: [8][16 outputs][4 neighbours], outputs 16 to 31 in the upper half of a
//             byte. Of eight bits, signed: [8][2][16 outputs][4 neighbours]
//   high      a fifth bit: [2][16 outputs][4 neighbours], of four words of inputs; bit 2 j + n is of word j and of half n
//             of the outputs. Two bits: [4][16 outputs][4], of two words; bits 4 j + 2 n and the one above
//   scales    float16 [32], and minimums [32]; of K types the lower four bits [32] of the scale's code, the minimum's in
//             the upper half, and their upper two bits [16], (scale, minimum) of output n and of n + 16; of Q2_K both
//             codes in one byte, [2][32]; of Q3_K and Q6_K int8 [2][32]; of IQ4_XS int8 [32]; of MXFP4 exponents [32]
//
// That takes as many bytes as in the file, or one in sixty more (IQ4_XS), but for Q2_K (1.7 times) and Q3_K (1.3 times).
// Outputs that are missing are zero. Types that are unpacked a tile at a time (`IS_TILED`) stay as they are, in records:
//
//   [out / 32][in / INPUTS] { [32] blocks }
#pragma once

#include <algorithm>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "packing.h"
#include "stored_types.h"

enum class ScaleForm { HALVES, K_CODES, BYTE_CODES, SIGNED_CODES, EXPONENTS };

template <class Type>
constexpr ScaleForm SCALE_FORM = Type::TYPE == TYPE_MXFP4  ? ScaleForm::EXPONENTS
                                 : Type::INPUTS == PART    ? ScaleForm::HALVES
                                 : Type::TYPE == TYPE_Q2_K ? ScaleForm::BYTE_CODES
                                 : Type::HAS_MINIMUMS      ? ScaleForm::K_CODES
                                                           : ScaleForm::SIGNED_CODES;

// Bytes of a layout's pieces.
template <class Type, bool = IS_TILED<Type>>
struct Packed {
    static constexpr ScaleForm FORM = SCALE_FORM<Type>;
    static constexpr int PARTS = Type::INPUTS / PART, GROUPS = PART / Type::GROUP;    // of a record, of a part
    static constexpr int UNITS = Type::INPUTS == PART ? 0 : (1 + Type::HAS_MINIMUMS) * 2 * PACKED_BLOCK;
    static constexpr int LOW = Type::BITS == 8 ? PART * PACKED_BLOCK : PART * PACKED_BLOCK / 2;
    static constexpr int HIGH = Type::BITS == 8 ? 0 : (Type::BITS - 4) * PART * PACKED_BLOCK / 8;
    static constexpr int SCALES = FORM == ScaleForm::HALVES    ? (1 + Type::HAS_MINIMUMS) * 2 * PACKED_BLOCK
                                  : FORM == ScaleForm::K_CODES ? PACKED_BLOCK * 3 / 2
                                                               : GROUPS * PACKED_BLOCK;
    static constexpr int PART_BYTES = LOW + HIGH + SCALES, RECORD = UNITS + PARTS * PART_BYTES;
    static int64_t block_bytes(int64_t in) { return in / Type::INPUTS * RECORD; }
};

template <class Type>
struct Packed<Type, true> {
    static constexpr int PARTS = Type::INPUTS / PART, RECORD = PACKED_BLOCK * Type::BYTES;
    static int64_t block_bytes(int64_t in) { return in / Type::INPUTS * RECORD; }
};

inline void put_word(uint8_t* to, uint32_t word) { std::memcpy(to, &word, sizeof word); }

// Put the codes of 32 inputs of outputs n and n + 16.
template <class Type>
void put_codes(const uint32_t* first, const uint32_t* second, int n, uint8_t* to) {
    uint8_t* at = to + 4 * n;
    if constexpr (Type::BITS == 8) {
        for (int i = 0; i < PART_WORDS; i++) put_word(at + 128 * i, first[i]), put_word(at + 128 * i + 64, second[i]);
        return;
    }
    for (int i = 0; i < PART_WORDS; i++) {
        put_word(at + 64 * i, (first[i] & LOW_HALVES) | (second[i] & LOW_HALVES) << 4);
    }
    uint8_t* high = at + Packed<Type>::LOW;
    constexpr int WIDTH = Type::BITS - 4, EACH = WIDTH == 1 ? 4 : 2;    // bits; words in one of the plane
    constexpr uint32_t MASK = 0x01010101u * ((1 << WIDTH) - 1);
    for (int i = 0; WIDTH > 0 && i < PART_WORDS; i += EACH) {
        uint32_t word = 0;
        for (int j = 0; j < EACH; j++) {
            word |= ((first[i + j] >> 4 & MASK) | (second[i + j] >> 4 & MASK) << WIDTH) << 2 * WIDTH * j;
        }
        put_word(high + 64 * (i / EACH), word);
    }
}

template <class Type>
void put_scales(const uint8_t* const* blocks, int part, uint8_t* to) {
    constexpr ScaleForm FORM = SCALE_FORM<Type>;
    for (int n = 0; n < PACKED_BLOCK; n++) {
        const uint8_t* block = blocks[n];
        if constexpr (FORM == ScaleForm::HALVES) {
            std::memcpy(to + 2 * n, block, 2);
            if (Type::HAS_MINIMUMS) std::memcpy(to + 2 * (PACKED_BLOCK + n), block + 2, 2);
        } else if constexpr (FORM == ScaleForm::K_CODES) {
            const int scale = Type::scale_code(block, part), minimum = Type::minimum_code(block, part), half = n / 16;
            uint8_t& high = to[PACKED_BLOCK + n % 16];
            to[n] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
            high = static_cast<uint8_t>((half ? high : 0) | (scale >> 4 | minimum >> 4 << 2) << 4 * half);
        } else if constexpr (FORM == ScaleForm::BYTE_CODES) {
            for (int group = 0; group < PART / Type::GROUP; group++) {
                const int k = part * (PART / Type::GROUP) + group;
                const int both = Type::scale_code(block, k) | Type::minimum_code(block, k) << 4;
                to[group * PACKED_BLOCK + n] = static_cast<uint8_t>(both);
            }
        } else if constexpr (FORM == ScaleForm::SIGNED_CODES) {
            for (int group = 0; group < PART / Type::GROUP; group++) {
                const int code = Type::scale_code(block, part * (PART / Type::GROUP) + group);
                to[group * PACKED_BLOCK + n] = static_cast<uint8_t>(code);
            }
        } else {
            to[n] = block[0];
        }
    }
}

template <class Type>
void put_units(const uint8_t* const* blocks, uint8_t* to) {
    if constexpr (Packed<Type>::UNITS > 0) {
        for (int n = 0; n < PACKED_BLOCK; n++) {
            const uint16_t unit = Type::unit(blocks[n]);
            std::memcpy(to + 2 * n, &unit, 2);
            if constexpr (Type::HAS_MINIMUMS) {
                const uint16_t of_minimums = Type::minimum_unit(blocks[n]);
                std::memcpy(to + 2 * (PACKED_BLOCK + n), &of_minimums, 2);
            }
        }
    }
}

// Put a record of a block of outputs.
template <class Type>
void put_record(const uint8_t* const* blocks, uint8_t* to) {
    if constexpr (IS_TILED<Type>) {
        for (int n = 0; n < PACKED_BLOCK; n++) std::memcpy(to + n * Type::BYTES, blocks[n], Type::BYTES);
    } else {
        using Layout = Packed<Type>;
        put_units<Type>(blocks, to);
        to += Layout::UNITS;
        for (int part = 0; part < Layout::PARTS; part++, to += Layout::PART_BYTES) {
            for (int n = 0; n < PACKED_BLOCK / 2; n++) {
                uint32_t first[PART_WORDS], second[PART_WORDS];
                Type::codes(blocks[n], part, first);
                Type::codes(blocks[n + 16], part, second);
                put_codes<Type>(first, second, n, to);
            }
            put_scales<Type>(blocks, part, to + Layout::LOW + Layout::HIGH);
        }
    }
}

// Drop the pages of a mapped file that hold only these rows from the process. They stay in the system's cache.
template <class Type>
void drop_pages(const PackBlocksCall& call) {
#if defined(__linux__)
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(call.blocks);
    const int64_t bytes = (call.rows - 1) * call.stride + static_cast<int64_t>(call.in) / Type::INPUTS * Type::BYTES;
    const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#endif
}

// Pack one block of outputs.
template <class Type>
void pack_groups(const PackBlocksCall& call, int number) {
    static const uint8_t missing[Type::BYTES] = {};
    const uint8_t* rows[PACKED_BLOCK];
    int steps[PACKED_BLOCK];
    for (int n = 0; n < PACKED_BLOCK; n++) {
        const int output = number * PACKED_BLOCK + n;
        const bool is_there = output < call.out;
        const int64_t row = is_there && call.order ? call.order[output] : output;
        rows[n] = is_there ? call.blocks + row * call.stride : missing;
        steps[n] = is_there ? Type::BYTES : 0;
    }
    uint8_t* to = call.packed + number * Packed<Type>::block_bytes(call.in);
    for (int k = 0; k < call.in; k += Type::INPUTS, to += Packed<Type>::RECORD) {
        put_record<Type>(rows, to);
        for (int n = 0; n < PACKED_BLOCK; n++) rows[n] += steps[n];
    }
}

// Unpack a record: bytes [4 inputs][32 outputs][4], scales [groups][32].
template <class Type>
void unpack_record(const uint8_t* record, uint8_t* bytes, float* scales) {
    for (int n = 0; n < PACKED_BLOCK; n++, record += Type::BYTES) {
        for (int part = 0; part < Packed<Type>::PARTS; part++) {
            uint32_t words[PART_WORDS];
            Type::codes(record, part, words);
            UNROLLED for (int i = 0; i < PART_WORDS; i++) put_word(bytes + 4 * (PACKED_BLOCK * (PART_WORDS * part + i) + n), words[i]);
        }
        const float unit = Type::unit(record);
        for (int k = 0; k < Type::INPUTS / Type::GROUP; k++) scales[PACKED_BLOCK * k + n] = Type::scale(unit, record, k);
    }
}

// Unpacks the records of a block of outputs one after the other, for products of any level.
class Records {
public:
    template <class Type>
    Records(Type, const uint8_t* at)
        : at(at), unpack(unpack_record<Type>), record(Packed<Type>::RECORD), parts(Packed<Type>::PARTS),
          groups(Type::INPUTS / Type::GROUP) {}

    // Unpack the next parts, a multiple of those of a record.
    void operator()(int count, uint8_t* bytes, float* scales) {
        for (int part = 0; part < count; part += parts, at += record) {
            unpack(at, bytes, scales);
            bytes += parts * PART * PACKED_BLOCK, scales += groups * PACKED_BLOCK;
        }
    }

private:
    const uint8_t* at;
    void (*unpack)(const uint8_t*, uint8_t*, float*);
    int record, parts, groups;
};
