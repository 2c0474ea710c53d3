// The work list of one attention call, made once and shared by its threads.
//
// An item is a tile of queries of one request, for one KV head, over some KV splits. Splits lie at multiples of SPLIT
// tokens from the request's beginning, and what a query sees of each is summed alone and then merged in order. So a
// query's result depends on its position and keys alone: not on its chunk, its batch, or the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"

constexpr int SPLIT = 512;         // keys
constexpr int BLOCK = 256;         // keys whose scores are held at once; divides SPLIT
constexpr int TILE_ROWS = 48;      // query heads of a tile: more would not fit the second-level cache beside a block
constexpr int SHARED_ROWS = 16;    // up to so many rows, every split is an item of its own

struct Span {
    int low, high;
    bool empty() const { return low >= high; }
};

// The keys that a query at `position` sees, of `kv_len`.
inline Span visible(const AttentionCall& call, int position, int kv_len) {
    const int low = call.window ? std::max(0, position - call.window + 1) : 0;
    const int high = call.causal ? std::min(kv_len, position + 1) : kv_len;
    return {low, std::max(low, high)};
}

struct Item {
    int row, kv_head;
    int first_token, tokens;    // in the row
    Span keys;                  // that any of these tokens sees
    int first_split, splits;
    int part;                   // where this item's sums go if others share its tile, else -1
    int tile;                   // counts those that share it
};

// Sums over some keys: out[rows][head_dim] unnormalised, base-2 maximum and total of the weights of each row.
struct Sums {
    float *out, *top, *total;
    static int64_t size(int64_t rows, int head_dim) { return rows * (head_dim + 2); }
    static Sums at(float* p, int64_t rows, int head_dim) {
        float* top = p + rows * head_dim;
        return {p, top, top + rows};
    }
};

class Plan {
public:
    // Decodes come first in a batch and are the shortest: they are handed out last, so that no thread is left with
    // a long one in the end.
    void make(const AttentionCall& call) {
        items.clear();
        parts = tiles = 0;
        max_rows = 0;
        group = call.heads / call.kv_heads;
        for (int row = call.rows - 1; row >= 0; row--) add_row(call, row);
        part_size = Sums::size(SHARED_ROWS, call.head_dim);
        sums.resize(static_cast<size_t>(parts) * part_size);
        if (tiles > static_cast<int>(capacity)) remaining.reset(new std::atomic<int>[capacity = tiles]);
        for (const Item& item : items) {
            if (item.part >= 0) remaining[item.tile].store(splits_of(item.keys), std::memory_order_relaxed);
        }
    }

    Sums part(int index, int rows, int head_dim) { return Sums::at(&sums[index * part_size], rows, head_dim); }
    bool is_last_of_tile(int tile) { return remaining[tile].fetch_sub(1) == 1; }

    std::vector<Item> items;
    int group = 1;       // query heads for each KV head
    int max_rows = 0;    // of any tile

private:
    static int splits_of(Span keys) { return keys.empty() ? 0 : (keys.high - 1) / SPLIT - keys.low / SPLIT + 1; }

    void add_row(const AttentionCall& call, int row) {
        const int q_len = call.q_starts[row + 1] - call.q_starts[row], kv_len = call.kv_lens[row];
        const int tile_tokens = std::max(1, TILE_ROWS / group);
        for (int first = 0; first < q_len; first += tile_tokens) {
            const int tokens = std::min(tile_tokens, q_len - first), position = kv_len - q_len + first;
            max_rows = std::max(max_rows, tokens * group);
            const Span a = visible(call, position, kv_len), b = visible(call, position + tokens - 1, kv_len);
            const Span keys = {std::min(a.low, kv_len), b.high};
            for (int head = 0; head < call.kv_heads; head++) {
                add_tile({row, head, first, tokens, keys, keys.low / SPLIT, splits_of(keys), -1, -1}, tokens * group);
            }
        }
    }

    void add_tile(Item whole, int rows) {
        if (rows > SHARED_ROWS || whole.splits < 2) return items.push_back(whole);
        Item item = whole;
        item.tile = tiles++;
        item.splits = 1;
        for (int i = 0; i < whole.splits; i++, item.first_split++) {
            item.part = parts++;
            items.push_back(item);
        }
    }

    int parts = 0, tiles = 0;
    int64_t part_size = 0;
    std::vector<float> sums;
    std::unique_ptr<std::atomic<int>[]> remaining;
    size_t capacity = 0;
};
