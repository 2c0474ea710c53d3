// Masks over logits: tokens that are not allowed become minus infinity.

// `T` is an integer of the size of a logit.
template <class T>
void mask_rows(const MaskCall& call, int from, int until) {
    const T minus_inf = static_cast<T>(call.minus_inf);
    for (int number = from; number < until; number++) {
        T* row = static_cast<T*>(call.logits) + call.rows[number] * call.stride;
        const uint32_t* bits = call.bits + static_cast<int64_t>(number) * call.words;
        for (int first = 0; first < call.vocab; first += 32) {
            const int count = std::min(32, call.vocab - first);
            uint32_t excluded = ~bits[first / 32];
            if (count < 32) excluded &= (1u << count) - 1;
            // Most words allow all of their tokens or none.
            if (excluded == ~0u) {
                std::fill_n(row + first, 32, minus_inf);
                continue;
            }
            for (; excluded; excluded &= excluded - 1) row[first + __builtin_ctz(excluded)] = minus_inf;
        }
    }
}
