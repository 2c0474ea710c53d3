// One item of an attention call: a tile of queries over paged keys and values, block by block with a running maximum
// (FlashAttention: Dao et al., 2022; online softmax: Milakov and Gimelshein, 2018).
//
// The rows of a tile are pairs (token, query head of the KV head's group), so a key is read once for the whole group.
// Scores are in units of log2, so that weights are powers of two.

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Buffers of one thread.
template <class X>
struct Scratch {
    using A = typename X::A;
    int width;     // of a query: head_dim, in whole steps of a tile
    A* q;          // [rows][width]
    float* s;      // [rows][BLOCK] scores
    A* p;          // [rows][BLOCK] weights
    Sums split, whole;
    typename X::P* spare;    // a piece of K or V, padded with zeros for products that need whole tiles
    float *q_scales, *p_scales;    // [rows], with pages of int8
    float *k_scales, *v_scales;    // [BLOCK], with pages of int8

    static int64_t floats(int rows, int head_dim) {
        return (head_dim + 16) * (whole_tiles(rows) + 32) + 2 * whole_tiles(rows) * BLOCK +
               2 * Sums::size(whole_tiles(rows), head_dim) + 2 * whole_tiles(rows) + 2 * BLOCK + 10 * 16;
    }

    static int64_t whole_tiles(int rows) { return (rows + 31) / 32 * 32; }

    Scratch(float* at, int max_rows, int head_dim) {
        const int64_t rows = whole_tiles(max_rows);
        width = (head_dim + 31) / 32 * 32;
        const auto take = [&](int64_t count) {
            float* p = at;
            at += (count + 15) / 16 * 16;
            return p;
        };
        q = reinterpret_cast<A*>(take(rows * (head_dim + 16)));
        s = take(rows * BLOCK);
        p = reinterpret_cast<A*>(take(rows * BLOCK));
        split = Sums::at(take(Sums::size(rows, head_dim)), rows, head_dim);
        whole = Sums::at(take(Sums::size(rows, head_dim)), rows, head_dim);
        spare = reinterpret_cast<typename X::P*>(take(32 * (head_dim + 16)));
        q_scales = take(rows), p_scales = take(rows);
        k_scales = take(BLOCK), v_scales = take(BLOCK);
    }
};

// The state that the blocks of one item share.
template <class X>
struct Tile {
    const AttentionCall& call;
    const Item& item;
    int rows, group, position;    // of the first token
    int kv_len;
    const int32_t* pages;

    Tile(const AttentionCall& call, const Item& item, int group)
        : call(call), item(item), rows(item.tokens * group), group(group) {
        kv_len = call.kv_lens[item.row];
        position = kv_len - (call.q_starts[item.row + 1] - call.q_starts[item.row]) + item.first_token;
        pages = call.page_table + item.row * call.table_stride;
    }

    int64_t token(int row) const { return call.q_starts[item.row] + item.first_token + row / group; }
    int64_t head(int row) const { return static_cast<int64_t>(item.kv_head) * group + row % group; }

    // Return the address of the sixteen keys, or values, from position `at` on.
    const typename X::P* sixteen(const void* pool, int at) const {
        const int64_t page = pages[at / call.page_size], size = call.page_size;
        const int64_t token = (page * call.kv_heads + item.kv_head) * size + at % size;
        return static_cast<const typename X::P*>(pool) + token * (call.head_dim + X::SCALE);
    }
};

// The keys of one block that at least one row sees, in whole groups of sixteen.
struct Block {
    Span keys;
    int start, groups;    // position of the first group

    Block(Span keys, int multiple) : keys(keys), start(keys.low / multiple * multiple) {
        groups = (keys.high - start + multiple - 1) / multiple * (multiple / 16);
    }
};

// Addresses of the pieces of a block: first its keys, or its values, then the pieces that are read next (the values,
// and after them the keys of the next block), so that they can be prefetched.
template <class X>
struct Pieces {
    const typename X::P* at[BLOCK / 16 + AHEAD];

    Pieces(const Tile<X>& tile, const Block& block, const void* pool, const void* next_pool, int next) {
        for (int i = 0; i < block.groups; i++) at[i] = tile.sixteen(pool, block.start + 16 * i);
        for (int i = 0; i < AHEAD; i++) {
            const int position = next + 16 * i;
            at[block.groups + i] = position < tile.item.keys.high ? tile.sixteen(next_pool, position) : at[0];
        }
    }
};

template <class X>
void pack_queries(const Tile<X>& tile, Scratch<X>& scratch) {
    const AttentionCall& call = tile.call;
    for (int row = 0; row < tile.rows; row++) {
        const int64_t at = tile.token(row) * call.q_stride + tile.head(row) * call.head_dim;
        const auto* from = static_cast<const typename X::E*>(call.q) + at;
        typename X::A* to = scratch.q + row * scratch.width;
        for (int i = 0; i < call.head_dim; i += 16) store(to + i, load(from + i));
        for (int i = call.head_dim; i < scratch.width; i++) to[i] = 0;
    }
}

template <class X>
void scores(const Tile<X>& tile, const Block& block, Scratch<X>& scratch) {
    const Pieces<X> keys(tile, block, tile.call.k, tile.call.v, block.start);
    in_pieces(tile.rows, block.groups, [&](auto m, auto n, int row, int group) {
        times_keys<X, m, n>(scratch.q + row * scratch.width, scratch.width, keys.at + group, tile.call.head_dim / X::KP,
                            scratch.s + row * BLOCK + 16 * group, BLOCK);
    });
}

template <class X>
void add_values(const Tile<X>& tile, const Block& block, Scratch<X>& scratch, bool accumulate) {
    const Pieces<X> values(tile, block, tile.call.v, tile.call.k, block.start + 16 * block.groups);
    const int d = tile.call.head_dim, count = block.keys.high - block.start;
    in_pieces(tile.rows, d / 16, [&](auto m, auto n, int row, int vector) {
        times_values<X, m, n>(scratch.p + row * BLOCK, BLOCK, values.at, block.start / 16, count, 16 * vector, d * X::KP,
                              scratch.split.out + static_cast<int64_t>(row) * d + 16 * vector, d, accumulate);
    });
}

INL F exp2(F x) {
    // Below this limit the result is no normal number. -inf must give 0, and NaN must remain NaN; as the second operand
    // of max it does.
    const F bounded = max(set(-126.0f), x), n = round(bounded), f = sub(bounded, n);
    F y = set(0.00015469732f);
    for (float c : {0.00134004322f, 0.0096180256f, 0.0555032721f, 0.240226512f, 0.693147207f, 1.0f}) y = fma(y, f, set(c));
    return zero_below(times_pow2(y, n), x, set(-126.0f));
}

INL F tanh(F x) {
    const F e = exp2(mul(max(set(-20.0f), min(set(20.0f), x)), set(2 * LOG2_E)));
    return sub(set(1.0f), div(set(2.0f), add(e, set(1.0f))));
}

#include "int8_attention.h"

// Turn scores into weights relative to the maximum of all blocks so far; rescale the sums of the earlier blocks.
template <class X>
void weigh(const Tile<X>& tile, const Block& block, Scratch<X>& scratch, bool is_first) {
    const AttentionCall& call = tile.call;
    const float factor = call.softcap ? call.scale / call.softcap : call.scale * LOG2_E;
    const F cap = set(call.softcap * LOG2_E);
    const Sums& sums = scratch.split;
    for (int row = 0; row < tile.rows; row++) {
        const Span seen = visible(call, tile.position + row / tile.group, tile.kv_len);
        const int low = seen.low - block.start, high = std::min(seen.high, block.keys.high) - block.start;
        float* s = scratch.s + row * BLOCK;
        typename X::A* p = scratch.p + row * BLOCK;
        const F scale = set(X::SCALE ? factor * scratch.q_scales[row] : factor);
        F tops = set(NEG_INF);
        for (int i = 0; i < block.groups; i++) {
            F x = mul(load(s + 16 * i), scale);
            if constexpr (X::SCALE != 0) x = mul(x, load(scratch.k_scales + 16 * i));
            if (call.softcap) x = mul(tanh(x), cap);
            if (low > 16 * i || high < 16 * i + 16) x = keep_range(x, low - 16 * i, high - 16 * i);
            store(s + 16 * i, x);
            tops = max(tops, x);
        }
        const float before = sums.top[row], top = std::max(before, hmax(tops));
        const F reference = set(top == NEG_INF ? 0.0f : top);
        F total = set(0.0f);
        for (int i = 0; i < block.groups; i++) {
            const F weight = exp2(sub(load(s + 16 * i), reference));
            total = add(total, weight);
            if constexpr (X::SCALE != 0) store(s + 16 * i, weight);
            else store(p + 16 * i, weight);
        }
        if constexpr (X::SCALE != 0) round_weights(block, scratch, row);
        const float keep = before == top ? 1.0f : std::exp2(before - top);
        sums.top[row] = top;
        sums.total[row] = sums.total[row] * keep + hsum(total);
        if (is_first || keep == 1.0f) continue;
        float* out = sums.out + static_cast<int64_t>(row) * call.head_dim;
        for (int i = 0; i < call.head_dim; i += 16) store(out + i, mul(load(out + i), set(keep)));
    }
}

#include "tiled_attention.h"

// Process the blocks of one split; `products` computes queries x keys and weights x values.
template <class X, class Scores, class Values>
void attend_blocks(const Tile<X>& tile, int split, Scratch<X>& scratch, int multiple, Scores scores, Values values) {
    std::fill_n(scratch.split.top, tile.rows, NEG_INF);
    std::fill_n(scratch.split.total, tile.rows, 0.0f);
    bool is_first = true;
    for (int at = split * SPLIT; at < (split + 1) * SPLIT; at += BLOCK) {
        const Span keys = {std::max(at, tile.item.keys.low), std::min(at + BLOCK, tile.item.keys.high)};
        if (keys.empty()) continue;
        const Block block(keys, multiple);
        scores(block);
        weigh(tile, block, scratch, is_first);
        values(block, !is_first);
        is_first = false;
    }
}

template <class X, class Tiles>
void attend_split(const Tile<X>& tile, int split, Scratch<X>& scratch) {
    if constexpr (!std::is_same_v<Tiles, NoTiles>) {
        if (tile.rows >= MIN_TILED_ROWS && tile.call.page_size % 32 == 0) {
            Tiles tiles;
            return attend_blocks(
                tile, split, scratch, 32, [&](const Block& block) { tiled_scores(tiles, tile, block, scratch); },
                [&](const Block& block, bool more) { tiled_values(tiles, tile, block, scratch, more); });
        }
    }
    if constexpr (X::SCALE != 0) {
        attend_blocks(
            tile, split, scratch, 16, [&](const Block& block) { int8_scores(tile, block, scratch); },
            [&](const Block& block, bool more) { add_int8_values(tile, block, scratch, more); });
    } else {
        attend_blocks(
            tile, split, scratch, 16, [&](const Block& block) { scores(tile, block, scratch); },
            [&](const Block& block, bool more) { add_values(tile, block, scratch, more); });
    }
}

INL void copy_sums(const Sums& to, const Sums& from, int rows, int d) {
    std::memcpy(to.out, from.out, sizeof(float) * rows * d);
    std::memcpy(to.top, from.top, sizeof(float) * rows);
    std::memcpy(to.total, from.total, sizeof(float) * rows);
}

INL void merge_sums(const Sums& into, const Sums& from, int rows, int d) {
    for (int row = 0; row < rows; row++) {
        const float a = into.top[row], b = from.top[row], top = std::max(a, b);
        if (b == NEG_INF) continue;
        const float share_a = a == top ? 1.0f : std::exp2(a - top), share_b = b == top ? 1.0f : std::exp2(b - top);
        float* out = into.out + static_cast<int64_t>(row) * d;
        const float* more = from.out + static_cast<int64_t>(row) * d;
        for (int i = 0; i < d; i += 16) {
            store(out + i, fma(load(more + i), set(share_b), mul(load(out + i), set(share_a))));
        }
        into.top[row] = top;
        into.total[row] = into.total[row] * share_a + from.total[row] * share_b;
    }
}

template <class X>
void write_result(const Tile<X>& tile, const Sums& sums) {
    const AttentionCall& call = tile.call;
    for (int row = 0; row < tile.rows; row++) {
        const int64_t at = tile.token(row) * call.heads + tile.head(row);
        const bool saw = sums.top[row] != NEG_INF;
        const F share = set(saw ? call.v_scale / sums.total[row] : 0.0f);
        auto* out = static_cast<typename X::E*>(call.out) + at * call.head_dim;
        const float* from = sums.out + static_cast<int64_t>(row) * call.head_dim;
        for (int i = 0; i < call.head_dim; i += 16) {
            store(out + i, saw ? mul(load(from + i), share) : set(0.0f));
        }
        if (call.lse) call.lse[at] = saw ? (sums.top[row] + std::log2(sums.total[row])) * LN_2 : NEG_INF;
    }
}

template <class X, class Tiles>
void attend_item(const AttentionCall& call, Plan& plan, const Item& item, float* buffer) {
    const Tile<X> tile(call, item, plan.group);
    const int rows = tile.rows, d = call.head_dim;
    Scratch<X> scratch(buffer, plan.max_rows, d);
    if constexpr (X::SCALE != 0) round_queries(tile, scratch);
    else pack_queries(tile, scratch);
    for (int i = 0; i < item.splits; i++) {
        attend_split<X, Tiles>(tile, item.first_split + i, scratch);
        if (i == 0) std::swap(scratch.split, scratch.whole);
        else merge_sums(scratch.whole, scratch.split, rows, d);
    }
    if (item.splits == 0) std::fill_n(scratch.whole.top, rows, NEG_INF);
    if (item.part < 0) return write_result(tile, scratch.whole);
    copy_sums(plan.part(item, item.first_split - item.keys.low / SPLIT, d), scratch.whole, rows, d);
    if (!plan.is_last_of_tile(item)) return;
    const Sums whole = plan.part(item, 0, d);
    for (int i = 1; i < Plan::splits_of(item.keys); i++) merge_sums(whole, plan.part(item, i, d), rows, d);
    write_result(tile, whole);
}
