// The activations of a product that are multiplied as they are (`models/grouped.py` defines which), in the order in which
// they are added.
#pragma once

#include <cstdint>
#include <vector>

#include "stored_blocks.h"

struct Outlier {
    int32_t input, row;
    float x;
};

class Outliers {
public:
    struct OfRun {
        const Outlier *first, *last;

        const Outlier* begin() const { return first; }
        const Outlier* end() const { return last; }
    };

    std::vector<uint32_t> marks;    // [in / 32, rows], a bit for each input

    void resize(int rows_, int in) {
        rows = rows_, runs = in / PART;
        marks.resize(static_cast<size_t>(runs) * rows);
    }

    // Take the marks of `rows` of others.
    void copy(const Outliers& from, const int32_t* of) {
        for (int run = 0; run < runs; run++) {
            const uint32_t* marked = from.marks.data() + static_cast<size_t>(run) * from.rows;
            uint32_t* to = marks.data() + static_cast<size_t>(run) * rows;
            for (int row = 0; row < rows; row++) to[row] = marked[of[row]];
        }
    }

    void list(const uint16_t* x, int64_t stride) {
        list([=](int row) { return x + row * stride; });
    }

    // List those that are marked, by their inputs and then by their rows, of which `x` gives the values.
    template <class Values>
    void list(Values x) {
        found.clear();
        ends.clear();
        for (int run = 0; run < runs; run++) {
            if (rows == 1) {
                const int first = run * PART;
                each_mark(run, [&](int, int k) { found.push_back({first + k, 0, widen(x(0)[first + k])}); });
                ends.push_back(found.size());
                continue;
            }
            const size_t first = found.size();
            size_t count[PART + 1] = {}, *next = count;    // of an input, behind those of the inputs before it
            each_mark(run, [&](int, int k) { count[k + 1]++; });
            for (int k = 0; k < PART; k++) count[k + 1] += count[k];
            found.resize(first + count[PART]);
            each_mark(run, [&](int row, int k) {
                const int input = run * PART + k;
                found[first + next[k]++] = {input, row, widen(x(row)[input])};
            });
            ends.push_back(found.size());
        }
    }

    OfRun of(int run) const { return {found.data() + (run ? ends[run - 1] : 0), found.data() + ends[run]}; }

private:
    template <class Use>
    void each_mark(int run, Use use) const {
        const uint32_t* of_rows = marks.data() + static_cast<size_t>(run) * rows;
        for (int row = 0; row < rows; row++) {
            for (uint32_t left = of_rows[row]; left; left &= left - 1) use(row, __builtin_ctz(left));
        }
    }

    int rows = 0, runs = 0;
    std::vector<size_t> ends;    // of a run's outliers
    std::vector<Outlier> found;
};
