// The sum of what a row's experts give, times their weights, in the order of its choices in float32. So it depends on no
// other row.
inline void combine_rows(const CombineCall& call, int from, int until) {
    for (int row = from; row < until; row++) {
        const int32_t* places = call.places + static_cast<int64_t>(row) * call.choices;
        const float* weights = call.weights + static_cast<int64_t>(row) * call.choices;
        uint16_t* y = call.y + static_cast<int64_t>(row) * call.size;
        for (int i = 0; i < call.size; i += 16) {
            F sum = set(0.0f);
            for (int k = 0; k < call.choices; k++) {
                const uint16_t* found = call.found + static_cast<int64_t>(places[k]) * call.size + i;
                // A product with a rounding of its own: the compiler would join `mul` and `add`.
                sum = add(sum, fused(set(weights[k]), load(found), set(0.0f)));
            }
            store_at(y, sum, i, call.size);
        }
    }
}
