// The convolution over the last tokens (`models/recurrence.py` defines it), for the channels `from` to `until`.

// Where the column of the token at position p is held between calls.
template <class E>
INL E* held(const CausalConvCall& call, const StateRow& row, int p) {
    const int64_t place = (p % call.ring + call.ring) % call.ring;
    return static_cast<E*>(call.columns) + row.slot * call.columns_stride + place * call.channels;
}

// The column of the token at position p: an input of this call, or one that an earlier call has left.
template <class E>
INL const E* column(const CausalConvCall& call, const StateRow& row, int p) {
    if (p >= row.start) return static_cast<const E*>(call.x) + (row.first + p - row.start) * call.x_stride;
    return held<E>(call, row, p);
}

// Copy the columns before position p.
template <class E>
INL void keep_columns(const CausalConvCall& call, const StateRow& row, int p, E* to, int from, int until) {
    for (int i = 0, first = p - call.taps + 1; i < call.taps - 1; i++) {
        std::copy(column<E>(call, row, first + i) + from, column<E>(call, row, first + i) + until,
                  to + static_cast<int64_t>(i) * call.channels + from);
    }
}

template <class E>
void causal_conv(const CausalConvCall& call, int from, int until) {
    const E* seen[MAX_TAPS];
    for (const StateRow* row = call.rows; row < call.rows + call.count; row++) {
        for (int t = row->start; t < row->end; t++) {
            for (int i = 0; i < call.taps; i++) seen[i] = column<E>(call, *row, t - call.taps + 1 + i);
            E* out = static_cast<E*>(call.out) + static_cast<int64_t>(row->first + t - row->start) * call.channels;
            for (int c = from; c < until; c += 16) {
                F sum = mul(load_at(seen[0], c, until), load_at(call.weight, c, until));
                const float* weight = call.weight;
                for (int i = 1; i < call.taps; i++) {
                    weight += call.channels;
                    sum = fma(load_at(seen[i], c, until), load_at(weight, c, until), sum);
                }
                if (call.bias) sum = add(sum, load_at(call.bias, c, until));
                if (call.activation == SILU) sum = activated(sum, SILU);
                store_at(out, sum, c, until);
            }
        }
        for (int i = 0; i < row->exports; i++) {
            const StateExport& made = call.exports[row->first_export + i];
            E* to = static_cast<E*>(call.records) + made.record * call.record_stride;
            keep_columns(call, *row, made.position, to, from, until);
        }
        if (row->new_anchor > row->anchor) {
            E* to = static_cast<E*>(call.anchor_columns) + row->slot * call.anchor_stride;
            keep_columns(call, *row, row->new_anchor, to, from, until);
        }
        for (int p = std::max(row->start, row->end - call.ring); p < row->end; p++) {
            const E* x = column<E>(call, *row, p);
            std::copy(x + from, x + until, held<E>(call, *row, p) + from);
        }
    }
}
