// Integers of a range, with torch's modulo: base + word % range, of words of 32 or of 64 bits.

#include "random.cuh"

// numbers: range, base, the reciprocal of the range: 2^32 or 2^64 by it, rounded down. A quotient by it is right or one too small.
template <typename W> struct Integers;

// Ranges below 2^31.
template <> struct Integers<uint32_t> {
    using Value = int64_t;
    static constexpr int COUNT = 4, PAIR = 1;
    uint32_t range, reciprocal;
    uint64_t base;

    __device__ __forceinline__ explicit Integers(const Random &random)
        : range((uint32_t)random.numbers[0]), reciprocal((uint32_t)random.numbers[2]), base(random.numbers[1]) {}

    __device__ __forceinline__ void make(int64_t (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const uint32_t rest = words[at] - __umulhi(words[at], reciprocal) * range;
        values[0] = (int64_t)(min(rest, rest - range) + base);
    }
};

// A range of 0 means 2^64.
template <> struct Integers<uint64_t> {
    using Value = int64_t;
    static constexpr int COUNT = 2, PAIR = 1;
    uint64_t range, base, reciprocal;

    __device__ __forceinline__ explicit Integers(const Random &random)
        : range(random.numbers[0]), base(random.numbers[1]), reciprocal(random.numbers[2]) {}

    __device__ __forceinline__ void make(int64_t (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const uint64_t word = (uint64_t)words[2 * at] << 32 | words[2 * at + 1];
        uint64_t rest = word - __umul64hi(word, reciprocal) * range;
        rest = range != 0 && rest >= range ? rest - range : rest;
        values[0] = (int64_t)(rest + base);
    }
};

struct Bool {
    uint8_t value;
};
template <> struct Cast<Bool> {
    template <typename V> static __device__ __forceinline__ Bool cast(V value) { return Bool{(uint8_t)(value != 0)}; }
};

#define WORDS(name, W) \
    FLAT(name##_bool, Bool, 8, Integers<W>) \
    FLAT(name##_1, uint8_t, 8, Integers<W>) \
    FLAT(name##_2, uint16_t, 8, Integers<W>) \
    FLAT(name##_4, uint32_t, 4, Integers<W>) \
    FLAT(name##_8, uint64_t, 2, Integers<W>) \
    FLAT(name##_f16, Half, 8, Integers<W>) \
    FLAT(name##_bf16, BFloat, 8, Integers<W>) \
    FLAT(name##_f32, float, 4, Integers<W>) \
    FLAT(name##_f64, double, 2, Integers<W>) \
    STRIDED(name##_strided, Integers<W>)

WORDS(tcuda_integers_32, uint32_t)
WORDS(tcuda_integers_64, uint64_t)
