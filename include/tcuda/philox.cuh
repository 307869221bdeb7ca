// tcuda/philox.cuh: numbers of a tcuda generator in a program's own kernels.
//
// Device code in C++11 or newer, for nvcc and NVRTC; it needs no other header. On the host, tcuda_generator_philox_state takes a stretch of
// the generator's numbers and gives a tcuda_philox_state_t; the kernel takes it by value as tcuda::philox_state, which has the same layout:
//
//     __global__ void scatter(float *out, size_t n, tcuda::philox_state state) {
//         const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
//         tcuda::philox numbers(state, i);                        // each thread has a sequence of its own
//         if (i < n) out[i] = numbers.uniform() + numbers.normal();
//     }
//
//     tcuda_philox_state_t state;                                 // 8: what a thread draws at most, in words of 32 bits
//     tcuda_generator_philox_state(&state, NULL, 8, stream);
//     scatter<<<blocks, threads, 0, stream>>>(out, n, state);
//
// A kernel captured in a graph draws new numbers at each replay: the state then says where on the device seed and offset stand.
// The generator is Philox 4x32-10, with torch's and cuRAND's meaning of seed, sequence (subsequence) and offset: the words are those of
// curand_init(seed, sequence, offset) and curand().
#ifndef TCUDA_PHILOX_CUH
#define TCUDA_PHILOX_CUH

namespace tcuda {

typedef unsigned int philox_word;
typedef unsigned long long philox_long;

// As tcuda_philox_state_t.
struct philox_state {
    philox_long seed;               // captured: where it stands
    philox_long offset;             // captured: where it stands
    philox_long offset_intragraph;  // captured: to be added to the offset
    int captured;
    int reserved;

    philox_state() = default;
    // Takes a tcuda_philox_state_t, which this header does not know, so that a launch can be given one.
    template <typename State, typename = decltype(State::offset_intragraph)>
    __host__ __device__ philox_state(const State &state)
        : seed(state.seed), offset(state.offset), offset_intragraph(state.offset_intragraph), captured(state.captured), reserved(state.reserved) {}
};
static_assert(sizeof(philox_state) == 32, "as tcuda_philox_state_t");

// What a kernel draws with: the state's plain values. offset counts words, and is a multiple of 4.
struct philox_key {
    philox_long seed, offset;
};

__device__ __forceinline__ philox_key philox_unpack(const philox_state &state) {
    if (!state.captured) return {state.seed, state.offset};
    return {*(const philox_long *)state.seed, *(const philox_long *)state.offset + state.offset_intragraph};
}

// Four words of 32 bits each: those of `sequence` and its N - 1 successors, at 4 * block. Round by round, so that a round's keys serve all.
template <int N>
__device__ __forceinline__ void philox_blocks(philox_word (&words)[N][4], philox_long seed, philox_long sequence, philox_long block) {
    philox_word k0 = (philox_word)seed, k1 = (philox_word)(seed >> 32);
#pragma unroll
    for (int n = 0; n < N; ++n) {
        words[n][0] = (philox_word)block;
        words[n][1] = (philox_word)(block >> 32);
        words[n][2] = (philox_word)(sequence + n);
        words[n][3] = (philox_word)((sequence + n) >> 32);
    }
#pragma unroll
    for (int round = 0; round < 10; ++round) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            philox_word(&c)[4] = words[n];
            const philox_long p0 = (philox_long)0xD2511F53u * c[0], p1 = (philox_long)0xCD9E8D57u * c[2];
            c[0] = (philox_word)(p1 >> 32) ^ c[1] ^ k0;
            c[1] = (philox_word)p1;
            c[2] = (philox_word)(p0 >> 32) ^ c[3] ^ k1;
            c[3] = (philox_word)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// 2^-32 and 2^-53.
constexpr float PHILOX_WORD = 1.0f / 4294967296.0f;
constexpr double PHILOX_LONG = 1.0 / 9007199254740992.0;

// In (0, 1], as cuRAND and torch make it of one word.
__device__ __forceinline__ float philox_uniform(philox_word word) {
    return __fmaf_rn(__uint2float_rn(word), PHILOX_WORD, PHILOX_WORD / 2.0f);
}

// In (0, 1], with 53 bits of two words.
__device__ __forceinline__ double philox_uniform_double(philox_word first, philox_word second) {
    const philox_long bits = (philox_long)first ^ ((philox_long)second << 21);
    return __fma_rn(__ull2double_rn(bits), PHILOX_LONG, PHILOX_LONG / 2.0);
}

// Two independent normals of two words (Box and Muller's, as cuRAND and torch make them).
__device__ __forceinline__ void philox_normal(float &one, float &two, philox_word first, philox_word second) {
    constexpr float TURN = PHILOX_WORD * 6.2831855f;
    const float u = philox_uniform(first);
    const float v = __fmaf_rn(__uint2float_rn(second), TURN, TURN / 2.0f);
    const float s = __fsqrt_rn(__fmul_rn(-2.0f, logf(u)));
    float sine, cosine;
    __sincosf(v, &sine, &cosine);
    one = __fmul_rn(sine, s);
    two = __fmul_rn(cosine, s);
}

// The same in double, of four words.
__device__ __forceinline__ void philox_normal_double(double &one, double &two, const philox_word (&words)[4]) {
    const philox_long zx = (philox_long)words[0] ^ ((philox_long)words[1] << 21), zy = (philox_long)words[2] ^ ((philox_long)words[3] << 21);
    const double u = __fma_rn(__ull2double_rn(zx), PHILOX_LONG, PHILOX_LONG / 2.0);
    const double v = __fma_rn(__ull2double_rn(zy), 2.0 * PHILOX_LONG, PHILOX_LONG);
    const double s = __dsqrt_rn(__dmul_rn(-2.0, log(u)));
    double sine, cosine;
    sincospi(v, &sine, &cosine);
    one = __dmul_rn(sine, s);
    two = __dmul_rn(cosine, s);
}

// A thread's numbers, one after the other. Threads that share neither sequence nor stretch of offsets share no number.
class philox {
  public:
    __device__ __forceinline__ philox(const philox_state &state, philox_long sequence) : sequence_(sequence) {
        const philox_key key = philox_unpack(state);
        seed_ = key.seed;
        block_ = key.offset / 4;
    }

    // 32 random bits; each costs one of the increment.
    __device__ __forceinline__ philox_word next() {
        if (at_ == 4) {
            philox_blocks<1>(words_, seed_, sequence_, block_++);
            at_ = 0;
        }
        // A fixed index keeps the words in registers.
        const philox_word word = at_ == 0 ? words_[0][0] : at_ == 1 ? words_[0][1] : at_ == 2 ? words_[0][2] : words_[0][3];
        ++at_;
        return word;
    }

    // In (0, 1]; one word.
    __device__ __forceinline__ float uniform() { return philox_uniform(next()); }

    // In (0, 1], with 53 bits; two words.
    __device__ __forceinline__ double uniform_double() {
        const philox_word first = next();
        return philox_uniform_double(first, next());
    }

    // Mean 0, deviation 1; two words for each pair of calls.
    __device__ __forceinline__ float normal() {
        if (has_normal_) {
            has_normal_ = false;
            return normal_;
        }
        float one;
        const philox_word first = next();
        philox_normal(one, normal_, first, next());
        has_normal_ = true;
        return one;
    }

    // 0 to bound - 1, each as likely as the other (bound > 0); one word, with a chance of bound in 2^32 another one, and
    // so on: the increment should leave room for some.
    __device__ __forceinline__ philox_word below(philox_word bound) {
        philox_long product = (philox_long)next() * bound;
        if ((philox_word)product < bound) {
            const philox_word least = (0u - bound) % bound;
            while ((philox_word)product < least) product = (philox_long)next() * bound;
        }
        return (philox_word)(product >> 32);
    }

  private:
    philox_long seed_, sequence_, block_;
    philox_word words_[1][4];
    int at_ = 4;
    float normal_;
    bool has_normal_ = false;
};

}  // namespace tcuda

#endif
