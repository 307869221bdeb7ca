// Uniform and Bernoulli.

#include "random.cuh"

// numbers: from; to - from, as computed in the element's type; the first word that becomes `to`, and how many do.
struct Uniform {
    using Value = float;
    static constexpr int COUNT = 4, PAIR = 1;
    float from, range;
    uint32_t last;

    __device__ __forceinline__ explicit Uniform(const Random &random)
        : from((float)number(random, 0)), range((float)number(random, 1)), last((uint32_t)(random.numbers[2] - 1)) {}

    // [from, to): what would be rounded to `to` becomes `from`. Here that is all words from the first one on.
    __device__ __forceinline__ void make(float (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const float value = __fmaf_rn(tcuda::philox_uniform(words[at]), range, from);
        values[0] = words[at] > last ? from : value;
    }
};

// The same where to - from was rounded up, so that the largest words pass `to`: they are left alone, as torch does.
struct UniformBand : Uniform {
    uint32_t length;

    __device__ __forceinline__ explicit UniformBand(const Random &random) : Uniform(random), length((uint32_t)random.numbers[3]) {}

    __device__ __forceinline__ void make(float (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const float value = __fmaf_rn(tcuda::philox_uniform(words[at]), range, from);
        values[0] = words[at] - last - 1 < length ? from : value;
    }
};

// numbers: from, to - from, to.
struct UniformDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 1;
    double from, to, range;

    __device__ __forceinline__ explicit UniformDouble(const Random &random)
        : from(number(random, 0)), to(number(random, 2)), range(number(random, 1)) {}

    __device__ __forceinline__ void make(double (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const double value = __fma_rn(tcuda::philox_uniform_double(words[2 * at], words[2 * at + 1]), range, from);
        values[0] = value == to ? from : value;
    }
};

FLAT(tcuda_uniform_f32, float, 4, Uniform)
FLAT(tcuda_uniform_f16, Half, 16, Uniform)
FLAT(tcuda_uniform_bf16, BFloat, 16, Uniform)
FLAT(tcuda_uniform_f64, double, 2, UniformDouble)
STRIDED(tcuda_uniform_strided, UniformBand)
STRIDED(tcuda_uniform_strided_f64, UniformDouble)

// numbers: the words below which it is a one (2^32: all), the bits of a one. W has the element's width.
template <typename W> struct Bernoulli {
    using Value = W;
    static constexpr int COUNT = 4, PAIR = 1;
    uint32_t last;
    W below;

    // A probability of 0 has no word below it.
    __device__ __forceinline__ explicit Bernoulli(const Random &random)
        : last((uint32_t)(random.numbers[0] - 1)), below(random.numbers[0] == 0 ? (W)0 : (W)random.numbers[1]) {}

    __device__ __forceinline__ void make(W (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        values[0] = words[at] > last ? (W)0 : below;
    }
};

// Of doubles: torch compares doubles.
struct BernoulliDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 1;
    double p;

    __device__ __forceinline__ explicit BernoulliDouble(const Random &random) : p(number(random, 0)) {}

    __device__ __forceinline__ void make(double (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        values[0] = tcuda::philox_uniform_double(words[2 * at], words[2 * at + 1]) < p ? 1.0 : 0.0;
    }
};

FLAT(tcuda_bernoulli_1, uint8_t, 16, Bernoulli<uint8_t>)
FLAT(tcuda_bernoulli_2, uint16_t, 16, Bernoulli<uint16_t>)
FLAT(tcuda_bernoulli_4, uint32_t, 4, Bernoulli<uint32_t>)
FLAT(tcuda_bernoulli_8, uint64_t, 2, Bernoulli<uint64_t>)
FLAT(tcuda_bernoulli_f64, double, 2, BernoulliDouble)
STRIDED(tcuda_bernoulli_strided, Bernoulli<uint64_t>)
STRIDED(tcuda_bernoulli_strided_f64, BernoulliDouble)
