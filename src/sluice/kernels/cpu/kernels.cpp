// The kernels behind a plain C interface: one binary for every x86-64, which chooses the level at run time.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <vector>

#include "abi.h"
#include "cpu.h"
#include "expert_rows.h"
#include "level_kernels.h"
#include "numbers.h"
#include "packed_groups.h"
#include "packing.h"
#include "plan.h"
#include "pool.h"
#include "state_work.h"

#include "crc32c.h"
#include "masks.h"
#include "read_parts.h"
#include "route.h"

namespace {

// With fewer elements the work ends before another thread could wake up.
constexpr int64_t ALONE = 16384;

}    // namespace

// A level's kernels and the threads that run them.
struct sluice_engine {
    sluice_engine(const Kernels& kernels, int threads) : kernels(kernels), pool(threads) {}

    // Divide the rows of a pointwise operation into runs of at least `least` rows, large enough to hand out.
    template <class Call>
    void rows(const Call& call, int count, int64_t row_elements, void (*work)(const Call&, int, int), int least = 1) {
        const std::lock_guard lock(pool.one_call);
        rows_locked(call, count, row_elements, work, least);
    }

    template <class Call>
    void rows_locked(const Call& call, int count, int64_t row_elements, void (*work)(const Call&, int, int), int least) {
        if (count * row_elements <= ALONE || pool.size() == 1) return work(call, 0, count);
        struct Context {
            const Call& call;
            void (*work)(const Call&, int, int);
            int count, step;
        } context{call, work, count, static_cast<int>(std::max<int64_t>(least, ALONE / 4 / row_elements))};
        pool.run((count + context.step - 1) / context.step, &context, [](void* p, int64_t item, int) {
            const auto& c = *static_cast<Context*>(p);
            const int from = static_cast<int>(item) * c.step;
            c.work(c.call, from, std::min(c.count, from + c.step));
        });
    }

    // Use all items from 0 to `count` - 1 with the thread that it runs on, on all threads if there are enough elements.
    template <class Use>
    void share(int64_t count, int64_t elements, const Use& use) {
        if (elements <= ALONE || pool.size() == 1) {
            for (int64_t item = 0; item < count; item++) use(item, 0);
            return;
        }
        pool.run(count, const_cast<Use*>(&use), [](void* p, int64_t item, int thread) { (*static_cast<Use*>(p))(item, thread); });
    }

    const Kernels& kernels;
    Pool pool;
    Plan plan;
    std::vector<float> wide;    // x of a linear layer, in float32
    std::vector<uint8_t> bytes;    // x of a linear layer, quantised, and the scales of its rows
    std::vector<float> scales;
    std::vector<int32_t> group_sums;
    Outliers outliers;
    ExpertBuffers experts;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int sluice_abi_version() { return ABI_VERSION; }

// The digest of the sources that this library was compiled from (`sources.py`); empty if the build did not set it.
#ifndef SLUICE_SOURCES
#define SLUICE_SOURCES ""
#endif
EXPORT const char* sluice_sources() { return SLUICE_SOURCES; }

EXPORT int sluice_has_level(int level) {
    return has(static_cast<Level>(level)) && kernels_of(static_cast<Level>(level));
}

// Null if the system gives no more threads.
EXPORT sluice_engine* sluice_engine_new(int level, int threads) {
    try {
        return new sluice_engine(*kernels_of(static_cast<Level>(level)), threads);
    } catch (const std::system_error&) {
        return nullptr;
    }
}

EXPORT void sluice_engine_free(sluice_engine* engine) { delete engine; }

EXPORT void sluice_attention(sluice_engine* engine, const AttentionCall* call) {
    const std::lock_guard lock(engine->pool.one_call);
    struct Context {
        sluice_engine& engine;
        const AttentionCall& call;
        int64_t buffer;
    } context{*engine, *call, 0};
    engine->plan.make(*call, engine->pool.size());
    context.buffer = engine->kernels.attend_buffer(engine->plan.max_rows, call->head_dim);
    engine->pool.run(engine->plan.items.size(), &context, [](void* p, int64_t item, int thread) {
        auto& c = *static_cast<Context*>(p);
        const auto attend = c.call.is_bf16 ? c.engine.kernels.attend_bf16 : c.engine.kernels.attend_float;
        attend(c.call, c.engine.plan, c.engine.plan.items[item], c.engine.pool.buffer(thread, c.buffer));
    });
}

EXPORT void sluice_norm(sluice_engine* engine, const NormCall* call) {
    const Kernels& k = engine->kernels;
    engine->rows(*call, call->rows, call->size, call->is_bf16 ? k.norm_bf16 : k.norm_float);
}

EXPORT void sluice_rotate_store(sluice_engine* engine, const RotateStoreCall* call) {
    const Kernels& k = engine->kernels;
    const int64_t heads = (call->q ? call->heads : 0) + 2 * call->kv_heads;
    const auto work = call->is_bf16 ? k.rotate_store_bf16 : k.rotate_store_float;
    // A page's group of tokens is written by one item, if there are enough groups for all threads.
    const int least = call->tokens >= 32 * engine->pool.size() ? 16 : 1;
    engine->rows(*call, call->tokens, heads * call->head_dim, work, least);
}

EXPORT void sluice_silu_mul(sluice_engine* engine, const SiluMulCall* call) {
    const Kernels& k = engine->kernels;
    engine->rows(*call, call->rows, call->size, call->is_bf16 ? k.silu_mul_bf16 : k.silu_mul_float);
}

EXPORT void sluice_mask_rows(sluice_engine* engine, const MaskCall* call) {
    const auto work = call->size == 2 ? mask_rows<uint16_t> : call->size == 4 ? mask_rows<uint32_t> : mask_rows<uint64_t>;
    engine->rows(*call, call->count, call->vocab, work);
}

EXPORT void sluice_route(sluice_engine* engine, const RouteCall* call) {
    engine->rows(*call, call->rows, 4 * static_cast<int64_t>(call->experts) * call->choices, route_rows);
}

EXPORT void sluice_bound_pages(sluice_engine* engine, const PageBoundsCall* call) {
    const Kernels& k = engine->kernels;
    const int64_t elements = 2 * static_cast<int64_t>(call->kv_heads) * call->head_dim;
    engine->rows(*call, call->pages, elements, call->is_bf16 ? k.bound_pages_bf16 : k.bound_pages_float);
}

EXPORT void sluice_pack_linear(const uint16_t* weight, int64_t out, int64_t in, uint16_t* packed) {
    pack_linear<2>(weight, out, in, packed);
}

// `weight` [out][in] signed. `packed` may be `weight` as above; `sums` are those of each output.
EXPORT void sluice_pack_int8(const int8_t* weight, int64_t out, int64_t in, int8_t* packed, int32_t* sums) {
    for (int64_t n = 0; n < out; n++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < in; k++) sum += weight[n * in + k];
        sums[n] = sum;
    }
    pack_linear<4>(weight, out, in, packed);
}

// `weight` [out][in / 2], the value of the even input in the lower four bits. `packed` may be `weight` as above.
EXPORT void sluice_pack_int4(const uint8_t* weight, int64_t out, int64_t in, uint8_t* packed) {
    pack_nibbles(weight, out, in, packed);
}

// The CRC-32C of what has the checksum `crc`, followed by `data`. `portable`: without the processor's instruction.
EXPORT uint32_t sluice_crc32c(uint32_t crc, const void* data, int64_t size, int portable) {
    return crc32c::of(crc, data, size, portable);
}

// Read parts of stored pages and check them. Uses no engine: any thread may call it beside others.
EXPORT int sluice_read_parts(ReadPartsCall* call) { return stored::read(*call); }

static void quantized_linear(sluice_engine* engine, const PackedLinearCall& linear) {
    const std::lock_guard lock(engine->pool.one_call);
    const int64_t stride = bytes_of_row(linear.in);
    engine->bytes.resize((linear.rows + 15) * stride);    // AMX reads whole tiles of sixteen rows
    engine->scales.resize(linear.rows);
    if (linear.group) engine->group_sums.resize(static_cast<int64_t>(linear.rows) * (linear.in / linear.group));
    const QuantizedCall call{linear, engine->bytes.data(), engine->scales.data(), engine->group_sums.data(),
                             stride};
    engine->rows_locked(call, linear.rows, linear.in, engine->kernels.quantize_rows, 1);
    const LinearItems items(linear, engine->pool.size());
    struct Context {
        sluice_engine& engine;
        const QuantizedCall& call;
        const LinearItems& items;
    } context{*engine, call, items};
    engine->pool.run(items.count(), &context, [](void* p, int64_t number, int thread) {
        const auto& c = *static_cast<Context*>(p);
        float* buffer = c.engine.pool.buffer(thread, 64 * PACKED_BLOCK);    // sums of 32 rows, twice
        const LinearItem item = c.items[number];
        for (int block = item.first_block; block < item.last_block; block++) {
            c.engine.kernels.quantized_linear(c.call, block, item.first_row, item.last_row, buffer);
        }
    });
}

EXPORT void sluice_packed_linear(sluice_engine* engine, const PackedLinearCall* asked) {
    if (asked->scales) return quantized_linear(engine, *asked);
    const std::lock_guard lock(engine->pool.one_call);
    PackedLinearCall call = *asked;
    if (engine->kernels.widens) {
        engine->wide.resize(static_cast<int64_t>(call.rows) * call.in);
        for (int64_t row = 0; row < call.rows; row++) {
            const auto* x = static_cast<const uint16_t*>(call.x) + row * call.x_stride;
            for (int64_t k = 0; k < call.in; k++) engine->wide[row * call.in + k] = widen(x[k]);
        }
        call.x = engine->wide.data(), call.x_stride = call.in;
    }
    const LinearItems items(call, engine->pool.size());
    struct Context {
        sluice_engine& engine;
        const PackedLinearCall& call;
        const LinearItems& items;
    } context{*engine, call, items};
    engine->pool.run(items.count(), &context, [](void* p, int64_t number, int thread) {
        const auto& c = *static_cast<Context*>(p);
        // Two buffers for sums of 32 rows, and copies of rows that do not fill a tile.
        float* buffer = c.engine.pool.buffer(thread, 32 * (2 * PACKED_BLOCK + static_cast<int64_t>(c.call.in) / 2));
        const LinearItem item = c.items[number];
        for (int block = item.first_block; block < item.last_block; block++) {
            c.engine.kernels.packed_linear(c.call, block, item.first_row, item.last_row, buffer);
        }
    });
}

#include "grouped_calls.h"
#include "expert_calls.h"
#include "lora_calls.h"
#include "state_calls.h"

// Execute calls in order, each as if it were made by itself.
EXPORT void sluice_all(sluice_engine* engine, const ListedCall* calls, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const void* call = calls[i].call;
        switch (calls[i].operation) {
            case ATTENTION: sluice_attention(engine, static_cast<const AttentionCall*>(call)); break;
            case NORM: sluice_norm(engine, static_cast<const NormCall*>(call)); break;
            case ROTATE_STORE: sluice_rotate_store(engine, static_cast<const RotateStoreCall*>(call)); break;
            case SILU_MUL: sluice_silu_mul(engine, static_cast<const SiluMulCall*>(call)); break;
            case PACKED_LINEAR: sluice_packed_linear(engine, static_cast<const PackedLinearCall*>(call)); break;
            case GROUPED_LINEAR: sluice_grouped_linear(engine, static_cast<const GroupedLinearCall*>(call)); break;
            case ROUTE: sluice_route(engine, static_cast<const RouteCall*>(call)); break;
            case EXPERTS: sluice_experts(engine, static_cast<const ExpertsCall*>(call)); break;
            case LORA: sluice_lora(engine, static_cast<const LoraCall*>(call)); break;
            case CAUSAL_CONV: sluice_causal_conv(engine, static_cast<const CausalConvCall*>(call)); break;
            case RECURRENCE: sluice_recurrence(engine, static_cast<const RecurrenceCall*>(call)); break;
            case GATED_NORM: sluice_gated_norm(engine, static_cast<const GatedNormCall*>(call)); break;
            case EMBED_ROWS: sluice_embed_rows(engine, static_cast<const EmbedRowsCall*>(call)); break;
        }
    }
}
