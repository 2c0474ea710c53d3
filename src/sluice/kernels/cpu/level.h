// The kernels of one dispatch level. This file is included once for each level, in its namespace and with its target
// options.
#include "hadamard.h"
#include "products.h"
#include "attention.h"
#include "pointwise.h"
#include "page_bounds.h"
#include "packed_linear.h"
#include "int8_linear.h"
#include "int4_linear.h"
#include "quantized_linear.h"
#include "grouped_forms.h"
#include "grouped_linear.h"
#include "combine.h"
#include "lora.h"
#include "causal_conv.h"
#include "recurrence.h"
#include "gated_norm.h"

// AMX has no tiles of words, so lanes compute over pages of int8.
template <class X, class Tiles>
void attend(const AttentionCall& call, Plan& plan, const Item& item, float* buffer) {
    if (call.is_int8) attend_item<Int8Pages<typename X::E>, NoTiles>(call, plan, item, buffer);
    else attend_item<X, Tiles>(call, plan, item, buffer);
}

template <class HalfAttention, class Tiles>
constexpr Kernels kernels() {
    return {
        attend<HalfAttention, Tiles>, attend<Float32, NoTiles>,
        Scratch<HalfAttention>::floats,
        norm_rows<uint16_t>, norm_rows<float>,
        rotate_and_store<uint16_t>, rotate_and_store<float>,
        silu_mul_rows<uint16_t>, silu_mul_rows<float>,
        packed_linear_block<HalfAttention, Tiles>, std::is_same_v<typename HalfAttention::A, float>,
        quantize_rows, quantized_linear_block<Tiles>,
        quantize_runs, grouped_block,
        combine_rows,
        lora_shrink, lora_expand,
        causal_conv<uint16_t>, causal_conv<float>,
        recur, keep_keys,
        gated_norm<uint16_t>, gated_norm<float>,
        bound_pages<uint16_t>, bound_pages<float>,
    };
}

const Kernels KERNELS = kernels<Bf16, NoTiles>();
