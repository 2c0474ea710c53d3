// The rows of a layer's experts: sorted, and as products read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi.h"
#include "level_kernels.h"
#include "outliers.h"
#include "packing.h"
#include "stored_blocks.h"

// Bytes of a quantised row: an odd number of cache lines, so that the rows of a tile do not all lie in one set of the cache.
inline int64_t bytes_of_row(int64_t in) { return (in + 63) / 64 * 64 | 64; }

// The layers of the experts that take the same rows.
struct ExpertLayers {
    const void* const* layers;    // [experts]
    bool is_grouped;
    int in, out;

    const PackedLinearCall& linear(int expert) const { return *static_cast<const PackedLinearCall*>(layers[expert]); }
    const GroupedLinearCall& grouped(int expert) const { return *static_cast<const GroupedLinearCall*>(layers[expert]); }
    bool is_quantized() const { return is_grouped || linear(0).scales; }
};

// Rows as these layers read them.
class StoredRows {
public:
    int64_t stride = 0;    // bytes of a row

    void resize(const ExpertLayers& layers, bool widens, int64_t rows) {
        const int group = layers.is_grouped ? GROUP_STEP : layers.linear(0).group;
        stride = layers.is_quantized() ? bytes_of_row(layers.in) : layers.in * static_cast<int64_t>(widens ? sizeof(float) : 2);
        scale_count = layers.is_grouped ? layers.in / PART : layers.is_quantized();
        sum_count = group ? layers.in / group : 0;
        own_bytes.resize((rows + 15) * stride);    // AMX reads whole tiles of sixteen rows
        own_scales.resize(rows * scale_count);
        own_sums.resize(rows * sum_count);
    }

    uint8_t* bytes(int64_t row) { return own_bytes.data() + row * stride; }
    float* scales(int64_t row) { return own_scales.data() + row * scale_count; }
    int32_t* sums(int64_t row) { return own_sums.data() + row * sum_count; }

    // Copy a row of others of the same form.
    void copy(StoredRows& from, int64_t row, int64_t to) {
        std::memcpy(bytes(to), from.bytes(row), stride);
        std::copy_n(from.scales(row), scale_count, scales(to));
        std::copy_n(from.sums(row), sum_count, sums(to));
    }

private:
    int64_t scale_count = 0, sum_count = 0;
    std::vector<uint8_t> own_bytes;
    std::vector<float> own_scales;
    std::vector<int32_t> own_sums;
};

// The pairs that chose an expert.
struct ExpertRows {
    int expert, first, count;
};

// Pairs of a row and one of its experts, sorted by the expert and then by the row.
class SortedPairs {
public:
    std::vector<ExpertRows> chosen;    // experts with pairs, those with the most first
    std::vector<int32_t> rows;         // [pairs] of x
    std::vector<int32_t> places;       // [rows, choices] among the sorted pairs

    void sort(const ExpertsCall& call) {
        const int64_t pairs = static_cast<int64_t>(call.rows) * call.choices;
        starts.assign(call.experts + 1, 0);
        for (int64_t i = 0; i < pairs; i++) starts[call.ids[i] + 1]++;
        chosen.clear();
        for (int expert = 0; expert < call.experts; expert++) {
            const int count = starts[expert + 1];
            starts[expert + 1] += starts[expert];
            if (count) chosen.push_back({expert, starts[expert], count});
        }
        rows.resize(pairs), places.resize(pairs);
        for (int64_t i = 0; i < pairs; i++) {
            const int32_t place = starts[call.ids[i]]++;
            rows[place] = static_cast<int32_t>(i / call.choices);
            places[i] = place;
        }
        std::stable_sort(chosen.begin(), chosen.end(), [](const ExpertRows& a, const ExpertRows& b) { return a.count > b.count; });
    }

private:
    std::vector<int32_t> starts;    // of each expert's pairs
};

// Some blocks of the outputs of an expert, with some of its rows.
struct ExpertItem {
    int number;    // of the expert among those chosen
    LinearItem linear;
};

// Divide a product of all experts into items, those with the most rows first.
inline void divide(const std::vector<ExpertRows>& chosen, int blocks, int block_bytes, int threads, std::vector<ExpertItem>& items) {
    constexpr int SHARES = 8;    // items of each thread, at least
    const auto cost = [](int rows) { return std::max(LinearItems::FEW_ROWS, rows); };
    int64_t total = 0;
    for (const ExpertRows& each : chosen) total += static_cast<int64_t>(blocks) * cost(each.count);
    items.clear();
    for (int number = 0; number < static_cast<int>(chosen.size()); number++) {
        const int rows = chosen[number].count, in_slab = std::min(rows, LinearItems::SLAB_ROWS);
        const int64_t most = LinearItems::ITEM_BYTES / block_bytes * LinearItems::FEW_ROWS / cost(in_slab);
        const int together = static_cast<int>(std::max<int64_t>(1, std::min(most, total / (SHARES * threads) / cost(in_slab))));
        for (int row = 0; row < rows; row += LinearItems::SLAB_ROWS) {
            for (int block = 0; block < blocks; block += together) {
                items.push_back({number, {block, std::min(blocks, block + together), row, std::min(rows, row + LinearItems::SLAB_ROWS)}});
            }
        }
    }
}

// What one call of experts needs, kept between calls.
struct ExpertBuffers {
    SortedPairs pairs;
    StoredRows by_row, by_pair;          // rows of x; and of what the products read
    Outliers outliers;                   // of rows of x
    std::vector<Outliers> of_expert;     // of each that is chosen
    std::vector<ExpertItem> items;
    std::vector<uint16_t> inner, found;  // [pairs, inner size], [pairs, out]
};
