// Norms, rotary positions with the store into pages, and the gated activation: one pass over memory each, computed in
// float32 and rounded once.

// The last lanes of a row whose size is no multiple of sixteen.
template <class E>
INL F load_some(const E* p, int count) {
    E whole[16] = {};
    std::memcpy(whole, p, sizeof(E) * count);
    return load(whole);
}
template <class E>
INL void store_some(E* p, F x, int count) {
    E whole[16];
    store(whole, x);
    std::memcpy(p, whole, sizeof(E) * count);
}
// Zeros behind the first `count` lanes.
INL F keep_first(F x, int count) {
    float whole[16] = {}, all[16];
    store(all, x);
    std::memcpy(whole, all, sizeof(float) * count);
    return load(whole);
}
template <class E>
INL F load_at(const E* p, int at, int size) {
    return at + 16 <= size ? load(p + at) : load_some(p + at, size - at);
}
template <class E>
INL void store_at(E* p, F x, int at, int size) {
    if (at + 16 <= size) store(p + at, x);
    else store_some(p + at, x, size - at);
}

INL float root_mean_square(F squares, int size, float eps) { return std::sqrt(hsum(squares) / size + eps); }

// Sum the squares of the differences from the mean: a variance from plain sums of squares loses precision beside a large
// mean.
template <class E>
INL F squares_about(float mean, const E* x, int size) {
    F squares = set(0.0f);
    for (int i = 0; i < size; i += 16) {
        F a = sub(load_at(x, i, size), set(mean));
        if (i + 16 > size) a = keep_first(a, size - i);
        squares = fma(a, a, squares);
    }
    return squares;
}

template <class E>
void norm_rows(const NormCall& call, int from, int until) {
    for (int row = from; row < until; row++) {
        E* x = static_cast<E*>(call.x) + row * call.x_stride;
        const E* delta = call.delta ? static_cast<const E*>(call.delta) + row * call.delta_stride : nullptr;
        const float *weight = call.weight, *bias = call.bias;
        E* out = static_cast<E*>(call.out) + static_cast<int64_t>(row) * call.size;
        F squares = set(0.0f), total = set(0.0f);
        for (int i = 0; i < call.size; i += 16) {
            if (delta) store_at(x, add(load_at(x, i, call.size), load_at(delta, i, call.size)), i, call.size);
            const F a = load_at(x, i, call.size);    // as stored: later additions use these values
            squares = fma(a, a, squares);
            total = add(total, a);
        }
        const float mean = bias ? hsum(total) / call.size : 0.0f;
        if (bias) squares = squares_about(mean, x, call.size);
        const F share = set(1.0f / root_mean_square(squares, call.size, call.eps));
        for (int i = 0; i < call.size; i += 16) {
            const F normed = mul(sub(load_at(x, i, call.size), set(mean)), share);
            const F shift = bias ? load_at(bias, i, call.size) : set(0.0f);
            store_at(out, fma(normed, load_at(weight, i, call.size), shift), i, call.size);
        }
    }
}

// Rotate elements of a head: x cos + partner sin.
INL F turned(F x, F partner, F cos, F sin) { return fma(x, cos, mul(partner, sin)); }

// Norm and rotate one head whose halves are whole vectors. Pair i is elements i and i + head_dim / 2.
template <class E>
INL void turn_head(E* head, const float* weight, float eps, const E* cos, const E* sin, int d) {
    const int half = d / 2;
    F share = set(1.0f);
    if (weight) {
        F squares = set(0.0f);
        for (int i = 0; i < d; i += 16) squares = fma(load(head + i), load(head + i), squares);
        share = set(1.0f / root_mean_square(squares, d, eps));
    }
    for (int i = 0; i < half; i += 16) {
        F x = load(head + i), y = load(head + half + i);
        if (weight) {
            x = mul(mul(x, share), load(weight + i));
            y = mul(mul(y, share), load(weight + half + i));
        }
        if (cos) {
            const F first = turned(x, sub(set(0.0f), y), load(cos + i), load(sin + i));
            y = turned(y, x, load(cos + half + i), load(sin + half + i));
            x = first;
        }
        store(head + i, x);
        store(head + half + i, y);
    }
}

// The same for any head size.
template <class E>
INL void turn_odd_head(E* head, const float* weight, float eps, const E* cos, const E* sin, int d) {
    alignas(64) float x[MAX_HEAD_DIM], partner[MAX_HEAD_DIM];
    F squares = set(0.0f);
    for (int i = 0; i < d; i += 16) {
        const F a = load(head + i);
        squares = fma(a, a, squares);
        store(x + i, a);
    }
    if (weight) {
        const F share = set(1.0f / root_mean_square(squares, d, eps));
        for (int i = 0; i < d; i += 16) store(x + i, mul(mul(load(x + i), share), load(weight + i)));
    }
    if (cos) {
        const int half = d / 2;
        for (int i = 0; i < half; i++) partner[i] = -x[half + i], partner[half + i] = x[i];
        for (int i = 0; i < d; i += 16) store(x + i, turned(load(x + i), load(partner + i), load(cos + i), load(sin + i)));
    }
    for (int i = 0; i < d; i += 16) store(head + i, load(x + i));
}

// Store the keys of one head for `count` consecutive tokens of one group of sixteen.
template <class E>
INL void store_keys(const E* k, int64_t stride, int count, E* to, int d) {
    constexpr int KP = sizeof(E) == 2 ? 2 : 1;
    for (int i = 0; i < d; i += KP, to += 16 * KP) {
        for (int token = 0; token < count; token++) {
            std::memcpy(to + token * KP, k + token * stride + i, sizeof(E) * KP);
        }
    }
}

// Store the values of consecutive tokens of a page, the first at its position `at`.
INL void store_values(const float* v, int64_t stride, int count, float* page, int at, int d) {
    for (int token = 0; token < count; token++) {
        std::memcpy(page + static_cast<int64_t>(at + token) * d, v + token * stride, sizeof(float) * d);
    }
}

INL void store_values(const uint16_t* v, int64_t stride, int count, uint16_t* page, int at, int d) {
    for (int token = 0; token < count;) {
        const uint16_t *one = v + token * stride, *other = one + stride;
        uint16_t* to = page + static_cast<int64_t>(at + token) / 2 * 2 * d;
        if ((at + token) % 2 || token + 1 == count) {
            for (int i = 0; i < d; i++) to[2 * i + (at + token) % 2] = one[i];
            token++;
            continue;
        }
        for (int i = 0; i < d; i += 16) {
            uint32_t pairs[16];
            UNROLLED for (int n = 0; n < 16; n++) pairs[n] = one[i + n] | static_cast<uint32_t>(other[i + n]) << 16;
            std::memcpy(to + 2 * i, pairs, sizeof pairs);
        }
        token += 2;
    }
}

// Count the tokens from `token` on that are consecutive in one group of sixteen.
INL int run_of(const RotateStoreCall& call, int token, int until) {
    const int64_t first = call.slots[token];
    int count = 1;
    while (token + count < until && call.slots[token + count] == first + count && (first + count) % 16) count++;
    return count;
}

INL uint32_t magnitude(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

// Quantise one token's key or value of one head (`attention/int8.py`) into a piece of a page: byte i goes to
// `to[stride * (i / 2) + i % 2 * step]`. As integers, the magnitudes of infinity and of NaN are larger than all others.
INL void store_int8(const float* wide, int8_t* to, int stride, int step, float* scale, int d) {
    alignas(64) int8_t bytes[MAX_HEAD_DIM];
    uint32_t bits = 0;
    for (int i = 0; i < d; i++) bits = std::max(bits, magnitude(wide[i]));
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const bool is_zero = largest < TINY;
    *scale = is_zero ? 0.0f : largest / 127.0f;
    if (is_zero || !std::isfinite(largest)) {
        std::memset(bytes, 0, sizeof bytes);
    } else {
        const F inverse = set(127.0f / largest);
        auto* at = reinterpret_cast<uint8_t*>(bytes);
        for (int i = 0; i < d; i += 16) store_bytes(at + i, round(mul(load(wide + i), inverse)), 0);
    }
    for (int i = 0; i < d; i += 2, to += stride) {
        to[0] = bytes[i];
        to[step] = bytes[i + 1];
    }
}

// Store one token's keys and values of all heads into pages of int8. Keys are stored without their offset, and rotated.
template <class E>
INL void store_int8_token(const RotateStoreCall& call, int token) {
    const int d = call.head_dim, groups = call.page_size / 16, at = static_cast<int>(call.slots[token] % call.page_size);
    const int64_t page = call.slots[token] / call.page_size, piece = 16 * (d + static_cast<int64_t>(sizeof(float)));
    const int n = at % 16;
    alignas(64) float wide[MAX_HEAD_DIM];
    for (int head = 0; head < call.kv_heads; head++) {
        const int64_t first = ((page * call.kv_heads + head) * groups + at / 16) * piece;
        int8_t* k = static_cast<int8_t*>(call.k_pages) + first;
        int8_t* v = static_cast<int8_t*>(call.v_pages) + first;
        const E* from_k = static_cast<const E*>(call.k) + token * call.k_stride + head * d;
        const E* from_v = static_cast<const E*>(call.v) + token * call.v_stride + head * d;
        for (int i = 0; i < d; i += 16) {
            store(wide + i, call.k_offset ? sub(load(from_k + i), load(call.k_offset + head * d + i)) : load(from_k + i));
        }
        rotate_head(wide, d);
        store_int8(wide, k + 2 * n, 32, 1, reinterpret_cast<float*>(k + 16 * d) + n, d);
        for (int i = 0; i < d; i += 16) store(wide + i, load(from_v + i));
        store_int8(wide, v + n / 2 * 2 * d + n % 2, 4, 2, reinterpret_cast<float*>(v + 16 * d) + n, d);
    }
}

template <class E>
void rotate_and_store(const RotateStoreCall& call, int from, int until) {
    const int d = call.head_dim, size = call.page_size;
    const bool turns = call.cos != nullptr || call.q_weight != nullptr;
    const auto turn = d % 32 ? turn_odd_head<E> : turn_head<E>;
    for (int token = from; turns && token < until; token++) {
        const E* cos = call.cos ? static_cast<const E*>(call.cos) + static_cast<int64_t>(token) * d : nullptr;
        const E* sin = call.cos ? static_cast<const E*>(call.sin) + static_cast<int64_t>(token) * d : nullptr;
        E* q = static_cast<E*>(call.q) + token * call.q_stride;
        E* k = static_cast<E*>(call.k) + token * call.k_stride;
        for (int head = 0; head < (call.q ? call.heads : 0); head++) {
            turn(q + head * d, call.q_weight, call.q_eps, cos, sin, d);
        }
        for (int head = 0; head < call.kv_heads; head++) {
            turn(k + head * d, call.k_weight, call.k_eps, cos, sin, d);
        }
    }
    if (call.is_int8) {
        for (int token = from; token < until; token++) store_int8_token<E>(call, token);
        return;
    }
    for (int token = from, count; token < until; token += count) {
        count = run_of(call, token, until);
        const E* k = static_cast<const E*>(call.k) + token * call.k_stride;
        const E* v = static_cast<const E*>(call.v) + token * call.v_stride;
        const int64_t page = call.slots[token] / size;
        const int at = static_cast<int>(call.slots[token] % size);
        for (int head = 0; head < call.kv_heads; head++) {
            const int64_t first = (page * call.kv_heads + head) * size * d;
            E* keys = static_cast<E*>(call.k_pages) + first + static_cast<int64_t>(at) / 16 * 16 * d;
            constexpr int KP = sizeof(E) == 2 ? 2 : 1;
            store_keys(k + head * d, call.k_stride, count, keys + at % 16 * KP, d);
            store_values(v + head * d, call.v_stride, count, static_cast<E*>(call.v_pages) + first, at, d);
        }
    }
}

template <class E>
void silu_mul_rows(const SiluMulCall& call, int from, int until) {
    for (int row = from; row < until; row++) {
        const E* gate = static_cast<const E*>(call.gate) + row * call.gate_stride;
        const E* up = static_cast<const E*>(call.up) + row * call.up_stride;
        E* out = static_cast<E*>(call.out) + static_cast<int64_t>(row) * call.size;
        for (int i = 0; i < call.size; i += 16) {
            const F x = load_at(gate, i, call.size);
            const F e = exp2(mul(max(set(-88.0f), x), set(-LOG2_E)));
            store_at(out, mul(div(x, add(set(1.0f), e)), load_at(up, i, call.size)), i, call.size);
        }
    }
}
