// Bounds on the scores of pages, from the least and the greatest value of each component of their keys.

template <class E>
void bound_pages(const PageBoundsCall& call, int from, int until) {
    const int64_t dim = call.head_dim, row = call.kv_heads * dim;
    for (int64_t page = from; page < until; page++) {
        const E* least = static_cast<const E*>(call.bounds) + 2 * row * page;
        const float* q = call.q;
        float* upper = call.upper + page;
        for (int head = 0; head < call.kv_heads; head++, least += dim) {
            const E* greatest = least + row;
            for (int query = 0; query < call.queries; query++, q += 2 * dim, upper += call.pages) {
                F sum = set(0);
                for (int64_t i = 0; i < dim; i += 16) {
                    sum = fma(load(q + i), load(least + i), sum);
                    sum = fma(load(q + dim + i), load(greatest + i), sum);
                }
                *upper = hsum(sum);
            }
        }
    }
}
