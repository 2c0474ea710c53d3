// The layout of the weights of linear layers, and the division of their product into items.
//
//   [out / 32][in / 2][32 outputs][2 neighbours in `in`]        bfloat16
//   [out / 32][in / 4][32 outputs][4 neighbours in `in`]        int8
//   [out / 32][in / 4][16 outputs][4 neighbours in `in`]        four bits: outputs 0 to 15 in the lower half of each byte,
//                                                               outputs 16 to 31 in the upper half
//
// The last block is padded with weights of 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi.h"

constexpr int PACKED_BLOCK = 32;      // outputs that are computed together
constexpr int NIBBLE_ZERO = 8;        // what stands for zero in a weight of four bits without minimums
constexpr int PACKED_AHEAD = 8192;    // bytes to prefetch: enough to hide memory latency behind a tile of twelve rows

// Pack weights of shape [out][in], with N neighbours together. `packed` may be `weight` itself if `out` is a multiple of
// 32, because each block then stays where it is.
template <int N, class E>
void pack_linear(const E* weight, int64_t out, int64_t in, E* packed) {
    std::vector<E> block(PACKED_BLOCK * in);
    for (int64_t column = 0; column < out; column += PACKED_BLOCK) {
        std::fill(block.begin(), block.end(), 0);
        for (int64_t n = 0; n < std::min<int64_t>(PACKED_BLOCK, out - column); n++) {
            const E* row = weight + (column + n) * in;
            for (int64_t k = 0; k < in; k += N) std::memcpy(&block[k * PACKED_BLOCK + N * n], row + k, N * sizeof *row);
        }
        std::memcpy(packed + column * in, block.data(), sizeof(E) * block.size());
    }
}

// Pack weights [out][in / 2] of four bits, the value of the even input in the lower half. `packed` as above.
inline void pack_nibbles(const uint8_t* weight, int64_t out, int64_t in, uint8_t* packed) {
    const int64_t row_bytes = in / 2, half = PACKED_BLOCK / 2;
    std::vector<uint8_t> block(PACKED_BLOCK * row_bytes);
    for (int64_t column = 0; column < out; column += PACKED_BLOCK) {
        std::fill(block.begin(), block.end(), 0);
        for (int64_t n = 0; n < std::min<int64_t>(PACKED_BLOCK, out - column); n++) {
            const uint8_t* row = weight + (column + n) * row_bytes;
            for (int64_t k = 0; k < in; k++) {
                const uint8_t value = row[k / 2] >> k % 2 * 4 & 15;
                block[k / 4 * 2 * PACKED_BLOCK + n % half * 4 + k % 4] |= value << n / half * 4;
            }
        }
        std::memcpy(packed + column * row_bytes, block.data(), block.size());
    }
}

inline int weight_bits(const PackedLinearCall& call) { return call.group ? 4 : call.scales ? 8 : 16; }

// One item: some blocks, with some rows.
struct LinearItem {
    int first_block, last_block, first_row, last_row;
};

// A product divided into items. They are large, so the prefetches at their ends do not matter, and many, so the threads
// end at about the same time and a thread that the system takes off its core delays little.
class LinearItems {
public:
    LinearItems(const PackedLinearCall& call, int threads)
        : LinearItems(call.rows, (call.out + PACKED_BLOCK - 1) / PACKED_BLOCK,
                      (1 + call.is_gated) * weight_bits(call) * PACKED_BLOCK / 8 * call.in, threads) {}

    // `block_bytes`: of the weights of a block, and of the one that it gates.
    LinearItems(int rows, int blocks, int block_bytes, int threads)
        : rows(rows), blocks(blocks), together(blocks_of_item(block_bytes, threads)),
          in_slab((blocks + together - 1) / together) {}

    int64_t count() const { return static_cast<int64_t>((rows + SLAB_ROWS - 1) / SLAB_ROWS) * in_slab; }

    LinearItem operator[](int64_t item) const {
        const int slab = static_cast<int>(item / in_slab), block = static_cast<int>(item % in_slab) * together;
        return {block, std::min(blocks, block + together), slab * SLAB_ROWS, std::min(rows, (slab + 1) * SLAB_ROWS)};
    }

    static constexpr int SLAB_ROWS = 264;         // of x: as many as stay in the second-level cache while blocks are read

    static constexpr int FEW_ROWS = 24;           // multiplying this many takes as long as reading the weights
    static constexpr int ITEM_BYTES = 1 << 20;    // of weights for few rows, some tens of microseconds

private:
    static constexpr int SHARES = 4;              // items of each thread, at least

    int blocks_of_item(int block_bytes, int threads) const {
        const int most = ITEM_BYTES / block_bytes * FEW_ROWS / std::clamp(rows, FEW_ROWS, SLAB_ROWS);
        return std::max(1, std::min(most, blocks / (SHARES * threads)));
    }

    int rows, blocks, together, in_slab;
};
