// Products of 32 rows with 32 columns of bfloat16 or bytes, on AMX's tile registers, or on emulated registers in memory, so
// that code built on them can be tested on any machine. A tile is sixteen rows of 64 bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"

// The operands of one product: c[32][32] (+)= a[32][DEPTH steps] * b. Elements are of bfloat16, summed in float; or bytes,
// those of `a` with a sign or without, summed in integers.
template <class Left>
struct TileProduct {
    static constexpr int DEPTH = 64 / sizeof(Left);
    using Right = std::conditional_t<sizeof(Left) == 1, int8_t, uint16_t>;
    using Sum = std::conditional_t<sizeof(Left) == 1, int32_t, float>;

    const Left* a;
    int64_t a_stride;
    const Right* const* b;    // [2 step + i]: DEPTH elements of the summed dimension, four bytes at a time, for sixteen columns
    int64_t b_stride;         // between four bytes and the next
    Sum* c;
    int64_t c_stride;
    int steps;
    bool second_rows, second_columns, accumulate;    // whether to compute rows from 16 on, columns from 16 on

    // Sums in tiles 0 to 3, left sides in 4 and 5, right sides in 6 and 7.
    template <class Tiles>
    __attribute__((always_inline)) void run_on(Tiles& tiles) const {
        const int64_t c_bytes = c_stride * 4, a_bytes = a_stride * sizeof(Left), b_bytes = b_stride * sizeof(Right);
        Sum *const right = c + 16, *const lower = c + 16 * c_stride, *const last = lower + 16;
        const bool both = second_rows && second_columns;
        if (accumulate) {
            tiles.template load<0>(c, c_bytes);
            if (second_columns) tiles.template load<1>(right, c_bytes);
            if (second_rows) tiles.template load<2>(lower, c_bytes);
            if (both) tiles.template load<3>(last, c_bytes);
        } else {
            tiles.template zero<0>();
            tiles.template zero<1>();
            tiles.template zero<2>();
            tiles.template zero<3>();
        }
        for (int step = 0; step < steps; step++) {
            const Left* left = a + DEPTH * step;
            tiles.template load<4>(left, a_bytes);
            tiles.template load<6>(b[2 * step], b_bytes);
            tiles.template multiply<Left, 0, 4, 6>();
            if (second_columns) tiles.template load<7>(b[2 * step + 1], b_bytes);
            if (second_columns) tiles.template multiply<Left, 1, 4, 7>();
            if (second_rows) tiles.template load<5>(left + 16 * a_stride, a_bytes);
            if (second_rows) tiles.template multiply<Left, 2, 5, 6>();
            if (both) tiles.template multiply<Left, 3, 5, 7>();
        }
        tiles.template store<0>(c, c_bytes);
        if (second_columns) tiles.template store<1>(right, c_bytes);
        if (second_rows) tiles.template store<2>(lower, c_bytes);
        if (both) tiles.template store<3>(last, c_bytes);
    }
};

// Tile types: one is made before a run of products and destroyed after it.
struct NoTiles {};

#if defined(__x86_64__)
// Assembly, because the intrinsics need the tile's number as a literal, and target options that prevent inlining into
// `TileProduct`.
struct AmxRegisters {
    template <int T>
    __attribute__((always_inline)) void zero() {
        __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
    }
    template <int T>
    __attribute__((always_inline)) void load(const void* p, int64_t stride) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
    }
    template <int T>
    __attribute__((always_inline)) void store(void* p, int64_t stride) {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
    }
    template <class Left, int C, int A, int B>
    __attribute__((always_inline)) void multiply() {
        if constexpr (std::is_same_v<Left, uint16_t>) {
            __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        } else if constexpr (std::is_same_v<Left, uint8_t>) {
            __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        } else {
            __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
        }
    }
};

class AmxTiles {
public:
    AmxTiles() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        __asm__ volatile("ldtilecfg %0" : : "m"(config));
    }
    ~AmxTiles() { __asm__ volatile("tilerelease"); }
    AmxTiles(const AmxTiles&) = delete;
    AmxTiles& operator=(const AmxTiles&) = delete;

    template <class Left>
    void multiply(const TileProduct<Left>& product) {
        AmxRegisters registers;
        product.run_on(registers);
    }
};
#endif

class EmulatedTiles {
public:
    template <class Left>
    void multiply(const TileProduct<Left>& product) {
        product.run_on(*this);
    }

    template <int T>
    void zero() {
        std::memset(bytes[T], 0, sizeof bytes[T]);
    }
    template <int T>
    void load(const void* p, int64_t stride) {
        for (int i = 0; i < 16; i++) std::memcpy(bytes[T][i], static_cast<const uint8_t*>(p) + i * stride, 64);
    }
    template <int T>
    void store(void* p, int64_t stride) {
        for (int i = 0; i < 16; i++) std::memcpy(static_cast<uint8_t*>(p) + i * stride, bytes[T][i], 64);
    }
    template <class Left, int C, int A, int B>
    void multiply() {
        constexpr int DEPTH = TileProduct<Left>::DEPTH, KP = DEPTH / 16;
        typename TileProduct<Left>::Sum sums[16][16];
        typename TileProduct<Left>::Right right[16][DEPTH];
        Left left[16][DEPTH];
        std::memcpy(sums, bytes[C], sizeof sums);
        std::memcpy(left, bytes[A], sizeof left);
        std::memcpy(right, bytes[B], sizeof right);
        for (int m = 0; m < 16; m++) {
            for (int k = 0; k < DEPTH; k++) {
                for (int n = 0; n < 16; n++) sums[m][n] += number(left[m][k]) * number(right[k / KP][KP * n + k % KP]);
            }
        }
        std::memcpy(bytes[C], sums, sizeof sums);
    }

private:
    static float number(uint16_t x) { return widen(x); }
    static int32_t number(uint8_t x) { return x; }
    static int32_t number(int8_t x) { return x; }

    uint8_t bytes[8][16][64];
};
