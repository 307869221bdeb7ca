// What the families of random numbers share: which Philox block makes which element, and how elements are stored.
//
// The numbers are torch's. There, T threads run: thread t draws block after block of its own sequence, and value i of its block k is element
// (k * COUNT + i) * T + t. A row is T elements side by side. Here one thread does the work of V neighbouring threads of torch's for one
// k: it makes V blocks and stores V elements of each of COUNT rows side by side. Same bits, full bandwidth.
//
// Kernels take one `Random` by value, as in src/runtime/kernels/random.rs, where their twins are.
#pragma once

#include "../include/tcuda/philox.cuh"
#include "common.cuh"
#include "math.cuh"

// Threads of a block; torch's blocks are another matter.
#define RANDOM_THREADS 128

struct Random {
    char *out;
    tcuda::philox_state state;
    // Parameters of the distribution: doubles, or words.
    uint64_t numbers[4];
    // Elements; below 2^31.
    uint32_t count;
    // torch's threads.
    uint32_t threads;
    // Blocks of Philox that each of torch's threads draws.
    uint32_t rounds;
    // torch's threads by V.
    Divider groups;
    // Strided only: what is stored, and bytes between elements; dimension 0 is the innermost.
    Type type;
    uint32_t dims;
    Divider sizes[MAX_DIMS];
    int64_t strides[MAX_DIMS];
};

__device__ __forceinline__ double number(const Random &random, int at) { return __longlong_as_double(random.numbers[at]); }

// ---- from a value to what is stored

template <typename S> struct Cast {
    template <typename V> static __device__ __forceinline__ S cast(V value) { return static_cast<S>(value); }
};
// By way of float, as torch does.
template <> struct Cast<Half> {
    template <typename V> static __device__ __forceinline__ Half cast(V value) { return narrow_half(static_cast<float>(value)); }
};
template <> struct Cast<BFloat> {
    template <typename V> static __device__ __forceinline__ BFloat cast(V value) { return narrow_bfloat(static_cast<float>(value)); }
};

// V values side by side, as they are stored.
template <typename S, int V, typename Value> __device__ __forceinline__ Pack<S, V> packed(const Value (&values)[V]) {
    Pack<S, V> row;
    #pragma unroll
    for (int v = 0; v < V; ++v) row.at[v] = Cast<S>::cast(values[v]);
    return row;
}
#if __CUDA_ARCH__ >= 800
// Two at a time.
#define PACKED(S, V, instruction) \
    template <> __device__ __forceinline__ Pack<S, V> packed<S, V, float>(const float (&values)[V]) { \
        Pack<uint32_t, V / 2> pairs; \
        _Pragma("unroll") \
        for (int v = 0; v < V; v += 2) asm(instruction " %0, %1, %2;" : "=r"(pairs.at[v / 2]) : "f"(values[v + 1]), "f"(values[v])); \
        return *(Pack<S, V> *)&pairs; \
    }
PACKED(Half, 16, "cvt.rn.f16x2.f32")
PACKED(BFloat, 16, "cvt.rn.bf16x2.f32")
#endif

struct ByType {
    Type type;

    template <typename V> __device__ __forceinline__ void store(char *to, V value) const {
        switch (type) {
        case BOOL: *(uint8_t *)to = value != 0; break;
        case U8: *(uint8_t *)to = Cast<uint8_t>::cast(value); break;
        case I8: *(int8_t *)to = Cast<int8_t>::cast(value); break;
        case I16: *(int16_t *)to = Cast<int16_t>::cast(value); break;
        case U16: *(uint16_t *)to = Cast<uint16_t>::cast(value); break;
        case I32: *(int32_t *)to = Cast<int32_t>::cast(value); break;
        case U32: *(uint32_t *)to = Cast<uint32_t>::cast(value); break;
        case I64: *(int64_t *)to = Cast<int64_t>::cast(value); break;
        case U64: *(uint64_t *)to = Cast<uint64_t>::cast(value); break;
        case F16: *(Half *)to = Cast<Half>::cast(value); break;
        case BF16: *(BFloat *)to = Cast<BFloat>::cast(value); break;
        case F32: *(float *)to = Cast<float>::cast(value); break;
        case F64: *(double *)to = Cast<double>::cast(value); break;
        default: break;
        }
    }
};
// The one value whose only type is known.
template <> __device__ __forceinline__ void ByType::store<double>(char *to, double value) const { *(double *)to = value; }

// ---- the walk
//
// A distribution D is made of a `Random` and has
//   Value     what it makes,
//   COUNT     values of one block: 4, or 2 of 64 bits,
//   PAIR      values that are made together,
//   make(values, words, first)   `PAIR` values of a block, from `first` on.

template <class D, typename S, int V> __device__ __forceinline__ void fill_flat(const Random &random) {
    const uint32_t work = blockIdx.x * RANDOM_THREADS + threadIdx.x;
    const uint32_t round = quotient(work, random.groups);
    const uint32_t thread = (work - round * random.groups.size) * V;
    if (round >= random.rounds) return;
    // Below 2^32: the count is below 2^31, and a round is at most that much more.
    const uint32_t base = round * D::COUNT * random.threads + thread;
    if (base >= random.count) return;

    const tcuda::philox_key key = tcuda::philox_unpack(random.state);
    tcuda::philox_word words[V][4];
    tcuda::philox_blocks<V>(words, key.seed, thread, key.offset / 4 + round);

    const D distribution(random);
    const bool aligned = (uintptr_t)random.out % alignof(Pack<S, V>) == 0;
    S *const out = (S *)random.out;
    #pragma unroll
    for (int first = 0; first < D::COUNT; first += D::PAIR) {
        if (base + first * random.threads >= random.count) return;
        typename D::Value rows[D::PAIR][V];
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            typename D::Value values[D::PAIR];
            distribution.make(values, words[v], first);
            #pragma unroll
            for (int i = 0; i < D::PAIR; ++i) rows[i][v] = values[i];
        }
        #pragma unroll
        for (int i = 0; i < D::PAIR; ++i) {
            const Pack<S, V> row = packed<S, V>(rows[i]);
            const uint32_t at = base + (first + i) * random.threads;
            if (aligned && at + V <= random.count) {
                *(Pack<S, V> *)(out + at) = row;
            } else {
                // Seldom: by way of local memory, so that the code stays small.
                const Pack<S, V> spilled = row;
                #pragma unroll 1
                for (uint32_t v = 0; v < V && at + v < random.count; ++v) out[at + v] = spilled.at[v];
            }
        }
    }
}

// The address of the element with that index.
__device__ __forceinline__ char *element(const Random &random, uint32_t index) {
    char *to = random.out;
    #pragma unroll 1
    for (uint32_t dim = 0; dim < random.dims; ++dim) {
        const uint32_t next = quotient(index, random.sizes[dim]);
        to += (int64_t)(index - next * random.sizes[dim].size) * random.strides[dim];
        index = next;
    }
    return to;
}

// Any strides and any type: one block of one thread of torch's.
template <class D> __device__ __forceinline__ void fill_strided(const Random &random) {
    const uint32_t work = blockIdx.x * RANDOM_THREADS + threadIdx.x;
    const uint32_t round = quotient(work, random.groups);
    const uint32_t thread = work - round * random.groups.size;
    if (round >= random.rounds) return;
    const uint32_t base = round * D::COUNT * random.threads + thread;
    if (base >= random.count) return;

    const tcuda::philox_key key = tcuda::philox_unpack(random.state);
    tcuda::philox_word words[1][4];
    tcuda::philox_blocks<1>(words, key.seed, thread, key.offset / 4 + round);
    const D distribution(random);
    const ByType as{random.type};
    #pragma unroll
    for (int first = 0; first < D::COUNT; first += D::PAIR) {
        if (base + first * random.threads >= random.count) return;
        typename D::Value values[D::PAIR];
        distribution.make(values, words[0], first);
        #pragma unroll
        for (int i = 0; i < D::PAIR; ++i) {
            const uint32_t index = base + (first + i) * random.threads;
            if (index >= random.count) return;
            as.store(element(random, index), values[i]);
        }
    }
}

// V is what was fastest on an H100: 16 bytes a row where memory is the limit, twice as much where arithmetic is.
#define KERNEL(name, body) \
    extern "C" __global__ void __launch_bounds__(RANDOM_THREADS) name(const __grid_constant__ Random random) { body; }
#define FLAT(name, S, V, ...) KERNEL(name, (fill_flat<__VA_ARGS__, S, V>(random)))
#define STRIDED(name, ...) KERNEL(name, (fill_strided<__VA_ARGS__>(random)))
