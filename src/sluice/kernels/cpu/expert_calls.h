// The experts of a layer. The rows that chose an expert lie together, so its weights are read once for all of them. Threads
// share one list of items: some blocks of an expert's outputs each.
//
// Rows of x are quantised once, and then copied to the experts that they chose. A row's result depends on that row alone.

// One product of all experts that are chosen.
class ExpertProduct {
public:
    // `y`: [pairs, out]
    ExpertProduct(sluice_engine& engine, const ExpertLayers& layers, uint16_t* y)
        : engine(engine), layers(layers), buffers(engine.experts), y(y) {}

    // Take rows of x, each for all experts that it chose.
    void take_rows(const ExpertsCall& call) {
        const auto* x = static_cast<const uint16_t*>(call.x);
        StoredRows& by_row = buffers.by_row;
        by_row.resize(layers, engine.kernels.widens, call.rows);
        buffers.outliers.resize(call.rows, layers.in);
        const int step = static_cast<int>(std::max<int64_t>(1, ALONE / 4 / layers.in));
        engine.share((call.rows + step - 1) / step, static_cast<int64_t>(call.rows) * layers.in, [&](int64_t item, int) {
            const int from = static_cast<int>(item) * step;
            store(by_row, 0, buffers.outliers, x, call.x_stride, call.rows, from, std::min(call.rows, from + step));
        });
        each_expert([&](const ExpertRows& expert, Outliers& outliers) {
            const int32_t* rows = buffers.pairs.rows.data() + expert.first;
            for (int i = 0; i < expert.count; i++) buffers.by_pair.copy(by_row, rows[i], expert.first + i);
            if (!layers.is_grouped) return;
            outliers.resize(expert.count, layers.in);
            outliers.copy(buffers.outliers, rows);
            outliers.list([&](int i) { return x + rows[i] * call.x_stride; });
        });
    }

    // Take x [pairs, in], a row for each pair.
    void take_pairs(const uint16_t* x) {
        each_expert([&](const ExpertRows& expert, Outliers& outliers) {
            const uint16_t* first = x + static_cast<int64_t>(expert.first) * layers.in;
            outliers.resize(expert.count, layers.in);
            store(buffers.by_pair, expert.first, outliers, first, layers.in, expert.count, 0, expert.count);
            if (layers.is_grouped) outliers.list(first, layers.in);
        });
    }

    void multiply() {
        const int blocks = (layers.out + PACKED_BLOCK - 1) / PACKED_BLOCK;
        divide(buffers.pairs.chosen, blocks, block_bytes(), engine.pool.size(), buffers.items);
        engine.share(buffers.items.size(), ALONE + 1, [&](int64_t number, int thread) {
            const ExpertItem& item = buffers.items[number];
            const ExpertRows& expert = buffers.pairs.chosen[item.number];
            if (layers.is_grouped) multiply_grouped(expert, item, thread);
            else if (layers.is_quantized()) multiply_quantized(expert, item.linear, thread);
            else multiply_halves(expert, item.linear, thread);
        });
    }

private:
    // Bytes of the weights of a block, and of the one that it gates.
    int block_bytes() const {
        int64_t bytes = 0;
        if (layers.is_grouped) {
            const GroupedLinearCall& call = layers.grouped(0);
            for (int part = 0; part < call.count; part++) bytes += sluice_packed_bytes(call.parts[part].type, layers.in);
        } else {
            const PackedLinearCall& call = layers.linear(0);
            bytes = (1 + call.is_gated) * static_cast<int64_t>(weight_bits(call)) * PACKED_BLOCK / 8 * layers.in;
        }
        return static_cast<int>(bytes);
    }

    template <class Use>
    void each_expert(Use use) {
        const auto& chosen = buffers.pairs.chosen;
        const auto pairs = static_cast<int64_t>(buffers.pairs.rows.size());
        buffers.by_pair.resize(layers, engine.kernels.widens, pairs);
        if (buffers.of_expert.size() < chosen.size()) buffers.of_expert.resize(chosen.size());
        engine.share(chosen.size(), pairs * layers.in, [&](int64_t number, int) {
            use(chosen[number], buffers.of_expert[number]);
        });
    }

    // Bring rows `from` to `until` of x [rows, in] into the form of the product, behind row `first` of `to`.
    void store(StoredRows& to, int64_t first, Outliers& outliers, const uint16_t* x, int64_t x_stride, int rows, int from,
               int until) {
        const Kernels& kernels = engine.kernels;
        if (layers.is_grouped) {
            GroupedLinearCall call{};
            call.x = x, call.x_stride = x_stride, call.rows = rows, call.in = layers.in;
            const GroupedWork work{call, {}, to.bytes(first), to.sums(first), to.scales(first), outliers, to.stride};
            return kernels.quantize_runs(work, from, until);
        }
        if (layers.is_quantized()) {
            PackedLinearCall linear = layers.linear(0);
            linear.x = x, linear.x_stride = x_stride;
            const QuantizedCall call{linear, to.bytes(first), to.scales(first), to.sums(first), to.stride};
            return kernels.quantize_rows(call, from, until);
        }
        for (int row = from; row < until; row++) {
            const uint16_t* values = x + row * x_stride;
            auto* wide = reinterpret_cast<float*>(to.bytes(first + row));
            if (kernels.widens) std::transform(values, values + layers.in, wide, [](uint16_t half) { return widen(half); });
            else std::memcpy(wide, values, sizeof *values * layers.in);
        }
    }

    // Give a product the place of its results.
    PackedLinearCall placed(PackedLinearCall call, const ExpertRows& expert) const {
        call.y = y + static_cast<int64_t>(expert.first) * layers.out, call.y_stride = layers.out;
        call.rows = expert.count;
        call.is_one_order = 1;
        return call;
    }

    void multiply_halves(const ExpertRows& expert, const LinearItem& item, int thread) {
        PackedLinearCall call = placed(layers.linear(expert.expert), expert);
        call.x = buffers.by_pair.bytes(expert.first), call.x_stride = layers.in;
        // As in `sluice_packed_linear`.
        float* buffer = engine.pool.buffer(thread, 32 * (2 * PACKED_BLOCK + static_cast<int64_t>(layers.in) / 2));
        for (int block = item.first_block; block < item.last_block; block++) {
            engine.kernels.packed_linear(call, block, item.first_row, item.last_row, buffer);
        }
    }

    void multiply_quantized(const ExpertRows& expert, const LinearItem& item, int thread) {
        StoredRows& rows = buffers.by_pair;
        const PackedLinearCall linear = placed(layers.linear(expert.expert), expert);
        const QuantizedCall call{linear, rows.bytes(expert.first), rows.scales(expert.first), rows.sums(expert.first),
                                 rows.stride};
        float* buffer = engine.pool.buffer(thread, 64 * PACKED_BLOCK);
        for (int block = item.first_block; block < item.last_block; block++) {
            engine.kernels.quantized_linear(call, block, item.first_row, item.last_row, buffer);
        }
    }

    void multiply_grouped(const ExpertRows& expert, const ExpertItem& item, int thread) {
        StoredRows& rows = buffers.by_pair;
        GroupedLinearCall call = layers.grouped(expert.expert);
        call.rows = expert.count;
        PackedLinearCall finish{};
        finish.bias = call.bias, finish.activation = call.activation, finish.alpha = call.alpha, finish.limit = call.limit;
        const GroupedWork work{call, placed(finish, expert), rows.bytes(expert.first), rows.sums(expert.first),
                               rows.scales(expert.first), buffers.of_expert[item.number], rows.stride};
        float* buffer = engine.pool.buffer(thread, GROUPED_BUFFER);
        for (int block = item.linear.first_block; block < item.linear.last_block; block++) {
            engine.kernels.grouped_linear(work, 0, block, item.linear.first_row, item.linear.last_row, buffer);
        }
    }

    sluice_engine& engine;
    const ExpertLayers layers;
    ExpertBuffers& buffers;
    uint16_t* y;
};

EXPORT void sluice_experts(sluice_engine* engine, const ExpertsCall* call) {
    if (!call->rows) return;
    const std::lock_guard lock(engine->pool.one_call);
    ExpertBuffers& buffers = engine->experts;
    const int64_t pairs = static_cast<int64_t>(call->rows) * call->choices;
    buffers.pairs.sort(*call);
    buffers.inner.resize(pairs * call->inner);
    buffers.found.resize(pairs * call->in + 16);    // a vector behind the last row is read
    ExpertProduct up(*engine, {call->up, call->up_is_grouped != 0, call->in, call->inner}, buffers.inner.data());
    up.take_rows(*call);
    up.multiply();
    ExpertProduct down(*engine, {call->down, call->down_is_grouped != 0, call->inner, call->in}, buffers.found.data());
    down.take_pairs(buffers.inner.data());
    down.multiply();
    const CombineCall combine{buffers.found.data(), buffers.pairs.places.data(), call->weights,
                              static_cast<uint16_t*>(call->y), call->choices, call->in};
    engine->rows_locked(combine, call->rows, static_cast<int64_t>(call->choices) * call->in, engine->kernels.combine, 1);
}
