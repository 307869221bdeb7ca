// Exponential, Cauchy, geometric: transforms of one uniform number each. With floats torch takes the fast intrinsics.

#include "random.cuh"

// numbers: -1 / lambda, divided in the type of the computation.
struct Exponential {
    using Value = float;
    static constexpr int COUNT = 4, PAIR = 1;
    float scale;

    __device__ __forceinline__ explicit Exponential(const Random &random) : scale((float)number(random, 0)) {}

    // A u of 1 would give 0, which an exponential never is.
    __device__ __forceinline__ void make(float (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const float u = tcuda::philox_uniform(words[at]);
        values[0] = __fmul_rn(scale, u >= 1.0f - 0x1p-24f ? -0x1p-24f : fast_log(u));
    }
};

struct ExponentialDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 1;
    double scale;

    __device__ __forceinline__ explicit ExponentialDouble(const Random &random) : scale(number(random, 0)) {}

    __device__ __forceinline__ void make(double (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const double u = tcuda::philox_uniform_double(words[2 * at], words[2 * at + 1]);
        values[0] = __dmul_rn(scale, u >= 1.0 - 0x1p-53 ? -0x1p-53 : log_normal_number(u));
    }
};

// numbers: median, sigma.
struct Cauchy {
    using Value = float;
    static constexpr int COUNT = 4, PAIR = 1;
    float median, sigma;

    __device__ __forceinline__ explicit Cauchy(const Random &random) : median((float)number(random, 0)), sigma((float)number(random, 1)) {}

    // Kept off 0 and 1, where the tangent has its poles.
    __device__ __forceinline__ void make(float (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        float u = tcuda::philox_uniform(words[at]);
        u = u > 1.0f - 0x1p-23f ? 1.0f - 0x1p-23f : u;
        u = u < 0x1p-23f ? 0x1p-23f : u;
        values[0] = __fmaf_rn(sigma, __tanf(__fmul_rn(3.14159274f, __fsub_rn(u, 0.5f))), median);
    }
};

struct CauchyDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 1;
    double median, sigma;

    __device__ __forceinline__ explicit CauchyDouble(const Random &random) : median(number(random, 0)), sigma(number(random, 1)) {}

    __device__ __forceinline__ void make(double (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const double u = tcuda::philox_uniform_double(words[2 * at], words[2 * at + 1]);
        values[0] = __fma_rn(sigma, tangent(__dmul_rn(3.141592653589793, __dsub_rn(u, 0.5))), median);
    }
};

// numbers: log(1 - p) and its reciprocal; for floats p alone.
struct Geometric {
    using Value = float;
    static constexpr int COUNT = 4, PAIR = 1;
    float divisor, inverse;

    __device__ __forceinline__ explicit Geometric(const Random &random)
        : divisor(__logf(__fadd_rn(1.0f, -(float)number(random, 0)))), inverse(__frcp_rn(divisor)) {}

    // The quotient rounded to the nearest: two corrections by its exact rest. A divisor of zero or infinity (p that 1 - p does not feel)
    // has none, and its quotient is right at once.
    __device__ __forceinline__ void make(float (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const float dividend = fast_log(tcuda::philox_uniform(words[at]));
        const float first = __fmul_rn(dividend, inverse);
        float quotient = __fmaf_rn(__fmaf_rn(-divisor, first, dividend), inverse, first);
        quotient = __fmaf_rn(__fmaf_rn(-divisor, quotient, dividend), inverse, quotient);
        values[0] = ceilf(quotient != quotient ? first : quotient);
    }
};

struct GeometricDouble {
    using Value = double;
    static constexpr int COUNT = 2, PAIR = 1;
    double divisor, inverse;

    __device__ __forceinline__ explicit GeometricDouble(const Random &random) : divisor(number(random, 0)), inverse(number(random, 1)) {}

    __device__ __forceinline__ void make(double (&values)[1], const tcuda::philox_word (&words)[4], int at) const {
        const double dividend = log_normal_number(tcuda::philox_uniform_double(words[2 * at], words[2 * at + 1]));
        const double first = __dmul_rn(dividend, inverse);
        double quotient = __fma_rn(__fma_rn(-divisor, first, dividend), inverse, first);
        quotient = __fma_rn(__fma_rn(-divisor, quotient, dividend), inverse, quotient);
        values[0] = ceil(quotient != quotient ? first : quotient);
    }
};

#define FLOATS(name, D, Double) \
    FLAT(name##_f32, float, 4, D) \
    FLAT(name##_f16, Half, 16, D) \
    FLAT(name##_bf16, BFloat, 16, D) \
    FLAT(name##_f64, double, 2, Double) \
    STRIDED(name##_strided, D) \
    STRIDED(name##_strided_f64, Double)

FLOATS(tcuda_exponential, Exponential, ExponentialDouble)
FLOATS(tcuda_cauchy, Cauchy, CauchyDouble)
FLOATS(tcuda_geometric, Geometric, GeometricDouble)
FLAT(tcuda_geometric_u8, uint8_t, 8, Geometric)
FLAT(tcuda_geometric_i8, int8_t, 8, Geometric)
FLAT(tcuda_geometric_i16, int16_t, 8, Geometric)
FLAT(tcuda_geometric_i32, int32_t, 4, Geometric)
FLAT(tcuda_geometric_i64, int64_t, 2, Geometric)
