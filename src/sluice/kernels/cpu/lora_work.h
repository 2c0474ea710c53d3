// The rows of a step by adapter, and the division of their products into items.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi.h"

constexpr int SHRINK_RANKS = 16, EXPAND_OUTPUTS = 512;    // of an item
constexpr int SHRINK_INPUTS = 512;                        // that are widened at once

// Some rows of one adapter, or of none, that are computed together.
struct LoraTile {
    static constexpr int MOST = 8;
    int slot;     // of the adapter, below 0: none
    int first;    // in the order of rows by adapter
    int rows;     // at most MOST
};

struct LoraWork;
// Computes some of a tile: rows of A, or outputs. `buffer` is the thread's.
using LoraStep = void (*)(const LoraWork&, const LoraTile&, int from, int until, float* buffer);

struct LoraWork {
    // Sort the rows. Those without an adapter have work only if the layer is gated.
    explicit LoraWork(const LoraCall& call) : call(call), width(call.parts * call.max_rank) {
        for (int row = 0; row < call.rows; row++) {
            if (call.slots[row] >= 0 || call.gated) order.push_back(row);
        }
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return call.slots[a] < call.slots[b]; });
        for (int at = 0, count = order.size(); at < count;) {
            const int slot = call.slots[order[at]];
            int end = at;
            while (end < count && end < at + LoraTile::MOST && call.slots[order[end]] == slot) end++;
            tiles.push_back({slot, at, end - at});
            at = end;
        }
    }

    // The rows that an adapter's A has for all parts.
    int ranks_of(int slot) const {
        int total = 0;
        for (int part = 0; slot >= 0 && part < call.parts; part++) {
            total += call.ranks[static_cast<int64_t>(slot) * call.parts + part];
        }
        return total;
    }

    const LoraCall& call;
    int width;                    // floats of a shrunk row
    std::vector<int> order;
    std::vector<LoraTile> tiles;
    float* shrunk = nullptr;      // [rows in order][parts][max_rank]

    const uint16_t* x(int at) const { return static_cast<const uint16_t*>(call.x) + order[at] * call.x_stride; }
    float* sums(int at) const { return shrunk + static_cast<int64_t>(at) * width; }
};
