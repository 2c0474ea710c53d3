// The norm of each group of a token, times a gate's activation before or behind it (`Ops.gated_norm`).
template <class E>
void gated_norm(const GatedNormCall& call, int from, int until) {
    const int size = call.size;
    for (int64_t row = from; row < until; row++) {
        const int64_t token = row / call.groups, group = row % call.groups;
        const float *x = call.x + row * size, *weight = call.weight + group * call.weight_stride;
        const E* gate = static_cast<const E*>(call.gate) + token * call.gate_stride + group * size;
        E* out = static_cast<E*>(call.out) + row * size;
        const auto value = [&](int i) {
            const F a = load_at(x, i, size);
            return call.gates_first ? mul(a, activated(load_at(gate, i, size), SILU)) : a;
        };
        F squares = set(0.0f);
        for (int i = 0; i < size; i += 16) {
            const F a = value(i);
            squares = fma(a, a, squares);
        }
        const F share = set(1.0f / root_mean_square(squares, size, call.eps));
        for (int i = 0; i < size; i += 16) {
            F a = mul(mul(value(i), share), load_at(weight, i, size));
            if (!call.gates_first) a = mul(a, activated(load_at(gate, i, size), SILU));
            store_at(out, a, i, size);
        }
    }
}
