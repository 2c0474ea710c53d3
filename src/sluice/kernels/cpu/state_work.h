// How the rows of a recurrence are divided: an item is some value heads that share a key head, of one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi.h"

constexpr int STATE_BLOCK = 64;    // as BLOCK in attention/states.py
constexpr int SHARED_HEADS = 4;    // most value heads of an item: products of keys are computed once for them

struct StateItem {
    int row, key_head;
    int first, heads;    // of the value heads that share it
};

// The value head with a number among those that share a key head.
inline int value_head(const RecurrenceCall& call, int key_head, int number) {
    const int shared = call.value_heads / call.key_heads;
    return call.takes_turns ? number * call.key_heads + key_head : key_head * shared + number;
}

inline std::vector<StateItem> state_items(const RecurrenceCall& call) {
    std::vector<StateItem> items;
    const int shared = call.value_heads / call.key_heads;
    for (int row = 0; row < call.count; row++) {
        for (int head = 0; head < call.key_heads; head++) {
            for (int first = 0; first < shared; first += SHARED_HEADS) {
                items.push_back({row, head, first, std::min(SHARED_HEADS, shared - first)});
            }
        }
    }
    return items;
}

// Memory of one thread.
struct StateScratch {
    float *k, *q;              // [STATE_BLOCK, key_dim] each, one behind the other
    float *kk, *kq;            // [STATE_BLOCK, STATE_BLOCK]: products of the k of a token, or its q, with earlier k
    float *from_k, *from_q;    // [STATE_BLOCK, value_dim] each: what S gives for k and q, one behind the other
    float *u;                  // [STATE_BLOCK, value_dim]
    float *factors;            // [STATE_BLOCK, STATE_BLOCK], of u of earlier tokens
    float *g, *decay;          // [STATE_BLOCK]
    float *s;                  // [SHARED_HEADS, key_dim, value_dim], of blocks behind the new anchor

    StateScratch(const RecurrenceCall& call, float* memory) {
        const int64_t key = STATE_BLOCK * call.key_dim, value = STATE_BLOCK * call.value_dim;
        const int64_t square = STATE_BLOCK * STATE_BLOCK;
        k = memory, q = k + key;
        kk = q + key, kq = kk + square;
        from_k = kq + square, from_q = from_k + value, u = from_q + value;
        factors = u + value, g = factors + square, decay = g + STATE_BLOCK;
        s = decay + STATE_BLOCK;
    }

    static int64_t floats(const RecurrenceCall& call) {
        const int64_t rows = STATE_BLOCK * (2 * call.key_dim + 3 * call.value_dim + 3 * STATE_BLOCK + 2);
        return rows + SHARED_HEADS * static_cast<int64_t>(call.key_dim) * call.value_dim;
    }
};
