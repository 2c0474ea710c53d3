// The calls over states, divided into items for the threads.

EXPORT void sluice_causal_conv(sluice_engine* engine, const CausalConvCall* call) {
    // Of all rows: each item keeps the columns of its channels.
    const auto work = call->is_bf16 ? engine->kernels.causal_conv_bf16 : engine->kernels.causal_conv_float;
    const int64_t elements = static_cast<int64_t>(std::max(call->tokens, call->count)) * call->taps;
    engine->rows(*call, call->channels, elements, work, CONV_CHANNELS);
}

EXPORT void sluice_recurrence(sluice_engine* engine, const RecurrenceCall* call) {
    const std::lock_guard lock(engine->pool.one_call);
    const std::vector<StateItem> items = state_items(*call);
    const int64_t state = static_cast<int64_t>(call->value_heads) * call->key_dim * call->value_dim;
    engine->share(items.size(), call->count * state, [&](int64_t number, int thread) {
        float* buffer = engine->pool.buffer(thread, StateScratch::floats(*call));
        engine->kernels.recur(*call, items[number], buffer);
    });
    const int64_t keys = static_cast<int64_t>(call->key_heads) * call->key_dim;
    engine->rows_locked(*call, call->count, keys, engine->kernels.keep_keys, 1);
}

EXPORT void sluice_gated_norm(sluice_engine* engine, const GatedNormCall* call) {
    const Kernels& k = engine->kernels;
    engine->rows(*call, call->rows, call->size, call->is_bf16 ? k.gated_norm_bf16 : k.gated_norm_float);
}
