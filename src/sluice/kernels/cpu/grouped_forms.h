// How packed weights in groups (`packed_groups.h`) become bytes and scales: 32 inputs of 32 outputs at a time.

// What a product needs to know of the bytes and scales of a type.
template <int GROUP_, int IN_SHORT_, bool IS_SIGNED_, int ZERO_, bool HAS_MINIMUMS_>
struct GroupKind {
    static constexpr int GROUP = GROUP_;          // inputs with one scale
    static constexpr int IN_SHORT = IN_SHORT_;    // products of four inputs that can be added in 16 bits
    static constexpr bool IS_SIGNED = IS_SIGNED_, HAS_MINIMUMS = HAS_MINIMUMS_;
    static constexpr int ZERO = IS_SIGNED ? SIGNED_ZERO : ZERO_;    // the byte that stands for zero
};

constexpr int MXFP4_ZERO = 12;    // its numbers are few enough to be moved above zero
constexpr int8_t MXFP4_MOVED[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <class Type>
constexpr bool IS_IQ4 = Type::TYPE == TYPE_IQ4_NL || Type::TYPE == TYPE_IQ4_XS;
template <class Type>
constexpr bool IS_MXFP4 = Type::TYPE == TYPE_MXFP4;

// Two products of a number below 2^b with 127 stay below 2^(b + 8), so 2^(7 - b) pairs of them fit.
template <class Type>
using KindOf = GroupKind<Type::GROUP, IS_MXFP4<Type> ? 4 : Type::BITS < 5 ? 8 : Type::BITS == 5 ? 4 : Type::BITS == 6 ? 2 : 1,
                         Type::BITS == 8 || IS_IQ4<Type>, IS_MXFP4<Type> ? MXFP4_ZERO : Type::ZERO, Type::HAS_MINIMUMS>;

INL Codes load_codes(const uint8_t* p) {
    Codes codes;
    std::memcpy(&codes, p, sizeof codes);
    return codes;
}

typedef uint16_t CodePairs __attribute__((vector_size(16)));
INL Codes moved(Codes x, int left) {
    const auto pairs = reinterpret_cast<CodePairs>(x);
    return reinterpret_cast<Codes>(left > 0 ? pairs << left : pairs >> -left);
}

INL F load_floats(const float* p) { return load(p); }    // inside classes `load` is their own

// Reads packed weights part by part, from the beginning of a record.
template <class Type>
class PackedSource {
public:
    using Kind = KindOf<Type>;
    using Layout = Packed<Type>;

    explicit PackedSource(const uint8_t* at) : at(at) {}

    __attribute__((always_inline)) void begin() {
        if constexpr (Layout::UNITS > 0) {
            if (part == 0) {
                for (int i = 0; i < Layout::UNITS / 32; i++) {
                    units[i] = load_float16(reinterpret_cast<const uint16_t*>(at) + 16 * i);
                }
                at += Layout::UNITS;
            }
        }
    }

    // The bytes of four inputs, of outputs 0 to 15 and of outputs 16 to 31. `first` is a multiple of what a word of the
    // high plane has, so that the shifts depend on `next` alone, and are constants.
    __attribute__((always_inline)) void load(int first, int next, Bytes* both) const {
        const int quad = first + next;
        if constexpr (Type::BITS == 8) {
            const auto* p = reinterpret_cast<const int8_t*>(at) + 128 * quad;
            __builtin_prefetch(p + PACKED_AHEAD);
            __builtin_prefetch(p + 64 + PACKED_AHEAD);
            both[0] = load_bytes(p), both[1] = load_bytes(p + 64);
            return;
        }
        __builtin_prefetch(at + 64 * quad + PACKED_AHEAD);
        load_nibbles(at + 64 * quad, both);
        const auto* high = reinterpret_cast<const int8_t*>(at + Layout::LOW);
        if constexpr (Type::BITS == 5) {
            const Bytes bits = load_bytes(high + 16 * first + 64 * (next / 4));
            UNROLLED for (int n = 0; n < 2; n++) both[n] = joined(both[n], bits, 4 - 2 * (next % 4) - n, 0x10);
        } else if constexpr (Type::BITS == 6) {
            const Bytes bits = load_bytes(high + 32 * first + 64 * (next / 2));
            UNROLLED for (int n = 0; n < 2; n++) both[n] = joined(both[n], bits, 4 - 4 * (next % 2) - 2 * n, 0x30);
        } else if constexpr (IS_IQ4<Type> || IS_MXFP4<Type>) {
            UNROLLED for (int n = 0; n < 2; n++) both[n] = looked_up(both[n], IS_MXFP4<Type> ? MXFP4_MOVED : IQ4_VALUES);
        }
    }

    __attribute__((always_inline)) void scales(int group, F* scale, F* minimum) const {
        const uint8_t* p = at + Layout::LOW + Layout::HIGH;
        if constexpr (Layout::FORM == ScaleForm::HALVES) {
            const auto* halves = reinterpret_cast<const uint16_t*>(p);
            UNROLLED for (int n = 0; n < 2; n++) {
                scale[n] = load_float16(halves + 16 * n);
                if constexpr (Type::HAS_MINIMUMS) minimum[n] = load_float16(halves + PACKED_BLOCK + 16 * n);
            }
        } else if constexpr (Layout::FORM == ScaleForm::K_CODES) {
            const Codes high = load_codes(p + PACKED_BLOCK);
            UNROLLED for (int n = 0; n < 2; n++) {
                const Codes low = load_codes(p + 16 * n);
                const Codes first = (low & 15) | (moved(high, 4 - 4 * n) & 0x30);
                const Codes second = (moved(low, -4) & 15) | (moved(high, 2 - 4 * n) & 0x30);
                scale[n] = mul(from_codes(first), units[n]);
                minimum[n] = mul(from_codes(second), sub(set(0.0f), units[2 + n]));
            }
        } else if constexpr (Layout::FORM == ScaleForm::BYTE_CODES) {
            UNROLLED for (int n = 0; n < 2; n++) {
                const Codes both = load_codes(p + PACKED_BLOCK * group + 16 * n);
                scale[n] = mul(from_codes(both & 15), units[n]);
                minimum[n] = mul(from_codes(moved(both, -4) & 15), sub(set(0.0f), units[2 + n]));
            }
        } else if constexpr (Layout::FORM == ScaleForm::SIGNED_CODES) {
            UNROLLED for (int n = 0; n < 2; n++) {
                scale[n] = mul(from_signed_codes(load_codes(p + PACKED_BLOCK * group + 16 * n)), units[n]);
            }
        } else {
            UNROLLED for (int n = 0; n < 2; n++) scale[n] = power_of_two(from_codes(load_codes(p + 16 * n)));
        }
    }

    __attribute__((always_inline)) void end() {
        at += Layout::PART_BYTES;
        if (++part == Layout::PARTS) part = 0;
    }

private:
    // 2^(e - 128), in two steps: the smallest have no exponent of their own.
    __attribute__((always_inline)) F power_of_two(F e) const {
        const F n = sub(e, set(128.0f)), half = round(mul(n, set(0.5f)));
        return times_pow2(times_pow2(set(1.0f), half), sub(n, half));
    }

    const uint8_t* at;
    int part = 0;
    F units[4];
};

// Reads what `unpack` wrote.
template <class Kind_>
class UnpackedSource {
public:
    using Kind = Kind_;

    UnpackedSource(const uint8_t* bytes, const float* scales) : bytes(bytes), at(scales) {}

    __attribute__((always_inline)) void begin() {}
    __attribute__((always_inline)) void load(int first, int next, Bytes* both) const {
        const auto* p = reinterpret_cast<const int8_t*>(bytes) + 128 * (first + next);
        both[0] = load_bytes(p), both[1] = load_bytes(p + 64);
    }
    __attribute__((always_inline)) void scales(int group, F* scale, F* minimum) const {
        UNROLLED for (int n = 0; n < 2; n++) {
            const float* p = at + PACKED_BLOCK * group + 16 * n;
            scale[n] = load_floats(p);
            if constexpr (Kind::HAS_MINIMUMS) minimum[n] = load_floats(p + GROUPED_SCALES);
        }
    }
    __attribute__((always_inline)) void end() {
        bytes += PART * PACKED_BLOCK;
        at += PART / Kind::GROUP * PACKED_BLOCK;
    }

private:
    const uint8_t* bytes;
    const float* at;
};
