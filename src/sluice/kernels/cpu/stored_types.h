// All block types of GGUF files, by their numbers, and the lookup of rows that stay as a file has them.
#pragma once

#include "rare_blocks.h"
#include "stored_blocks.h"

// Call `use` with an object of the type that a number stands for. False: there is no such type.
template <class Use>
bool with_stored_type(int type, Use use) {
    switch (type) {
        case TYPE_Q4_0: return use(Q4_0()), true;
        case TYPE_Q4_1: return use(Q4_1()), true;
        case TYPE_Q5_0: return use(Q5_0()), true;
        case TYPE_Q5_1: return use(Q5_1()), true;
        case TYPE_Q8_0: return use(Q8_0()), true;
        case TYPE_Q2_K: return use(Q2_K()), true;
        case TYPE_Q3_K: return use(Q3_K()), true;
        case TYPE_Q4_K: return use(Q4_K()), true;
        case TYPE_Q5_K: return use(Q5_K()), true;
        case TYPE_Q6_K: return use(Q6_K()), true;
        case TYPE_IQ4_NL: return use(IQ4_NL()), true;
        case TYPE_IQ4_XS: return use(IQ4_XS()), true;
        case TYPE_MXFP4: return use(MXFP4()), true;
        case TYPE_IQ2_XXS: return use(IQ2_XXS()), true;
        case TYPE_IQ2_XS: return use(IQ2_XS()), true;
        case TYPE_IQ2_S: return use(IQ2_S()), true;
        case TYPE_IQ3_XXS: return use(IQ3_XXS()), true;
        case TYPE_IQ3_S: return use(IQ3_S()), true;
        case TYPE_IQ1_S: return use(IQ1_S()), true;
        case TYPE_IQ1_M: return use(IQ1_M()), true;
        case TYPE_TQ1_0: return use(TQ1_0()), true;
        case TYPE_TQ2_0: return use(TQ2_0()), true;
        case TYPE_Q1_0: return use(Q1_0()), true;
        case TYPE_Q2_0: return use(Q2_0()), true;
        case TYPE_NVFP4: return use(NVFP4()), true;
        default: return false;
    }
}

template <class Type>
float scale_of(const uint8_t* block, int group) {
    if constexpr (IS_TILED<Type>) return Type::scale(Type::unit(block), block, group);
    else return Type::scale(block, group);
}

// Dequantise rows `from` to `until` of an `EmbedRowsCall`.
inline void embed_rows(const EmbedRowsCall& call, int from, int until) {
    with_stored_type(call.type, [&](auto stored) {
        using Type = decltype(stored);
        for (int n = from; n < until; n++) {
            const int64_t row = call.order ? call.order[call.ids[n]] : call.ids[n];
            const uint8_t* block = call.blocks + row * call.stride;
            uint16_t* to = call.out + static_cast<int64_t>(n) * call.in;
            for (int k = 0; k < call.in; k += Type::INPUTS, block += Type::BYTES) {
                for (int part = 0; part < Type::INPUTS / PART; part++, to += PART) {
                    uint32_t words[PART_WORDS];
                    uint8_t codes[PART];
                    Type::codes(block, part, words);
                    std::memcpy(codes, words, sizeof codes);
                    for (int i = 0; i < PART; i++) {
                        const int group = (part * PART + i) / Type::GROUP;
                        float value = Type::number(codes[i]) * scale_of<Type>(block, group);
                        if constexpr (Type::HAS_MINIMUMS) value += Type::minimum(block, group);
                        to[i] = narrow(value);
                    }
                }
            }
        }
    });
}
