// The kernels of every level, each compiled with its target options: nearly all of the time of a build.

// GCC 12 warns about the undefined operands of its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "level_kernels.h"
#include "numbers.h"
#include "packed_groups.h"
#include "tiles.h"

namespace {

// Sixteen bytes, in any level.
typedef uint8_t Codes __attribute__((vector_size(16)));

#define UNROLLED_QUADS    // the reference is slow anyway
namespace scalar {
#include "lanes_scalar.h"
#include "bytes_scalar.h"
#include "level.h"
const Kernels EMULATED_TILES = kernels<Bf16BesideTiles, EmulatedTiles>();
}    // namespace scalar
#undef UNROLLED_QUADS
#define UNROLLED_QUADS UNROLLED

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#include "lanes_avx2.h"
#include "bytes_avx2.h"
#include "level.h"
}    // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
#include "lanes_avx512.h"
#include "bytes_avx512.h"
#include "level.h"
}    // namespace avx512
#pragma GCC pop_options

#define SLUICE_VNNI
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace avx512_vnni {
#include "lanes_avx512.h"
#include "bytes_avx512.h"
#include "level.h"
}    // namespace avx512_vnni
#pragma GCC pop_options

#define SLUICE_BF16_DOT
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
namespace avx512_bf16 {
#include "lanes_avx512.h"
#include "bytes_avx512.h"
#include "level.h"
const Kernels EMULATED_TILES = kernels<Bf16BesideTiles, EmulatedTiles>();
const Kernels AMX_TILES = kernels<Bf16BesideTiles, AmxTiles>();
}    // namespace avx512_bf16
#pragma GCC pop_options
#undef SLUICE_BF16_DOT
#undef SLUICE_VNNI
#endif

}    // namespace

const Kernels* kernels_of(Level level) {
    switch (level) {
        case SCALAR: return &scalar::KERNELS;
        case SCALAR_TILES: return &scalar::EMULATED_TILES;
#if defined(__x86_64__)
        case AVX2: return &avx2::KERNELS;
        case AVX512: return &avx512::KERNELS;
        case AVX512_VNNI: return &avx512_vnni::KERNELS;
        case AVX512_BF16: return &avx512_bf16::KERNELS;
        case AVX512_TILES: return &avx512_bf16::EMULATED_TILES;
        case AMX: return &avx512_bf16::AMX_TILES;
#endif
        default: return nullptr;
    }
}
