// In front of every element-wise function, for NVRTC. No header of CUDA is there: what is needed stands here.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
#define POS_INFINITY INFINITY
#define NEG_INFINITY (-INFINITY)

// The names of C++ for what CUDA has at global scope.
namespace std {
using ::abs; using ::fabs; using ::exp; using ::exp2; using ::expm1; using ::log; using ::log2; using ::log10; using ::log1p;
using ::sqrt; using ::cbrt; using ::pow; using ::hypot; using ::sin; using ::cos; using ::tan; using ::asin; using ::acos;
using ::atan; using ::atan2; using ::sinh; using ::cosh; using ::tanh; using ::asinh; using ::acosh; using ::atanh; using ::ceil;
using ::floor; using ::trunc; using ::round; using ::rint; using ::nearbyint; using ::fmod; using ::remainder; using ::fmin;
using ::fmax; using ::fma; using ::fdim; using ::copysign; using ::ldexp; using ::frexp; using ::modf; using ::erf; using ::erfc;
using ::tgamma; using ::lgamma; using ::isnan; using ::isinf; using ::isfinite; using ::signbit;
template <typename T> const T &max(const T &x, const T &y) { return x < y ? y : x; }
template <typename T> const T &min(const T &x, const T &y) { return y < x ? y : x; }
}

namespace tcuda {
inline float from_half(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
inline uint16_t to_half(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
inline float from_bfloat(uint16_t bits) { return __int_as_float((int)bits << 16); }
inline uint16_t to_bfloat(float value) {
#if __CUDA_ARCH__ >= 800
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    const uint32_t bits = __float_as_uint(value);
    return value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
}

#define TCUDA_KERNEL(Arguments) extern "C" __global__ void __launch_bounds__(256) tcuda_jit(const Arguments args)
