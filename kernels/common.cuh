// What the families share: element types, division by known sizes, the half types.
#pragma once

#include <stdint.h>

#define MAX_DIMS 25
#define THREADS 256

// Element types, in the order of `Element` in src/runtime/kernels/element.rs.
enum Type : uint32_t { BOOL, U8, I8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64, C64, C128 };

// Division by a size known to the host: n / size = (high word of n * magic + n) >> shift, for n below 2^31.
struct Divider {
    uint32_t size, magic, shift;
};

// (n / size.size) for n below 2^31.
__device__ __forceinline__ uint32_t quotient(uint32_t n, Divider size) { return (__umulhi(n, size.magic) + n) >> size.shift; }

struct Half {
    uint16_t bits;
};
struct BFloat {
    uint16_t bits;
};

__device__ __forceinline__ float widen(Half h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
    return f;
}
__device__ __forceinline__ float widen(BFloat b) { return __uint_as_float((uint32_t)b.bits << 16); }

__device__ __forceinline__ Half narrow_half(float f) {
    Half h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
// To the nearest, ties to even; a NaN becomes the quiet one.
__device__ __forceinline__ BFloat narrow_bfloat(float f) {
    const uint32_t bits = __float_as_uint(f);
    if (f != f) return BFloat{0x7fff};
    return BFloat{(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// N elements side by side, moved as one where the hardware can.
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
    T at[N];
};
