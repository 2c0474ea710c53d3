// The recurrence of layers with a state (`models/recurrence.py` defines it).
//
// Each element of a result is one chain of multiply-adds, in the order of key_dim or of tokens; products of keys are
// sixteen chains, whose sums are added in the order of `hsum`. So its bits depend only on the block where the token is
// and on the tokens before it there, and not on what is computed with it.

INL F exponential(F x) { return exp2(mul(x, set(LOG2_E))); }

// to[m][16 n] = sum over i of x[m][i] y[i][16 n], or added to what is there.
template <int M, int N>
void add_products(const float* x, int64_t x_row, int64_t x_step, const float* y, int64_t y_row, int count, float* to,
                  int64_t to_row, bool is_added) {
    F sums[M * N], right[N];
    UNROLLED for (int i = 0; i < M * N; i++) sums[i] = is_added ? load(to + i / N * to_row + i % N * 16) : set(0.0f);
    for (int k = 0; k < count; k++, x += x_step, y += y_row) {
        UNROLLED for (int n = 0; n < N; n++) right[n] = load(y + 16 * n);
        UNROLLED for (int i = 0; i < M * N; i++) sums[i] = fma(set(x[i / N * x_row]), right[i % N], sums[i]);
    }
    UNROLLED for (int i = 0; i < M * N; i++) store(to + i / N * to_row + i % N * 16, sums[i]);
}

// Some rows of factors, and their distances.
struct Factors {
    const float* at;
    int64_t row, step;
};

// The same for `rows` rows and `width` columns; those of y and of the result are `width` apart, except for the latter if
// `to_row` says so.
INL void multiply(int rows, const Factors& x, const float* y, int count, int width, float* to, bool is_added,
                  int64_t to_row) {
    in_pieces(rows, width / 16, [&](auto m, auto n, int row, int vector) {
        add_products<m, n>(x.at + row * x.row, x.row, x.step, y + 16 * vector, width, count,
                           to + row * to_row + 16 * vector, to_row, is_added);
    });
}

// Add factors times u of earlier tokens to the rows `from` to `until` of `to`, which may be u; `own` ones of the token
// itself count, too.
INL void add_earlier(const float* factors, const float* u, int from, int until, int width, float* to, int own) {
    for (int first = from; first < until; first += MAX_ROWS) {
        const int rows = std::min(MAX_ROWS, until - first);
        const Factors left{factors + first * STATE_BLOCK, STATE_BLOCK, 1};
        multiply(rows, left, u, first, width, to + static_cast<int64_t>(first) * width, true, width);
        for (int t = first; t < first + rows; t++) {
            float* sum = to + static_cast<int64_t>(t) * width;
            for (int i = 0; i < width; i += 16) {
                F total = load(sum + i);
                for (int j = first; j < t + own; j++) {
                    total = fma(set(factors[t * STATE_BLOCK + j]), load(u + static_cast<int64_t>(j) * width + i), total);
                }
                store(sum + i, total);
            }
        }
    }
}

INL F load_any(const void* p, int64_t at, bool is_bf16) {
    return is_bf16 ? load(static_cast<const uint16_t*>(p) + at) : load(static_cast<const float*>(p) + at);
}

INL float one_of(const void* p, int64_t at, bool is_bf16) {
    return is_bf16 ? widen(static_cast<const uint16_t*>(p)[at]) : static_cast<const float*>(p)[at];
}

// Widen one head of k or q, made one long and scaled if the call asks for it.
INL void load_head(const RecurrenceCall& call, const void* p, int64_t at, float scale, float* to) {
    F squares = set(0.0f);
    for (int i = 0; i < call.key_dim; i += 16) {
        const F x = load_any(p, at + i, call.is_bf16);
        squares = fma(x, x, squares);
        store(to + i, x);
    }
    if (call.length_eps == 0) return;
    const F share = set(1.0f / std::sqrt(hsum(squares) + call.length_eps));
    for (int i = 0; i < call.key_dim; i += 16) store(to + i, mul(mul(load(to + i), share), set(scale)));
}

// The products of the q and the k of a token with the k of the tokens before it, and of q with its own.
INL void multiply_keys(const StateScratch& at, int t, int size, bool has_k) {
    const float *q = at.q + t * size, *own = at.k + t * size;
    for (int j = 0; j <= t; j++) {
        const float* k = at.k + j * size;
        F of_q = set(0.0f), of_k = set(0.0f);
        for (int i = 0; i < size; i += 16) {
            const F right = load(k + i);
            of_q = fma(load(q + i), right, of_q);
            if (has_k) of_k = fma(load(own + i), right, of_k);
        }
        at.kq[t * STATE_BLOCK + j] = hsum(of_q);
        if (has_k) at.kk[t * STATE_BLOCK + j] = hsum(of_k);
    }
}

// One block of an item.
struct StateSpan {
    const StateRow& row;
    int begin, known, count;    // the first token; how many are in the tail; how many there are after the call

    int64_t token(int j) const { return row.first + begin + j - row.start; }    // of the call
    int held(int j) const { return begin + j - row.anchor; }                    // in the tail before the call
    int kept(int j) const { return begin + j - row.new_anchor; }                // and after it
    bool is_kept() const { return begin >= row.new_anchor; }
};

// Copy rows that are far apart in memory, so that no prefetcher of the processor knows the next one.
INL void copy_rows(const float* from, int64_t row, int count, int size, float* to) {
    constexpr int ROWS_AHEAD = 6;
    for (int j = 0; j < count; j++, from += row, to += size) {
        for (int i = 0; i < size; i += 16) {
            fetch(from + ROWS_AHEAD * row + i);
            store(to + i, load(from + i));
        }
    }
}

INL void load_keys(const RecurrenceCall& call, const StateSpan& span, int head, const StateScratch& at) {
    const int size = call.key_dim;
    const float* tail = call.k_tail + span.row.slot * call.k_tail_stride;
    const int64_t token = static_cast<int64_t>(call.key_heads) * size;
    copy_rows(tail + span.held(0) * token + head * size, token, span.known, size, at.k);
    for (int j = span.known; j < span.count; j++) {
        load_head(call, call.k, span.token(j) * call.k_stride + head * size, 1.0f, at.k + j * size);
        load_head(call, call.q, span.token(j) * call.q_stride + head * size, call.q_scale, at.q + j * size);
    }
    for (int t = span.known; t < span.count; t++) multiply_keys(at, t, size, call.beta || call.rates);
}

// The length of a token's step, the decay of the token alone, and the rate at which it is learned.
INL float step_of(const RecurrenceCall& call, int64_t token, int head) {
    const float x = one_of(call.steps, token * call.steps_stride + head, call.is_bf16_steps) + call.step_bias[head];
    return std::min(std::max(x > 20 ? x : std::log1p(std::exp(x)), call.least_step), call.most_step);
}

INL float decay_of(const RecurrenceCall& call, int64_t token, int head) {
    return call.g ? call.g[token * call.value_heads + head] : call.decay_rates[head] * step_of(call, token, head);
}

INL float rate_of(const RecurrenceCall& call, int64_t token, int head) {
    if (call.beta) return call.beta[token * call.value_heads + head];
    const float x = 1.0f / (1.0f + std::exp(-one_of(call.rates, token * call.rates_stride + head, call.is_bf16_steps)));
    return call.is_bf16_steps ? widen(narrow(x)) : x;
}

INL void load_tail(const RecurrenceCall& call, const StateSpan& span, int head, const StateScratch& at) {
    const int size = call.value_dim;
    const float* u = call.u_tail + span.row.slot * call.u_tail_stride;
    const float* g = call.g_tail + span.row.slot * call.g_tail_stride;
    const int64_t token = static_cast<int64_t>(call.value_heads) * size;
    copy_rows(u + span.held(0) * token + head * size, token, span.known, size, at.u);
    for (int j = 0; j < span.known; j++) at.g[j] = g[static_cast<int64_t>(span.held(j)) * call.value_heads + head];
    float total = span.known ? at.g[span.known - 1] : 0.0f;
    for (int j = span.known; j < span.count; j++) at.g[j] = total = total + decay_of(call, span.token(j), head);
    std::fill(at.g + span.count, at.g + STATE_BLOCK, 0.0f);
    for (int j = 0; j < STATE_BLOCK; j += 16) store(at.decay + j, exponential(load(at.g + j)));
}

// What earlier tokens of the block give to token t, for products of keys and a factor.
INL void weigh_earlier(const StateScratch& at, int t, const float* products, float factor) {
    for (int j = 0; j <= t; j += 16) {
        const F decay = exponential(sub(set(at.g[t]), load(at.g + j)));
        const F product = load(products + t * STATE_BLOCK + j);
        store(at.factors + t * STATE_BLOCK + j, mul(mul(decay, product), set(factor)));
    }
}

// What new tokens put into the state (into `at.u`), and what they read of it.
INL void compute_block(const RecurrenceCall& call, const StateSpan& span, int head, const float* s,
                       const StateScratch& at) {
    const int known = span.known, fresh = span.count - known, size = call.value_dim;
    const bool is_delta = call.beta || call.rates;
    const int64_t k_to_q = STATE_BLOCK * static_cast<int64_t>(call.key_dim), row = call.key_dim;
    float *from_k = at.from_k + known * size, *from_q = at.from_q + known * size;
    if (is_delta && fresh == 1) {    // k and q together, so that S is read once
        multiply(2, {at.k + known * row, k_to_q, 1}, s, call.key_dim, size, from_k, false, at.from_q - at.from_k);
    } else {
        multiply(fresh, {at.q + known * row, row, 1}, s, call.key_dim, size, from_q, false, size);
        if (is_delta) multiply(fresh, {at.k + known * row, row, 1}, s, call.key_dim, size, from_k, false, size);
    }
    for (int t = known; t < span.count; t++) {
        const int64_t v = span.token(t) * call.v_stride + head * size;
        float rate = 1.0f;
        if (is_delta) rate = rate_of(call, span.token(t), head);
        else if (call.skip) rate = step_of(call, span.token(t), head);
        for (int i = 0; i < size; i += 16) {
            F value = load_any(call.v, v + i, call.is_bf16_v);
            if (is_delta) value = fma(set(-at.decay[t]), load(at.from_k + t * size + i), value);
            store(at.u + t * size + i, mul(set(rate), value));
            store(at.from_q + t * size + i, mul(set(at.decay[t]), load(at.from_q + t * size + i)));
        }
        if (is_delta) weigh_earlier(at, t, at.kk, -rate);
    }
    if (is_delta) add_earlier(at.factors, at.u, known, span.count, size, at.u, 0);
    for (int t = known; t < span.count; t++) weigh_earlier(at, t, at.kq, 1.0f);
    add_earlier(at.factors, at.u, known, span.count, size, at.from_q, 1);
    for (int t = known; t < span.count; t++) {
        float* out = call.out + (span.token(t) * call.value_heads + head) * size;
        for (int i = 0; i < size; i += 16) {
            F sum = load(at.from_q + t * size + i);
            if (call.skip) {
                const F value = load_any(call.v, span.token(t) * call.v_stride + head * size + i, call.is_bf16_v);
                sum = fma(set(call.skip[head]), value, sum);
            }
            store(out + i, sum);
        }
    }
}

INL void keep_tail(const RecurrenceCall& call, const StateSpan& span, int head, const StateScratch& at) {
    const int size = call.value_dim;
    const int first = span.row.anchor == span.row.new_anchor ? span.known : 0;
    float* u = call.u_tail + span.row.slot * call.u_tail_stride;
    float* g = call.g_tail + span.row.slot * call.g_tail_stride;
    for (int j = first; j < span.count; j++) {
        const int64_t place = static_cast<int64_t>(span.kept(j)) * call.value_heads + head;
        std::copy(at.u + j * size, at.u + (j + 1) * size, u + place * size);
        g[place] = at.g[j];
    }
}

// The state behind a whole block that begins with `s`.
INL void pass_block(const RecurrenceCall& call, const float* s, const StateScratch& at, float* to) {
    const int keys = call.key_dim, values = call.value_dim;
    const float last = at.g[STATE_BLOCK - 1];
    for (int j = 0; j < STATE_BLOCK; j += 16) store(at.factors + j, exponential(sub(set(last), load(at.g + j))));
    for (int j = 0; j < STATE_BLOCK; j++) {
        for (int i = 0; i < values; i += 16) {
            store(at.from_k + j * values + i, mul(set(at.factors[j]), load(at.u + j * values + i)));
        }
    }
    const F decay = set(at.decay[STATE_BLOCK - 1]);
    for (int64_t i = 0; i < static_cast<int64_t>(keys) * values; i += 16) store(to + i, mul(decay, load(s + i)));
    multiply(keys, {at.k, 1, keys}, at.from_k, STATE_BLOCK, values, to, true, values);
}

inline void recur(const RecurrenceCall& call, const StateItem& item, float* buffer) {
    const StateScratch at(call, buffer);
    const StateRow& row = call.rows[item.row];
    const int64_t state = static_cast<int64_t>(call.key_dim) * call.value_dim;
    for (int begin = row.anchor; begin < row.end; begin += STATE_BLOCK) {
        const int end = begin + STATE_BLOCK;
        const int known = std::clamp(row.start - begin, 0, STATE_BLOCK), count = std::min(row.end - begin, STATE_BLOCK);
        const StateSpan span{row, begin, known, count};
        load_keys(call, span, item.key_head, at);
        for (int i = 0; i < item.heads; i++) {
            const int head = value_head(call, item.key_head, item.first + i);
            float* live = call.s + row.slot * call.s_stride + head * state;
            const float* from = begin <= row.new_anchor ? live : at.s + i * state;
            float* to = end <= row.new_anchor ? live : at.s + i * state;
            load_tail(call, span, head, at);
            if (span.known < span.count) compute_block(call, span, head, from, at);
            if (span.is_kept()) keep_tail(call, span, head, at);
            if (end <= row.new_anchor || end < row.end) pass_block(call, from, at, to);
            for (int n = 0; n < row.exports; n++) {
                const StateExport& made = call.exports[row.first_export + n];
                float* record = call.records + made.record * call.record_stride + head * state;
                if (made.position == end) std::copy(to, to + state, record);
            }
        }
    }
}

// Keep k of the tokens from the new anchor on, of the rows `from` to `until`, when no item needs those before.
inline void keep_keys(const RecurrenceCall& call, int from, int until) {
    const int64_t size = call.key_dim, token = size * call.key_heads;
    for (const StateRow* row = call.rows + from; row < call.rows + until; row++) {
        float* tail = call.k_tail + row->slot * call.k_tail_stride;
        const int moved = row->new_anchor == row->anchor ? row->start : row->new_anchor;
        for (int p = moved; p < row->end; p++) {
            float* to = tail + (p - row->new_anchor) * token;
            if (p < row->start) {
                std::copy(tail + (p - row->anchor) * token, tail + (p - row->anchor + 1) * token, to);
                continue;
            }
            for (int head = 0; head < call.key_heads; head++) {
                const int64_t at = (row->first + p - row->start) * call.k_stride + head * size;
                load_head(call, call.k, at, 1.0f, to + head * size);
            }
        }
    }
}
