// The calls over weights in groups: their packing, products and lookups, divided into items for the threads.

// Bytes of 32 outputs in the layout of `packed_groups.h`.
EXPORT int64_t sluice_packed_bytes(int type, int64_t in) {
    int64_t bytes = 0;
    with_stored_type(type, [&](auto stored) { bytes = Packed<decltype(stored)>::block_bytes(in); });
    return bytes;
}

EXPORT void sluice_take_grids(const void* grids) { take_grids(grids); }

EXPORT void sluice_pack_blocks(sluice_engine* engine, const PackBlocksCall* call) {
    const std::lock_guard lock(engine->pool.one_call);
    const int blocks = (call->out + PACKED_BLOCK - 1) / PACKED_BLOCK;
    engine->pool.run(blocks, const_cast<PackBlocksCall*>(call), [](void* p, int64_t block, int) {
        const auto& c = *static_cast<const PackBlocksCall*>(p);
        with_stored_type(c.type, [&](auto stored) { pack_groups<decltype(stored)>(c, static_cast<int>(block)); });
    });
    if (call->is_mapped) with_stored_type(call->type, [&](auto stored) { drop_pages<decltype(stored)>(*call); });
}

EXPORT void sluice_grouped_linear(sluice_engine* engine, const GroupedLinearCall* call) {
    const std::lock_guard lock(engine->pool.one_call);
    const int64_t stride = bytes_of_row(call->in), rows = call->rows;
    engine->bytes.resize(rows * stride);
    engine->scales.resize(rows * (call->in / PART));
    engine->group_sums.resize(rows * (call->in / GROUP_STEP));
    engine->outliers.resize(call->rows, call->in);
    GroupedWork work{*call, {}, engine->bytes.data(), engine->group_sums.data(), engine->scales.data(), engine->outliers, stride};
    PackedLinearCall& finish = work.finish;
    finish.bias = call->bias, finish.activation = call->activation;
    finish.alpha = call->alpha, finish.limit = call->limit;
    finish.y = call->y, finish.y_stride = call->y_stride, finish.is_float_y = call->is_float_y;
    engine->rows_locked(work, call->rows, call->in, engine->kernels.quantize_runs, 1);
    engine->outliers.list(static_cast<const uint16_t*>(call->x), call->x_stride);
    int blocks = 0;
    int64_t bytes = 0;
    for (int part = 0; part < call->count; part++) {
        const int of_part = (call->parts[part].out + PACKED_BLOCK - 1) / PACKED_BLOCK;
        if (!call->is_gated || part == 0) blocks += of_part;
        bytes += of_part * sluice_packed_bytes(call->parts[part].type, call->in);
    }
    const LinearItems items(call->rows, blocks, static_cast<int>(bytes / blocks), engine->pool.size());
    struct Context {
        sluice_engine& engine;
        const GroupedWork& work;
        const LinearItems& items;
    } context{*engine, work, items};
    engine->pool.run(items.count(), &context, [](void* p, int64_t number, int thread) {
        const auto& c = *static_cast<Context*>(p);
        float* buffer = c.engine.pool.buffer(thread, GROUPED_BUFFER);
        const LinearItem item = c.items[number];
        int part = 0, first = 0;    // the block at which a part begins
        for (int block = item.first_block; block < item.last_block; block++) {
            for (;; part++) {
                const int end = first + (c.work.call.parts[part].out + PACKED_BLOCK - 1) / PACKED_BLOCK;
                if (block < end) break;
                first = end;
            }
            c.engine.kernels.grouped_linear(c.work, part, block - first, item.first_row, item.last_row, buffer);
        }
    });
}

EXPORT void sluice_embed_rows(sluice_engine* engine, const EmbedRowsCall* call) {
    engine->rows(*call, call->count, call->in, embed_rows);
}
