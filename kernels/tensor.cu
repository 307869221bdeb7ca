// Tensor family: fill, and copy with any strides and any conversion.
//
// Every kernel takes one struct by value, the same as `Walk` in src/runtime/kernels/tensor.rs, whose twin does in Rust what is
// done here. Conversions are written with intrinsics, not casts, so that what C++ leaves undefined (a float that its integer
// cannot hold) is the same on every device and in the twin.

#include "common.cuh"

// Elements of a thread in the strided kernels: enough loads in flight to hide the memory's latency.
#define UNROLL 4

struct Walk {
    char *to;
    const char *from;
    uint64_t value[2];
    uint32_t count, dims;
    uint32_t to_type, from_type;
    // Bytes; dimension 0 is the innermost.
    int64_t to_strides[MAX_DIMS], from_strides[MAX_DIMS];
    Divider sizes[MAX_DIMS];
};

template <typename T> struct alignas(2 * sizeof(T)) Complex {
    T real, imag;
};

struct alignas(16) Word16 {
    uint64_t low, high;
};

struct Offsets {
    int64_t to, from;
};

__device__ __forceinline__ Offsets offsets(const Walk &walk, uint32_t index) {
    Offsets at = {0, 0};
    #pragma unroll 1
    for (uint32_t dim = 0; dim < walk.dims; ++dim) {
        const Divider size = walk.sizes[dim];
        const uint32_t next = quotient(index, size);
        const int64_t rest = index - next * size.size;
        at.to += rest * walk.to_strides[dim];
        at.from += rest * walk.from_strides[dim];
        index = next;
    }
    return at;
}

// ---- fill and copy of one type: only the width matters

template <typename Word> __device__ __forceinline__ void fill(const Walk &walk, Word value) {
    uint32_t index = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i, index += THREADS) {
        if (index < walk.count) *(Word *)(walk.to + offsets(walk, index).to) = value;
    }
}

template <typename Word> __device__ __forceinline__ void copy(const Walk &walk) {
    uint32_t index = blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    Word words[UNROLL];
    int64_t to[UNROLL];
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (index + i * THREADS < walk.count) {
            const Offsets at = offsets(walk, index + i * THREADS);
            to[i] = at.to;
            words[i] = *(const Word *)(walk.from + at.from);
        }
    }
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (index + i * THREADS < walk.count) *(Word *)(walk.to + to[i]) = words[i];
    }
}

extern "C" {
__global__ void __launch_bounds__(THREADS) tcuda_fill_1(const Walk walk) { fill(walk, (uint8_t)walk.value[0]); }
__global__ void __launch_bounds__(THREADS) tcuda_fill_2(const Walk walk) { fill(walk, (uint16_t)walk.value[0]); }
__global__ void __launch_bounds__(THREADS) tcuda_fill_4(const Walk walk) { fill(walk, (uint32_t)walk.value[0]); }
__global__ void __launch_bounds__(THREADS) tcuda_fill_8(const Walk walk) { fill(walk, walk.value[0]); }
__global__ void __launch_bounds__(THREADS) tcuda_fill_16(const Walk walk) { fill(walk, Word16{walk.value[0], walk.value[1]}); }

__global__ void __launch_bounds__(THREADS) tcuda_copy_1(const Walk walk) { copy<uint8_t>(walk); }
__global__ void __launch_bounds__(THREADS) tcuda_copy_2(const Walk walk) { copy<uint16_t>(walk); }
__global__ void __launch_bounds__(THREADS) tcuda_copy_4(const Walk walk) { copy<uint32_t>(walk); }
__global__ void __launch_bounds__(THREADS) tcuda_copy_8(const Walk walk) { copy<uint64_t>(walk); }
__global__ void __launch_bounds__(THREADS) tcuda_copy_16(const Walk walk) { copy<Word16>(walk); }
}

// ---- conversion: a source is loaded as one of six carriers that hold it exactly, and a carrier is stored as any type

// One carrier as each type. Real parts only: complex carriers come to these by way of `real`.
__device__ __forceinline__ int32_t as_i32(int64_t v) { return (int32_t)v; }
__device__ __forceinline__ int32_t as_i32(uint64_t v) { return (int32_t)v; }
__device__ __forceinline__ int32_t as_i32(float v) { return __float2int_rz(v); }
__device__ __forceinline__ int32_t as_i32(double v) { return __double2int_rz(v); }
__device__ __forceinline__ uint32_t as_u32(int64_t v) { return (uint32_t)v; }
__device__ __forceinline__ uint32_t as_u32(uint64_t v) { return (uint32_t)v; }
__device__ __forceinline__ uint32_t as_u32(float v) { return __float2uint_rz(v); }
__device__ __forceinline__ uint32_t as_u32(double v) { return __double2uint_rz(v); }
__device__ __forceinline__ int64_t as_i64(int64_t v) { return v; }
__device__ __forceinline__ int64_t as_i64(uint64_t v) { return (int64_t)v; }
__device__ __forceinline__ int64_t as_i64(float v) { return __float2ll_rz(v); }
__device__ __forceinline__ int64_t as_i64(double v) { return __double2ll_rz(v); }
__device__ __forceinline__ uint64_t as_u64(int64_t v) { return (uint64_t)v; }
__device__ __forceinline__ uint64_t as_u64(uint64_t v) { return v; }
__device__ __forceinline__ uint64_t as_u64(float v) { return __float2ull_rz(v); }
__device__ __forceinline__ uint64_t as_u64(double v) { return __double2ull_rz(v); }

template <typename T> __device__ __forceinline__ T real(T v) { return v; }
template <typename T> __device__ __forceinline__ T real(Complex<T> v) { return v.real; }
template <typename T> __device__ __forceinline__ T imag(T) { return 0; }
template <typename T> __device__ __forceinline__ T imag(Complex<T> v) { return v.imag; }

template <typename T, int N, typename Carrier, typename F> __device__ __forceinline__ void load_as(const char *from, Carrier *carriers, F one) {
    const Pack<T, N> pack = *(const Pack<T, N> *)from;
    #pragma unroll
    for (int i = 0; i < N; ++i) carriers[i] = one(pack.at[i]);
}

template <typename T, int N, typename Carrier, typename F> __device__ __forceinline__ void store_as(char *to, const Carrier *carriers, F one) {
    Pack<T, N> pack;
    #pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = one(carriers[i]);
    *(Pack<T, N> *)to = pack;
}

template <int N, typename Carrier> __device__ __forceinline__ void store(uint32_t type, char *to, const Carrier *v) {
    using C = Carrier;
    switch (type) {
    case BOOL: return store_as<uint8_t, N>(to, v, [](C c) { return (uint8_t)(real(c) != 0 || imag(c) != 0); });
    // By way of 64 bits, as torch does, so that -1.0 becomes 255.
    case U8: return store_as<uint8_t, N>(to, v, [](C c) { return (uint8_t)as_i64(real(c)); });
    case I8: return store_as<int8_t, N>(to, v, [](C c) { return (int8_t)as_i32(real(c)); });
    case I16: return store_as<int16_t, N>(to, v, [](C c) { return (int16_t)as_i32(real(c)); });
    case U16: return store_as<uint16_t, N>(to, v, [](C c) { return (uint16_t)as_u32(real(c)); });
    case I32: return store_as<int32_t, N>(to, v, [](C c) { return as_i32(real(c)); });
    case U32: return store_as<uint32_t, N>(to, v, [](C c) { return as_u32(real(c)); });
    case I64: return store_as<int64_t, N>(to, v, [](C c) { return as_i64(real(c)); });
    case U64: return store_as<uint64_t, N>(to, v, [](C c) { return as_u64(real(c)); });
    // The half types by way of float, as torch does.
    case F16: return store_as<Half, N>(to, v, [](C c) { return narrow_half((float)real(c)); });
    case BF16: return store_as<BFloat, N>(to, v, [](C c) { return narrow_bfloat((float)real(c)); });
    case F32: return store_as<float, N>(to, v, [](C c) { return (float)real(c); });
    case F64: return store_as<double, N>(to, v, [](C c) { return (double)real(c); });
    case C64: return store_as<Complex<float>, N>(to, v, [](C c) { return Complex<float>{(float)real(c), (float)imag(c)}; });
    case C128: return store_as<Complex<double>, N>(to, v, [](C c) { return Complex<double>{(double)real(c), (double)imag(c)}; });
    }
}

template <int N> __device__ __forceinline__ void convert(const Walk &walk, char *to, const char *from) {
    switch (walk.from_type) {
    case U64: {
        uint64_t v[N];
        load_as<uint64_t, N>(from, v, [](uint64_t x) { return x; });
        return store<N>(walk.to_type, to, v);
    }
    case F64: {
        double v[N];
        load_as<double, N>(from, v, [](double x) { return x; });
        return store<N>(walk.to_type, to, v);
    }
    case C64: {
        Complex<float> v[N];
        load_as<Complex<float>, N>(from, v, [](Complex<float> x) { return x; });
        return store<N>(walk.to_type, to, v);
    }
    case C128: {
        Complex<double> v[N];
        load_as<Complex<double>, N>(from, v, [](Complex<double> x) { return x; });
        return store<N>(walk.to_type, to, v);
    }
    case F16:
    case BF16:
    case F32: {
        float v[N];
        switch (walk.from_type) {
        case F16: load_as<Half, N>(from, v, [](Half x) { return widen(x); }); break;
        case BF16: load_as<BFloat, N>(from, v, [](BFloat x) { return widen(x); }); break;
        default: load_as<float, N>(from, v, [](float x) { return x; }); break;
        }
        return store<N>(walk.to_type, to, v);
    }
    default: {
        int64_t v[N];
        switch (walk.from_type) {
        case BOOL: load_as<uint8_t, N>(from, v, [](uint8_t x) { return (int64_t)(x != 0); }); break;
        case U8: load_as<uint8_t, N>(from, v, [](uint8_t x) { return (int64_t)x; }); break;
        case I8: load_as<int8_t, N>(from, v, [](int8_t x) { return (int64_t)x; }); break;
        case I16: load_as<int16_t, N>(from, v, [](int16_t x) { return (int64_t)x; }); break;
        case U16: load_as<uint16_t, N>(from, v, [](uint16_t x) { return (int64_t)x; }); break;
        case I32: load_as<int32_t, N>(from, v, [](int32_t x) { return (int64_t)x; }); break;
        case U32: load_as<uint32_t, N>(from, v, [](uint32_t x) { return (int64_t)x; }); break;
        default: load_as<int64_t, N>(from, v, [](int64_t x) { return x; }); break;
        }
        return store<N>(walk.to_type, to, v);
    }
    }
}

extern "C" {
__global__ void __launch_bounds__(THREADS) tcuda_convert(const Walk walk) {
    const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= walk.count) return;
    const Offsets at = offsets(walk, index);
    convert<1>(walk, walk.to + at.to, walk.from + at.from);
}

// Both sides contiguous and aligned to four elements: dimension 0 is the whole of it.
__global__ void __launch_bounds__(THREADS) tcuda_convert_flat(const Walk walk) {
    const uint32_t index = 4 * (blockIdx.x * THREADS + threadIdx.x);
    if (index >= walk.count) return;
    char *to = walk.to + (int64_t)index * walk.to_strides[0];
    const char *from = walk.from + (int64_t)index * walk.from_strides[0];
    if (walk.count - index >= 4) return convert<4>(walk, to, from);
    for (uint32_t rest = walk.count - index; rest > 0; --rest, to += walk.to_strides[0], from += walk.from_strides[0])
        convert<1>(walk, to, from);
}
}
