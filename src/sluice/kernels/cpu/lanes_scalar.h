// Sixteen float lanes in plain C++: the slow, obvious reference for the other levels; emulated AMX tiles run on it.
struct F {
    float x[16];
};

template <class Op>
INL F each(Op op) {
    F r;
    for (int i = 0; i < 16; i++) r.x[i] = op(i);
    return r;
}

INL F set(float a) { return each([=](int) { return a; }); }
INL F load(const float* p) { return each([=](int i) { return p[i]; }); }
INL void store(float* p, F a) { std::memcpy(p, a.x, sizeof a.x); }
INL F add(F a, F b) { return each([=](int i) { return a.x[i] + b.x[i]; }); }
INL F sub(F a, F b) { return each([=](int i) { return a.x[i] - b.x[i]; }); }
INL F mul(F a, F b) { return each([=](int i) { return a.x[i] * b.x[i]; }); }
INL F div(F a, F b) { return each([=](int i) { return a.x[i] / b.x[i]; }); }
INL F fma(F a, F b, F c) { return each([=](int i) { return a.x[i] * b.x[i] + c.x[i]; }); }
INL F max(F a, F b) { return each([=](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
INL F min(F a, F b) { return each([=](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; }); }
INL F round(F a) { return each([=](int i) { return std::nearbyintf(a.x[i]); }); }
INL F times_pow2(F a, F n) { return each([=](int i) { return a.x[i] * std::exp2(n.x[i]); }); }
INL F zero_below(F a, F b, F limit) { return each([=](int i) { return b.x[i] < limit.x[i] ? 0.0f : a.x[i]; }); }
INL F keep_range(F a, int low, int high) {
    return each([=](int i) { return low <= i && i < high ? a.x[i] : NEG_INF; });
}
INL float hmax(F a) { return *std::max_element(a.x, a.x + 16); }
INL float hsum(F a) {
    float total = 0;
    for (float v : a.x) total += v;
    return total;
}
INL F load(const uint16_t* p) { return each([=](int i) { return widen(p[i]); }); }
INL F load_float16(const uint16_t* p) { return each([=](int i) { return from_float16(p[i]); }); }
// Lanes that are STRIDE apart, in each other's place.
template <int STRIDE>
INL F swapped(F a) {
    return each([=](int i) { return a.x[i ^ STRIDE]; });
}
INL F even(const uint16_t* p) { return each([=](int i) { return widen(p[2 * i]); }); }
INL F odd(const uint16_t* p) { return each([=](int i) { return widen(p[2 * i + 1]); }); }
INL void store(uint16_t* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = narrow(a.x[i]);
}

constexpr int MAX_ROWS = 4, LINEAR_ROWS = 1;
constexpr int vectors(int) { return 1; }
