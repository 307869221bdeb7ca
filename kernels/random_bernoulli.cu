// Bernoulli with a probability for each element. torch's order here is another than that of the other distributions: four elements side
// by side are one block of a thread of their own, however many there are.

#include "random.cuh"

struct Chances {
    char *out;
    const char *p;
    tcuda::philox_state state;
    // The bits of a one.
    uint64_t one;
    // Of the first element, where this is a part of a larger tensor.
    uint64_t first;
    uint32_t count;
    Type p_type;
    // Bytes; dimension 0 is the innermost.
    uint32_t dims;
    Divider sizes[MAX_DIMS];
    int64_t out_strides[MAX_DIMS], p_strides[MAX_DIMS];
};

template <typename C> __device__ __forceinline__ C chance(Type type, const char *p) {
    switch (type) {
    case F16: return (C)widen(*(const Half *)p);
    case BF16: return (C)widen(*(const BFloat *)p);
    case F32: return (C) * (const float *)p;
    default: return (C) * (const double *)p;
    }
}

// W has the element's width; C is what the probability is rounded to before it is compared.
template <typename W, typename C> __device__ __forceinline__ void fill_chances(const Chances &chances) {
    const uint32_t thread = blockIdx.x * RANDOM_THREADS + threadIdx.x;
    const uint32_t phase = chances.first % 4;
    const uint32_t first = 4 * thread - phase;
    if (thread > 0 && first >= chances.count) return;
    const tcuda::philox_key key = tcuda::philox_unpack(chances.state);
    tcuda::philox_word words[1][4];
    tcuda::philox_blocks<1>(words, key.seed, chances.first / 4 + thread, key.offset / 4);
    const bool whole = chances.dims == 1 && chances.out_strides[0] == sizeof(W) && (uintptr_t)chances.out % sizeof(Pack<W, 4>) == 0
        && phase == 0 && chances.count - first >= 4;
    Pack<W, 4> values;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t index = first + i;
        if (index >= chances.count) continue;
        char *out = chances.out;
        const char *p = chances.p;
        #pragma unroll 1
        for (uint32_t dim = 0; dim < chances.dims; ++dim) {
            const uint32_t next = quotient(index, chances.sizes[dim]);
            const int64_t rest = index - next * chances.sizes[dim].size;
            out += rest * chances.out_strides[dim];
            p += rest * chances.p_strides[dim];
            index = next;
        }
        values.at[i] = tcuda::philox_uniform(words[0][i]) <= chance<C>(chances.p_type, p) ? (W)chances.one : (W)0;
        if (!whole) *(W *)out = values.at[i];
    }
    if (whole) *(Pack<W, 4> *)((W *)chances.out + first) = values;
}

#define CHANCES(name, W, C) \
    extern "C" __global__ void __launch_bounds__(RANDOM_THREADS) name(const __grid_constant__ Chances chances) { fill_chances<W, C>(chances); }

CHANCES(tcuda_bernoulli_tensor_1, uint8_t, float)
CHANCES(tcuda_bernoulli_tensor_2, uint16_t, float)
CHANCES(tcuda_bernoulli_tensor_4, uint32_t, float)
CHANCES(tcuda_bernoulli_tensor_8, uint64_t, float)
CHANCES(tcuda_bernoulli_tensor_f64, uint64_t, double)
