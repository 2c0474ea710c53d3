// The structures that Python passes to the kernels, mirrored field by field in `abi.py`.
//
// Every tensor is a pointer and strides in elements. Elements are bfloat16 if `is_bf16`, else float32.
// KP is the number of elements that one multiply-add step takes along the summed dimension: 2 for bfloat16 (the pairs
// that vdpbf16ps and AMX take), 1 for float32.
//
// Pages:  k  [page][kv_head][page_size / 16][head_dim / KP][16 tokens][KP]
//         v  [page][kv_head][page_size / KP][head_dim][KP]
// so that both products of attention read them in the order in which they are multiplied. Pages of int8 (`is_int8`):
//        k  [page][kv_head][page_size / 16] { [head_dim / 2][16 tokens][2] int8, [16 tokens] float scales }
//        v  [page][kv_head][page_size / 16] { [8][head_dim][2] int8, [16 tokens] float scales }
#pragma once

#include <cstdint>

// Increase it, here and in `abi.py`, with every change to the structures below or to their meaning: a library compiled
// from older sources would read the wrong fields.
constexpr int ABI_VERSION = 18;

extern "C" {

struct AttentionCall {
    const void* q;    // [N, heads, head_dim]
    void* out;        // [N, heads, head_dim], no gaps
    float* lse;       // [N, heads], natural log, or null
    const void* k;
    const void* v;
    const int32_t* page_table;    // [rows, table_stride]
    const int32_t* q_starts;    // [rows + 1]
    const int32_t* kv_lens;    // [rows]
    int64_t q_stride, table_stride;
    int32_t rows, heads, kv_heads, head_dim, page_size;
    int32_t is_bf16, is_int8, causal, window;    // window 0: none
    int32_t block_size;    // if causal, a query sees all of its block of so many positions; 1: nothing after itself
    float scale, softcap, v_scale;      // softcap 0: none
};

struct NormCall {
    void* x;              // [rows, size]
    const void* delta;    // added to x first, and x overwritten; or null
    const float* weight;
    const float* bias;    // of a layer norm, which first subtracts the mean; null: a root mean square norm
    void* out;
    int64_t x_stride, delta_stride;
    int32_t rows, size, is_bf16;
    float eps;
};

struct RotateStoreCall {
    void* q;    // [N, heads, head_dim], rotated in place; or null
    void* k;    // [N, kv_heads, head_dim], rotated in place
    const void* v;
    const void* cos;    // [N, head_dim], or null for no rotation
    const void* sin;
    const float* q_weight;    // [head_dim] norms over each head, or null
    const float* k_weight;
    const float* k_offset;    // [kv_heads, head_dim], what pages of int8 hold keys without, or null
    const int64_t* slots;    // [N] page * page_size + offset
    void* k_pages;
    void* v_pages;
    int64_t q_stride, k_stride, v_stride;
    int32_t tokens, heads, kv_heads, head_dim, page_size, is_bf16, is_int8;
    float q_eps, k_eps;
};

struct SiluMulCall {
    const void* gate;    // [rows, size]
    const void* up;
    void* out;
    int64_t gate_stride, up_stride;
    int32_t rows, size, is_bf16;
};

enum Activation { NO_ACTIVATION, SILU, GELU_TANH, RELU, CLAMPED_SILU };

enum ScaleType { FLOAT_SCALES, BFLOAT16_SCALES, FLOAT16_SCALES };

struct PackedLinearCall {
    const void* x;         // [rows, in] bfloat16, `in` even
    const void* weight;    // [out, in] in the layout of packing.h; [2 out, in] if gated, `out` a multiple of 32
    const void* scales;      // null if the weight is bfloat16. Of int8: float, for each output, in whole blocks. Of four
                             // bits: [blocks][groups][32], of `scale_type`
    const int32_t* sums;     // of an int8 weight over `in`, a multiple of 4, for each output, in whole blocks
    const void* minimums;    // of four bits, as the scales; null if 8 stands for zero
    const void* bias;      // [out], or [2 out], or null
    void* y;               // [rows, out]: f(first), or if gated f(first) * second
    int64_t x_stride, y_stride;
    int32_t rows, in, out, activation, is_gated;
    int32_t group, scale_type;    // of four bits: inputs with one scale, a multiple of 4, and a `ScaleType`; else 0
    int32_t is_float_y;    // y is float32, else bfloat16
    int32_t is_one_order;    // sum in the same order for any number of rows, with AMX, too
    float alpha, limit;    // of CLAMPED_SILU, which is gated: (clamp(second, limit) + 1) g sigmoid(alpha g), where g is
                           // the first, at most `limit`
};

// What adapters add to the outputs of a layer that was joined of `parts`.
struct LoraCall {
    const void* x;             // [rows, in] bfloat16
    const int32_t* slots;      // [rows] the slot of each row's adapter; below 0: none
    const void* a;             // [slots, parts, max_rank, in] bfloat16
    const void* b;             // [slots, max_rank, b_stride] bfloat16, the first `out` of each row
    const int32_t* ranks;      // [slots, parts] rows of A, and of B, that count
    const float* scales;       // [slots, parts]
    const int32_t* outputs;    // [parts], together `out`
    void* y;                   // [rows, out], changed in place
    void* gated;               // [rows, out / 2] bfloat16: activation(first half of y) * second half; or null. y is float32
    int64_t x_stride, y_stride, b_stride;
    int32_t rows, in, out, parts, max_rank, activation;
    int32_t is_float_y;        // y is float32, else bfloat16
};

// Block types of GGUF files, with their numbers there.
enum StoredType {
    TYPE_Q4_0 = 2, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q5_1 = 7, TYPE_Q8_0 = 8, TYPE_Q2_K = 10, TYPE_Q3_K = 11,
    TYPE_Q4_K = 12, TYPE_Q5_K = 13, TYPE_Q6_K = 14, TYPE_IQ2_XXS = 16, TYPE_IQ2_XS = 17, TYPE_IQ3_XXS = 18, TYPE_IQ1_S = 19,
    TYPE_IQ4_NL = 20, TYPE_IQ3_S = 21, TYPE_IQ2_S = 22, TYPE_IQ4_XS = 23, TYPE_IQ1_M = 29, TYPE_TQ1_0 = 34, TYPE_TQ2_0 = 35,
    TYPE_MXFP4 = 39, TYPE_NVFP4 = 40, TYPE_Q1_0 = 41, TYPE_Q2_0 = 42
};

// Blocks as a GGUF file stores them, to be packed in the layout of `packed_groups.h`.
struct PackBlocksCall {
    const uint8_t* blocks;    // [rows, stride]
    const int32_t* order;     // [out] the row of each output, or null: in order
    uint8_t* packed;          // whole blocks of 32 outputs
    int64_t rows, stride;     // `stride`: bytes of a row
    int32_t type, out, in;    // `type`: a `StoredType`
    int32_t is_mapped;        // the blocks lie in the mapping of a file, whose pages are dropped once they are packed
};

// Outputs of a product whose weights are of one type.
struct GroupedPart {
    const uint8_t* weight;    // packed
    int32_t type, out;
};

struct GroupedLinearCall {
    const void* x;    // [rows, in] bfloat16
    const GroupedPart* parts;    // their outputs one behind the other; if gated, gate and up, of equal size
    const void* bias;            // of all outputs of the parts, or null
    void* y;                     // [rows, outputs]: f(x W^T + bias), or if gated f(gate) * up
    int64_t x_stride, y_stride;
    int32_t rows, in, count, activation, is_gated, is_float_y;
    float alpha, limit;    // as of a `PackedLinearCall`
};

// How a router scores experts; CHOSEN_SOFTMAX: by a softmax over the highest logits alone.
enum RouterScore { SOFTMAX, SIGMOID, CHOSEN_SOFTMAX };

// The experts with the highest scores of each row. Of equal ones, those with lower numbers are chosen.
struct RouteCall {
    const float* logits;         // [rows, experts], no gaps
    const float* select_bias;    // [experts], counts in the choice and not in the weights; or null
    int64_t* ids;                // [rows, choices], the highest first
    float* weights;              // [rows, choices]
    int32_t rows, experts, choices, score, is_renormed;    // `is_renormed`: weights are divided by their sum and `eps`
    float eps, scale;
};

// The experts of a layer: for each row, the sum of what its experts give, times their weights, in the order of its choices.
struct ExpertsCall {
    const void* x;           // [rows, in] bfloat16
    const int64_t* ids;      // [rows, choices], below `experts`
    const float* weights;    // [rows, choices]
    void* y;                 // [rows, out] bfloat16, no gaps
    const void* const* up;      // [experts] the layers, without x, y, their strides and rows: each a `GroupedLinearCall`
    const void* const* down;    // with one part, or two if gated; or a `PackedLinearCall`. All have the same sizes
    int64_t x_stride;
    int32_t rows, choices, experts, in, inner;
    int32_t up_is_grouped, down_is_grouped;
};

// Rows of an embedding that stays as it is stored.
struct EmbedRowsCall {
    const uint8_t* blocks;    // [rows, stride]
    const int32_t* order;     // as for `PackBlocksCall`
    const int64_t* ids;       // [count]
    uint16_t* out;            // [count, in] bfloat16
    int64_t stride;           // bytes of a row
    int32_t type, count, in;
};

struct MaskCall {
    void* logits;           // [rows of a step, stride], `size` bytes each, floats of any kind
    const int64_t* rows;    // [count] of `logits`, each once
    const uint32_t* bits;    // [count, words]: bit t % 32 of word t / 32 is set if token t is allowed
    int64_t stride, minus_inf;    // the bits of minus infinity
    int32_t count, vocab, words, size;
};

// The largest products that queries can have with the keys of each page.
struct PageBoundsCall {
    const void* bounds;    // [pages, 2, kv_heads, head_dim]: least and greatest components, head_dim a multiple of 16
    const float* q;        // [kv_heads, queries, 2, head_dim]: negative components of a query, then positive ones
    float* upper;          // [kv_heads, queries, pages]
    int32_t pages, kv_heads, queries, head_dim, is_bf16;
};

// Parts of stored pages: the keys of one layer of a page, and behind them its values.
struct ReadPartsCall {
    const int32_t* descriptor;    // of the file; negative once it is closed
    const int64_t* offsets;     // [count] of parts in the file
    const uint32_t* expected;    // [count] CRC-32C of each part
    uint8_t* k;    // [count, part_bytes]
    uint8_t* v;
    int64_t part_bytes;    // of keys; values take as many
    int32_t count;
    // Results, unless all is read: the part that is not, its checksum if it differs, and the system's reason.
    int32_t part;
    uint32_t found;
    int32_t error;
};

enum ReadOutcome { ALL_READ, DIFFERENT, FILE_ENDED, READ_FAILED };

// A row of a call over states (`attention/states.py`): the tokens at [start, end) of a slot.
struct StateRow {
    int32_t slot, anchor, start, end, new_anchor;
    int32_t first;                    // of the call's tokens, that at `start`
    int32_t first_export, exports;    // among those of the call
};

struct StateExport {
    int32_t position, record;
};

// A convolution over the last tokens of each channel. Strides of what a slot or a record has are named after it.
struct CausalConvCall {
    const void* x;           // [N, channels]
    const float* weight;     // [taps, channels], at most MAX_TAPS
    const float* bias;       // [channels], or null
    void* out;               // [N, channels], no gaps
    void* columns;           // [slots][ring, channels]
    void* anchor_columns;    // [slots][taps - 1, channels]
    void* records;           // [records][taps - 1, channels]
    const StateRow* rows;    // [count]
    const StateExport* exports;
    int64_t x_stride, columns_stride, anchor_stride, record_stride;
    int32_t count, tokens, channels, taps, ring, activation, is_bf16;    // `activation`: SILU or NO_ACTIVATION
};

constexpr int MAX_TAPS = 16;

// A recurrence over all earlier tokens. key_dim and value_dim are multiples of 16.
struct RecurrenceCall {
    const void* q;              // [N, key_heads, key_dim]
    const void* k;
    const void* v;              // [N, value_heads, value_dim]
    const float* g;             // [N, value_heads] log decays, no gaps; null: decay_rates * step, where step is
                                // softplus(steps + step_bias), at least `least_step` and at most `most_step`
    const float* beta;          // [N, value_heads], no gaps; null: sigmoid(rates), or without these Mamba-2
    const void* steps;          // [N, value_heads]
    const void* rates;          // [N, value_heads]
    const float* decay_rates;    // [value_heads]
    const float* step_bias;      // [value_heads]
    const float* skip;           // [value_heads] of Mamba-2: v counts times its step, and v * skip is added; or null
    float* out;                 // [N, value_heads, value_dim], no gaps
    float* s;                   // [slots][value_heads, key_dim, value_dim]
    float* k_tail;              // [slots][tokens, key_heads, key_dim]
    float* u_tail;              // [slots][tokens, value_heads, value_dim]
    float* g_tail;              // [slots][tokens, value_heads]
    float* records;             // [records], as s
    const StateRow* rows;       // [count]
    const StateExport* exports;
    int64_t q_stride, k_stride, v_stride, steps_stride, rates_stride;
    int64_t s_stride, k_tail_stride, u_tail_stride, g_tail_stride, record_stride;
    int32_t count, tokens, key_heads, value_heads, key_dim, value_dim, takes_turns;
    int32_t is_bf16, is_bf16_v, is_bf16_steps;    // q and k; v; steps and rates
    float length_eps, q_scale;    // not 0: q and k are divided by the root of their squares and this, and q is scaled
    float least_step, most_step;
};

// The root mean square norm of each group of a token, times silu(gate).
struct GatedNormCall {
    const float* x;         // [rows / groups, groups, size], no gaps
    const void* gate;       // [rows / groups, groups, size]
    const float* weight;    // [size] of the group, `weight_stride` behind that of the group before
    void* out;              // as x, no gaps
    int64_t gate_stride, weight_stride;
    int32_t rows, groups, size, is_bf16, gates_first;    // `gates_first`: the norm is that of x * silu(gate)
    float eps;
};

enum Operation {
    ATTENTION, NORM, ROTATE_STORE, SILU_MUL, PACKED_LINEAR, GROUPED_LINEAR, EMBED_ROWS, EXPERTS, ROUTE, LORA, CAUSAL_CONV,
    RECURRENCE, GATED_NORM
};

// One call of a list that is executed in order.
struct ListedCall {
    int32_t operation;
    const void* call;
};
}
