// Routers: scores of experts, and the choice of the highest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "abi.h"

// Make a softmax of some values.
inline void softmax(float* values, int count) {
    const float top = *std::max_element(values, values + count);
    float total = 0;
    for (int i = 0; i < count; i++) total += values[i] = std::exp(values[i] - top);
    for (int i = 0; i < count; i++) values[i] /= total;
}

// Choose the highest of some values, the first one of equal ones.
inline void choose_highest(const std::vector<float>& values, int64_t* ids, int choices) {
    const int count = static_cast<int>(values.size());
    std::vector<bool> is_chosen(count);
    for (int choice = 0; choice < choices; choice++) {
        int best = -1;
        for (int i = 0; i < count; i++) {
            if (!is_chosen[i] && (best < 0 || values[i] > values[best])) best = i;
        }
        is_chosen[best] = true;
        ids[choice] = best;
    }
}

inline void route_rows(const RouteCall& call, int from, int until) {
    std::vector<float> scores(call.experts), values;
    for (int row = from; row < until; row++) {
        const float* logits = call.logits + static_cast<int64_t>(row) * call.experts;
        int64_t* ids = call.ids + static_cast<int64_t>(row) * call.choices;
        float* weights = call.weights + static_cast<int64_t>(row) * call.choices;
        std::copy_n(logits, call.experts, scores.begin());
        if (call.score == SOFTMAX) softmax(scores.data(), call.experts);
        if (call.score == SIGMOID) {
            for (float& score : scores) score = 1.0f / (1.0f + std::exp(-score));
        }
        values = scores;
        for (int i = 0; call.select_bias && i < call.experts; i++) values[i] += call.select_bias[i];
        choose_highest(values, ids, call.choices);
        float total = 0;
        for (int i = 0; i < call.choices; i++) total += weights[i] = scores[ids[i]];
        if (call.score == CHOSEN_SOFTMAX) {
            softmax(weights, call.choices);
            continue;
        }
        for (int i = 0; i < call.choices; i++) {
            weights[i] = (call.is_renormed ? weights[i] / (total + call.eps) : weights[i]) * call.scale;
        }
    }
}
