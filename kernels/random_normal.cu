// Normal and log-normal.

#include "random.cuh"

// numbers: mean, deviation. Box and Muller's pairs, as cuRAND makes them.
struct Normal {
    using Value = float;
    static constexpr int COUNT = 4, PAIR = 2;
    float mean, deviation;

    __device__ __forceinline__ explicit Normal(const Random &random) : mean((float)number(random, 0)), deviation((float)number(random, 1)) {}

    __device__ __forceinline__ void make(float (&values)[2], const tcuda::philox_word (&words)[4], int at) const {
        constexpr float TURN = 0x1p-32f * 6.2831855f;
        const float radius = sqrt_number(__fmul_rn(-2.0f, log_normal_number(tcuda::philox_uniform(words[at]))));
        float sine, cosine;
        __sincosf(__fmaf_rn(__uint2float_rn(words[at + 1]), TURN, TURN / 2.0f), &sine, &cosine);
        values[0] = __fmaf_rn(__fmul_rn(sine, radius), deviation, mean);
        values[1] = __fmaf_rn(__fmul_rn(cosine, radius), deviation, mean);
    }
};

struct NormalDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 2;
    double mean, deviation;

    __device__ __forceinline__ explicit NormalDouble(const Random &random) : mean(number(random, 0)), deviation(number(random, 1)) {}

    __device__ __forceinline__ void make(double (&values)[2], const tcuda::philox_word (&words)[4], int) const {
        const double u = tcuda::philox_uniform_double(words[0], words[1]);
        const double v = __dmul_rn(2.0, tcuda::philox_uniform_double(words[2], words[3]));
        const double radius = sqrt_number(__dmul_rn(-2.0, log_normal_number(u)));
        double sine, cosine;
        sine_cosine_pi(v, sine, cosine);
        values[0] = __fma_rn(__dmul_rn(sine, radius), deviation, mean);
        values[1] = __fma_rn(__dmul_rn(cosine, radius), deviation, mean);
    }
};

struct LogNormal : Normal {
    using Normal::Normal;

    __device__ __forceinline__ void make(float (&values)[2], const tcuda::philox_word (&words)[4], int at) const {
        Normal::make(values, words, at);
        values[0] = __expf(values[0]);
        values[1] = __expf(values[1]);
    }
};

struct LogNormalDouble : NormalDouble {
    using NormalDouble::NormalDouble;

    __device__ __forceinline__ void make(double (&values)[2], const tcuda::philox_word (&words)[4], int at) const {
        NormalDouble::make(values, words, at);
        values[0] = exp(values[0]);
        values[1] = exp(values[1]);
    }
};

FLAT(tcuda_normal_f32, float, 8, Normal)
FLAT(tcuda_normal_f16, Half, 16, Normal)
FLAT(tcuda_normal_bf16, BFloat, 16, Normal)
FLAT(tcuda_normal_f64, double, 4, NormalDouble)
STRIDED(tcuda_normal_strided, Normal)
STRIDED(tcuda_normal_strided_f64, NormalDouble)

FLAT(tcuda_log_normal_f32, float, 8, LogNormal)
FLAT(tcuda_log_normal_f16, Half, 16, LogNormal)
FLAT(tcuda_log_normal_bf16, BFloat, 16, LogNormal)
FLAT(tcuda_log_normal_f64, double, 4, LogNormalDouble)
STRIDED(tcuda_log_normal_strided, LogNormal)
STRIDED(tcuda_log_normal_strided_f64, LogNormalDouble)
