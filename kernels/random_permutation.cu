// A random permutation of 0 to count - 1. Few numbers are sorted by random keys of 64 bits. Many go through a bijection of the least
// power of two above them, keyed by the generator, again and again until they are below count: no sorting and no memory.

#include "random.cuh"

// numbers, for the bijection: the bits of a number's lower and upper part, the index of the first element, the length of the permutation.
// SMALL is as in src/runtime/kernels/random/permutation.rs.
#define SMALL 1024
#define ROUNDS 16

// One block of threads.
extern "C" __global__ void __launch_bounds__(RANDOM_THREADS) tcuda_permutation_small(const __grid_constant__ Random random) {
    __shared__ uint64_t keys[SMALL];
    const tcuda::philox_key key = tcuda::philox_unpack(random.state);
    for (uint32_t i = threadIdx.x; i < random.count; i += RANDOM_THREADS) {
        tcuda::philox_word words[1][4];
        tcuda::philox_blocks<1>(words, key.seed, i, key.offset / 4);
        keys[i] = (uint64_t)words[0][0] << 32 | words[0][1];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < random.count; i += RANDOM_THREADS) {
        const uint64_t own = keys[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < random.count; ++j) rank += keys[j] < own || (keys[j] == own && j < i);
        ByType{random.type}.store(element(random, rank), (int64_t)i);
    }
}

// Of a part of a number and the round's key: every bit of it depends on all of both.
__device__ __forceinline__ uint64_t mix(uint64_t part, uint64_t key) {
    part = (part ^ key) * 0x9E3779B97F4A7C15ull;
    part = (part ^ (part >> 32)) * 0xD6E8FEB86659FD93ull;
    return part ^ (part >> 32);
}

extern "C" __global__ void __launch_bounds__(RANDOM_THREADS) tcuda_permutation(const __grid_constant__ Random random) {
    __shared__ uint64_t keys[ROUNDS];
    const tcuda::philox_key key = tcuda::philox_unpack(random.state);
    if (threadIdx.x < ROUNDS) {
        tcuda::philox_word words[1][4];
        tcuda::philox_blocks<1>(words, key.seed, threadIdx.x, key.offset / 4);
        keys[threadIdx.x] = (uint64_t)words[0][0] << 32 | words[0][1];
    }
    __syncthreads();
    const uint32_t index = blockIdx.x * RANDOM_THREADS + threadIdx.x;
    if (index >= random.count) return;
    const uint32_t low_bits = (uint32_t)random.numbers[0];
    const uint64_t low_mask = (1ull << low_bits) - 1, high_mask = (1ull << random.numbers[1]) - 1;
    uint64_t value = random.numbers[2] + index;
    do {
        uint64_t low = value & low_mask, high = value >> low_bits;
        #pragma unroll
        for (int round = 0; round < ROUNDS; round += 2) {
            low ^= mix(high, keys[round]) & low_mask;
            high ^= mix(low, keys[round + 1]) & high_mask;
        }
        value = high << low_bits | low;
    } while (value >= random.numbers[3]);
    ByType{random.type}.store(element(random, index), (int64_t)value);
}
