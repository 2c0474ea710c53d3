// The instruction sets that this processor and its operating system support.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

// Levels in the order of speed, then those for tests: emulated AMX tiles beside the lanes of another level. The numbers
// are those of `library.py`.
enum Level { SCALAR, AVX2, AVX512, AVX512_VNNI, AVX512_BF16, AMX, SCALAR_TILES, AVX512_TILES };

#if defined(__x86_64__)
struct CpuId {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    CpuId(uint32_t leaf, uint32_t sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};

// The register states that the system saves (XCR0).
inline uint64_t saved_states() {
    if (!(CpuId(1, 0).c >> 27 & 1)) return 0;
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Linux grants AMX's tiles to a process that asks for them.
inline bool may_use_tiles() {
#if defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

inline bool has(Level level) {
    const CpuId one(1, 0), seven(7, 0), more(7, 1);
    const uint64_t saved = saved_states();
    const auto bit = [](uint32_t word, int i) { return (word >> i & 1) != 0; };
    const bool avx2 = bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5) && (saved & 0x6) == 0x6;
    const bool avx512 = avx2 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31) &&
                        (saved & 0xe6) == 0xe6;
    const bool vnni = avx512 && bit(seven.c, 11);
    const bool bf16 = vnni && bit(more.a, 5);
    switch (level) {
        case AVX2: return avx2;
        case AVX512: return avx512;
        case AVX512_VNNI: return vnni;
        case AVX512_BF16: return bf16;
        case AVX512_TILES: return bf16;
        case AMX:
            return bf16 && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25) && (saved & 0x60000) == 0x60000 && may_use_tiles();
        case SCALAR: return true;
        case SCALAR_TILES: return true;
    }
    return false;
}
#else
inline bool has(Level level) { return level == SCALAR || level == SCALAR_TILES; }
#endif
