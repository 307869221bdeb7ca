// A program of nvcc's that draws in its own kernel: both headers, one layout, and a launch that takes what tcuda gives.
#include <cstddef>
#include <tcuda.h>
#include <tcuda/philox.cuh>
#include <type_traits>

#define SAME_PLACE(field) static_assert(offsetof(tcuda::philox_state, field) == offsetof(tcuda_philox_state_t, field), #field)
static_assert(sizeof(tcuda::philox_state) == sizeof(tcuda_philox_state_t), "one layout");
static_assert(std::is_trivially_copyable<tcuda::philox_state>::value, "an argument of a kernel");
SAME_PLACE(seed);
SAME_PLACE(offset);
SAME_PLACE(offset_intragraph);
SAME_PLACE(captured);
SAME_PLACE(reserved);

__global__ void scatter(float *out, size_t n, tcuda::philox_state state)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    tcuda::philox numbers(state, i);
    if (i < n)
        out[i] = numbers.uniform() + numbers.normal();
}

tcuda_status_t scattered(float *out, size_t n, tcuda_stream_t stream)
{
    tcuda_philox_state_t state;
    const tcuda_status_t status = tcuda_generator_philox_state(&state, NULL, 8, stream);
    if (status == TCUDA_SUCCESS)
        scatter<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(out, n, state);
    return status;
}
