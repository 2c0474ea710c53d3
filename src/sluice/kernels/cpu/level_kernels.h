// What a level of instructions offers, and what its kernels work on.
#pragma once

#include <cstdint>

#include "abi.h"
#include "cpu.h"
#include "lora_work.h"
#include "outliers.h"
#include "packing.h"
#include "plan.h"
#include "state_work.h"

#define INL static inline __attribute__((always_inline))
#define INL_MEMBER inline __attribute__((always_inline))

constexpr int MAX_HEAD_DIM = 512;
constexpr int CONV_CHANNELS = 256;    // least of an item
constexpr int GROUP_STEP = 16;        // inputs that are summed together
constexpr int TOTALS_BYTES = PART / GROUP_STEP * sizeof(int32_t);
constexpr int UNPACKED_PARTS = 8;     // that are unpacked together
// Of one thread: the sums of a slab of rows, three times; parts of 32 outputs in bytes; and their scales and minimums.
constexpr int GROUPED_SUMS = LinearItems::SLAB_ROWS * PACKED_BLOCK;
constexpr int GROUPED_SCALES = UNPACKED_PARTS * PART / GROUP_STEP * PACKED_BLOCK;
constexpr int GROUPED_BUFFER = 3 * GROUPED_SUMS + UNPACKED_PARTS * PART * PACKED_BLOCK / 4 + 2 * GROUPED_SCALES;

// A product with a quantised weight, and its rows once they are quantised.
struct QuantizedCall {
    const PackedLinearCall& linear;
    uint8_t* values;    // [rows, stride]
    float* scales;      // [rows]
    int32_t* group_sums;    // [rows, groups] of weights of four bits: of the values, or what sums start at
    int64_t stride;
};

// A product with weights in groups, and its rows once they are quantised.
struct GroupedWork {
    const GroupedLinearCall& call;
    PackedLinearCall finish;               // how sums are finished
    uint8_t* values;                       // [rows, stride], signed
    int32_t* totals;                       // [rows, in / 16], of the values
    float* scales;                         // [rows, in / 32]
    Outliers& outliers;
    int64_t stride;

    int64_t run_of(int row, int run) const { return static_cast<int64_t>(row) * (call.in / PART) + run; }
};

// Rows of products, added for each result in the order of its choices.
struct CombineCall {
    const uint16_t* found;    // [pairs, size]; behind it is memory for a vector
    const int32_t* places;    // [rows, choices] in `found`
    const float* weights;     // [rows, choices]
    uint16_t* y;              // [rows, size]
    int choices, size;
};

struct Kernels {
    void (*attend_bf16)(const AttentionCall&, Plan&, const Item&, float*);
    void (*attend_float)(const AttentionCall&, Plan&, const Item&, float*);
    int64_t (*attend_buffer)(int rows, int head_dim);
    void (*norm_bf16)(const NormCall&, int, int);
    void (*norm_float)(const NormCall&, int, int);
    void (*rotate_store_bf16)(const RotateStoreCall&, int, int);
    void (*rotate_store_float)(const RotateStoreCall&, int, int);
    void (*silu_mul_bf16)(const SiluMulCall&, int, int);
    void (*silu_mul_float)(const SiluMulCall&, int, int);
    void (*packed_linear)(const PackedLinearCall&, int block, int from, int until, float* buffer);
    bool widens;    // `packed_linear` takes x in float32
    void (*quantize_rows)(const QuantizedCall&, int from, int until);
    void (*quantized_linear)(const QuantizedCall&, int block, int from, int until, float* buffer);
    void (*quantize_runs)(const GroupedWork&, int from, int until);
    void (*grouped_linear)(const GroupedWork&, int part, int block, int from, int until, float* buffer);
    void (*combine)(const CombineCall&, int, int);
    LoraStep lora_shrink, lora_expand;
    void (*causal_conv_bf16)(const CausalConvCall&, int, int);
    void (*causal_conv_float)(const CausalConvCall&, int, int);
    void (*recur)(const RecurrenceCall&, const StateItem&, float* buffer);
    void (*keep_keys)(const RecurrenceCall&, int, int);
    void (*gated_norm_bf16)(const GatedNormCall&, int, int);
    void (*gated_norm_float)(const GatedNormCall&, int, int);
    void (*bound_pages_bf16)(const PageBoundsCall&, int, int);
    void (*bound_pages_float)(const PageBoundsCall&, int, int);
};

// The kernels of a level; null if they are not for this kind of processor.
const Kernels* kernels_of(Level level);
