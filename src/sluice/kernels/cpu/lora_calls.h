// Divides the products of adapters among threads.

// Run an item for each tile and each run of `step` of what `size_of` says that the tile has.
template <class Size>
static void lora_items(sluice_engine* engine, const LoraWork& work, int step, Size size_of, LoraStep run) {
    struct Item {
        int tile, from, until;
    };
    std::vector<Item> items;
    for (int tile = 0; tile < static_cast<int>(work.tiles.size()); tile++) {
        const int size = size_of(work.tiles[tile].slot);
        for (int from = 0; from < size; from += step) items.push_back({tile, from, std::min(size, from + step)});
    }
    struct Context {
        const LoraWork& work;
        const std::vector<Item>& items;
        LoraStep run;
        Pool& pool;
    } context{work, items, run, engine->pool};
    engine->pool.run(items.size(), &context, [](void* p, int64_t number, int thread) {
        const auto& c = *static_cast<Context*>(p);
        const Item item = c.items[number];
        float* buffer = c.pool.buffer(thread, LoraTile::MOST * (SHRINK_INPUTS + 16 * SHRINK_RANKS));
        c.run(c.work, c.work.tiles[item.tile], item.from, item.until, buffer);
    });
}

EXPORT void sluice_lora(sluice_engine* engine, const LoraCall* call) {
    const std::lock_guard lock(engine->pool.one_call);
    LoraWork work(*call);
    engine->wide.resize(std::max<size_t>(engine->wide.size(), work.order.size() * work.width));
    work.shrunk = engine->wide.data();
    lora_items(engine, work, SHRINK_RANKS, [&](int slot) { return work.ranks_of(slot); }, engine->kernels.lora_shrink);
    const int outputs = call->gated ? call->out / 2 : call->out;
    lora_items(engine, work, EXPAND_OUTPUTS, [&](int) { return outputs; }, engine->kernels.lora_expand);
}
