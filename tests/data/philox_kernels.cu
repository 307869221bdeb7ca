// Kernels that draw with tcuda/philox.cuh, whose text stands before this one. Number i of thread t of T goes to out[t + i * T].

#define NUMBERS(name, type, number)                                                                                \
    extern "C" __global__ void name(type *out, tcuda::philox_state state, int each, unsigned int bound)            \
    {                                                                                                              \
        const unsigned int threads = gridDim.x * blockDim.x, t = blockIdx.x * blockDim.x + threadIdx.x;            \
        tcuda::philox numbers(state, t);                                                                           \
        for (int i = 0; i < each; ++i)                                                                             \
            out[t + i * threads] = number;                                                                         \
    }
NUMBERS(words, unsigned int, numbers.next())
NUMBERS(uniforms, float, numbers.uniform())
NUMBERS(uniform_doubles, double, numbers.uniform_double())
NUMBERS(normals, float, numbers.normal())
NUMBERS(below, unsigned int, numbers.below(bound))

extern "C" __global__ void normal_doubles(double *out, tcuda::philox_state state, int each, unsigned int)
{
    const unsigned int threads = gridDim.x * blockDim.x, t = blockIdx.x * blockDim.x + threadIdx.x;
    const tcuda::philox_key key = tcuda::philox_unpack(state);
    for (int i = 0; i < each; i += 2) {
        tcuda::philox_word words[1][4];
        tcuda::philox_blocks<1>(words, key.seed, t, key.offset / 4 + i / 2);
        tcuda::philox_normal_double(out[t + i * threads], out[t + (i + 1) * threads], words[0]);
    }
}
