// The work list of one attention call, made once and shared by its threads.
//
// An item is a tile of queries of one request, for one KV head, over some KV splits. Splits lie at multiples of SPLIT
// tokens from the request's beginning. Each split is summed by itself, and the sums are merged in order. So the result
// of a query depends only on its position and its keys, not on its chunk, its batch or the number of threads. Those only
// decide whether one thread or several threads process the splits of a tile.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"

constexpr int SPLIT = 512;         // keys
constexpr int BLOCK = 256;         // keys whose scores are in memory at once; a divisor of SPLIT
constexpr int TILE_ROWS = 48;      // query heads of a tile; more would not fit into the second-level cache beside a block
constexpr int ITEMS_EACH = 8;      // a tile with more than 1 / ITEMS_EACH of a thread's work is shared

struct Span {
    int low, high;
    bool empty() const { return low >= high; }
};

// The keys that a query at `position` sees, of `kv_len`.
inline Span visible(const AttentionCall& call, int position, int kv_len) {
    const int low = call.window ? std::max(0, position - call.window + 1) : 0;
    const int end = position < 0 ? 0 : (position / call.block_size + 1) * call.block_size;
    const int high = call.causal ? std::min(kv_len, end) : kv_len;
    return {low, std::max(low, high)};
}

struct Item {
    int row, kv_head;
    int first_token, tokens;    // in the row
    Span keys;                  // seen by at least one of these tokens
    int first_split, splits;
    int64_t part;    // index for this item's sums if items share its tile, else -1
    int tile;        // index of the shared tile
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
    // Decodes are first in a batch and are the shortest. They are handed out last, so that no thread starts a long item
    // at the end.
    void make(const AttentionCall& call, int threads) {
        group = call.heads / call.kv_heads;
        whole.clear();
        for (int row = call.rows - 1; row >= 0; row--) add_row(call, row);
        int64_t splits = 0;
        max_rows = 0;
        for (const Item& tile : whole) {
            splits += tile.splits;
            max_rows = std::max(max_rows, tile.tokens * group);
        }
        items.clear();
        floats = tiles = 0;
        for (const Item& tile : whole) {
            const bool is_large = static_cast<int64_t>(tile.splits) * threads * ITEMS_EACH > splits;
            if (threads > 1 && is_large && tile.splits > 1) share(tile, call.head_dim);
            else items.push_back(tile);
        }
        if (static_cast<int64_t>(sums.size()) < floats) sums.resize(floats);
        if (tiles > capacity) remaining.reset(new std::atomic<int>[capacity = tiles]);
        for (const Item& item : items) {
            if (item.part >= 0) remaining[item.tile].store(splits_of(item.keys), std::memory_order_relaxed);
        }
    }

    // The sums of a shared tile's split, counted from its first one.
    Sums part(const Item& item, int split, int head_dim) {
        const int rows = item.tokens * group;
        const int64_t size = Sums::size(rows, head_dim), own = item.first_split - item.keys.low / SPLIT;
        return Sums::at(&sums[item.part + (split - own) * size], rows, head_dim);
    }

    bool is_last_of_tile(const Item& item) { return remaining[item.tile].fetch_sub(1) == 1; }

    static int splits_of(Span keys) { return keys.empty() ? 0 : (keys.high - 1) / SPLIT - keys.low / SPLIT + 1; }

    std::vector<Item> items;
    int group = 1;       // query heads for each KV head
    int max_rows = 0;    // of any tile

private:
    void add_row(const AttentionCall& call, int row) {
        const int q_len = call.q_starts[row + 1] - call.q_starts[row], kv_len = call.kv_lens[row];
        const int tile_tokens = std::max(1, TILE_ROWS / group);
        for (int first = 0; first < q_len; first += tile_tokens) {
            const int tokens = std::min(tile_tokens, q_len - first), position = kv_len - q_len + first;
            const Span a = visible(call, position, kv_len), b = visible(call, position + tokens - 1, kv_len);
            const Span keys = {std::min(a.low, kv_len), b.high};
            for (int head = 0; head < call.kv_heads; head++) {
                whole.push_back({row, head, first, tokens, keys, keys.low / SPLIT, splits_of(keys), -1, -1});
            }
        }
    }

    void share(const Item& tile, int head_dim) {
        Item item = tile;
        item.tile = tiles++;
        item.splits = 1;
        for (int i = 0; i < tile.splits; i++, item.first_split++) {
            item.part = floats;
            floats += Sums::size(tile.tokens * group, head_dim);
            items.push_back(item);
        }
    }

    std::vector<Item> whole;
    int64_t floats = 0;
    int tiles = 0, capacity = 0;
    std::vector<float> sums;
    std::unique_ptr<std::atomic<int>[]> remaining;
};
