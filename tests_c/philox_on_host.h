/* tcuda/philox.cuh for a host's compiler, with what nvcc brings. As a system's header, because hosts know no `#pragma unroll`. */

#ifndef TCUDA_PHILOX_ON_HOST_H
#define TCUDA_PHILOX_ON_HOST_H
#pragma GCC system_header

#include <cmath>

#define __host__
#define __device__
#define __forceinline__ inline
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline double __dsqrt_rn(double a) { return std::sqrt(a); }
static inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
static inline double __ull2double_rn(unsigned long long a) { return static_cast<double>(a); }
static inline void host_sincosf(float a, float *sine, float *cosine)
{
    *sine = std::sin(a);
    *cosine = std::cos(a);
}
static inline void host_sincospi(double a, double *sine, double *cosine)
{
    *sine = std::sin(std::acos(-1.0) * a);
    *cosine = std::cos(std::acos(-1.0) * a);
}
// Names that some C libraries have too.
#define __sincosf host_sincosf
#define sincospi host_sincospi
#include "tcuda/philox.cuh"

#endif
