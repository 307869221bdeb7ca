// In front of every element-wise function, for the system's C++ compiler: the words of CUDA that such a function may use.
#include <limits>
// GCC's special functions, which no device has, are a third of the time that such a source takes.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>
// std::min and std::max; GCC has them in a part by itself.
#if __has_include(<bits/stl_algobase.h>)
#include <bits/stl_algobase.h>
#else
#include <algorithm>
#endif

// A source that asks which compiler this is gets NVRTC's answer.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __device__
#define __host__
#define __global__
#define __constant__ static const
#define __forceinline__ inline
#define __restrict__ __restrict
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
#define POS_INFINITY INFINITY
#define NEG_INFINITY (-INFINITY)

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct tcuda_index {
    unsigned x, y, z;
};
static thread_local tcuda_index blockIdx, threadIdx, blockDim = {256, 1, 1}, gridDim;

template <typename To, typename From> inline To tcuda_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float v) { return tcuda_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return tcuda_bits<unsigned>(v); }
inline float __int_as_float(int v) { return tcuda_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return tcuda_bits<float>(v); }
inline long long __double_as_longlong(double v) { return tcuda_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return tcuda_bits<double>(v); }

// Fast forms are the usual ones here.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
// What is left of a whole turn is exact, and so is what it lacks to a half and to a quarter: no angle that is computed with is rounded but
// by its factor.
inline double tcuda_eighth(double part, bool cosine) {
    return (part <= 0.25) == cosine ? cos(M_PI * (cosine ? part : 0.5 - part)) : sin(M_PI * (cosine ? 0.5 - part : part));
}
inline double sinpi(double x) {
    const double part = fabs(remainder(x, 2.0));
    return copysign(tcuda_eighth(part > 0.5 ? 1.0 - part : part, false), part == 1.0 ? x : remainder(x, 2.0));
}
inline double cospi(double x) {
    const double part = fabs(remainder(x, 2.0));
    return part > 0.5 ? -tcuda_eighth(1.0 - part, true) : tcuda_eighth(part, true);
}
inline float sinpif(float x) { return (float)sinpi((double)x); }
inline float cospif(float x) { return (float)cospi((double)x); }
inline float normcdff(float x) { return (float)(0.5 * erfc(-M_SQRT1_2 * x)); }
inline double normcdf(double x) { return 0.5 * erfc(-M_SQRT1_2 * x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)(((unsigned long long)x * y) >> 32); }

// As CUDA has them at global scope.
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline double min(float x, double y) { return fmin(x, y); }
inline double max(float x, double y) { return fmax(x, y); }
inline double min(double x, float y) { return fmin(x, y); }
inline double max(double x, float y) { return fmax(x, y); }
#define TCUDA_LEAST(T) \
    inline T min(T x, T y) { return y < x ? y : x; } \
    inline T max(T x, T y) { return x < y ? y : x; }
TCUDA_LEAST(int)
TCUDA_LEAST(unsigned)
TCUDA_LEAST(long)
TCUDA_LEAST(unsigned long)
TCUDA_LEAST(long long)
TCUDA_LEAST(unsigned long long)
using std::abs;

namespace tcuda {
inline float from_half(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    const uint32_t value = magnitude < 0x400 ? tcuda_bits<uint32_t>((float)magnitude / 16777216.0f)
                         : magnitude < 0x7c00 ? (magnitude << 13) + 0x38000000
                                              : 0x7f800000 | (magnitude & 0x3ff) << 13;
    return tcuda_bits<float>(sign | value);
}
// To the nearest, ties to even; every NaN is the hardware's.
inline uint16_t to_half(float value) {
    const uint32_t bits = tcuda_bits<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000)
        return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
    return (uint16_t)(sign | (uint32_t)rintf(fabsf(value) * 16777216.0f));
}
inline float from_bfloat(uint16_t bits) { return tcuda_bits<float>((uint32_t)bits << 16); }
inline uint16_t to_bfloat(float value) {
    const uint32_t bits = tcuda_bits<uint32_t>(value);
    return value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
}

// The kernel is a function, and another one calls it for every thread: element-wise functions have no more to do with each other.
#define TCUDA_KERNEL(Arguments) \
    static void tcuda_jit(const Arguments &args); \
    extern "C" __attribute__((visibility("default"))) void tcuda_jit_run(const Arguments *args, unsigned blocks, unsigned threads) { \
        gridDim = {blocks, 1, 1}; \
        for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) \
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) \
                tcuda_jit(*args); \
    } \
    static void tcuda_jit(const Arguments &args)
