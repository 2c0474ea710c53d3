// CRC-32C (Castagnoli), as iSCSI and SSE 4.2 compute it: reflected, with all bits inverted before and after.
//
// A processor's instruction takes 8 bytes each cycle but needs three until the next one may use its result. So three
// streams are computed side by side, and joined: the checksum of A followed by B is that of A followed by as many zeros,
// plus that of B. What n zero bytes do to a checksum is a product with x^8n, which is linear, so tables hold it.
#pragma once

#include <cstdint>
#include <cstring>

namespace crc32c {

constexpr uint32_t POLYNOMIAL = 0x82f63b78;

// The product of two polynomials modulo CRC-32C's. Bit 31 is the coefficient of 1, bit 30 that of x.
inline uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        if (a >> bit & 1) product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

inline uint32_t power_of_x(uint64_t exponent) {
    uint32_t found = 1u << 31, square = 1u << 30;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) found = times(found, square);
        square = times(square, square);
    }
    return found;
}

// What `bytes` zero bytes make of a checksum.
struct Zeros {
    explicit Zeros(uint64_t bytes) {
        const uint32_t factor = power_of_x(8 * bytes);
        for (uint32_t place = 0; place < 4; place++) {
            for (uint32_t byte = 0; byte < 256; byte++) table[place][byte] = times(factor, byte << 8 * place);
        }
    }

    uint32_t operator()(uint32_t crc) const {
        return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
    }

    uint32_t table[4][256];
};

// The portable way: eight bytes by eight tables.
struct Bytes {
    Bytes() {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
            table[0][byte] = crc;
        }
        for (uint32_t place = 1; place < 8; place++) {
            for (uint32_t byte = 0; byte < 256; byte++) {
                const uint32_t before = table[place - 1][byte];
                table[place][byte] = before >> 8 ^ table[0][before & 255];
            }
        }
    }

    uint32_t table[8][256];
};

inline uint64_t word_at(const uint8_t* data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

inline uint32_t by_tables(uint32_t crc, const uint8_t* data, int64_t size) {
    static const Bytes bytes;
    for (; size >= 8; size -= 8, data += 8) {
        const uint64_t word = word_at(data) ^ crc;
        crc = 0;
        for (int place = 0; place < 8; place++) crc ^= bytes.table[7 - place][word >> 8 * place & 255];
    }
    for (; size > 0; size--, data++) crc = crc >> 8 ^ bytes.table[0][(crc ^ *data) & 255];
    return crc;
}

#if defined(__x86_64__)
#define SLUICE_CRC_INSTRUCTION
#pragma GCC push_options
#pragma GCC target("sse4.2")
INL uint64_t add_word(uint64_t crc, uint64_t word) { return __builtin_ia32_crc32di(crc, word); }
INL uint64_t add_byte(uint64_t crc, uint8_t byte) { return __builtin_ia32_crc32qi(static_cast<uint32_t>(crc), byte); }
inline bool has_instruction() { return CpuId(1, 0).c >> 20 & 1; }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define SLUICE_CRC_INSTRUCTION
INL uint64_t add_word(uint64_t crc, uint64_t word) { return __crc32cd(static_cast<uint32_t>(crc), word); }
INL uint64_t add_byte(uint64_t crc, uint8_t byte) { return __crc32cb(static_cast<uint32_t>(crc), byte); }
inline bool has_instruction() { return true; }
#endif

#if defined(SLUICE_CRC_INSTRUCTION)
// Three streams of `stream` bytes, as often as there is room for them.
INL uint32_t by_streams(uint32_t crc, const uint8_t*& data, int64_t& size, int64_t stream, const Zeros& one, const Zeros& two) {
    for (; size >= 3 * stream; size -= 3 * stream, data += 3 * stream) {
        uint64_t a = crc, b = 0, c = 0;
        for (int64_t at = 0; at < stream; at += 8) {
            a = add_word(a, word_at(data + at));
            b = add_word(b, word_at(data + stream + at));
            c = add_word(c, word_at(data + 2 * stream + at));
        }
        crc = two(static_cast<uint32_t>(a)) ^ one(static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
    }
    return crc;
}

inline uint32_t by_instruction(uint32_t crc, const uint8_t* data, int64_t size) {
    constexpr int64_t LONG = 1024, SHORT = 64;
    static const Zeros one_long(LONG), two_long(2 * LONG), one_short(SHORT), two_short(2 * SHORT);
    crc = by_streams(crc, data, size, LONG, one_long, two_long);
    crc = by_streams(crc, data, size, SHORT, one_short, two_short);
    uint64_t rest = crc;
    for (; size >= 8; size -= 8, data += 8) rest = add_word(rest, word_at(data));
    for (; size > 0; size--, data++) rest = add_byte(rest, *data);
    return static_cast<uint32_t>(rest);
}
#endif

#if defined(__x86_64__)
#pragma GCC pop_options
#endif

// The checksum of what has the checksum `crc`, followed by `data`.
inline uint32_t of(uint32_t crc, const void* data, int64_t size, bool portable = false) {
    const auto* bytes = static_cast<const uint8_t*>(data);
#if defined(SLUICE_CRC_INSTRUCTION)
    static const bool has = has_instruction();
    if (has && !portable) return ~by_instruction(~crc, bytes, size);
#endif
    return ~by_tables(~crc, bytes, size);
}

}    // namespace crc32c
