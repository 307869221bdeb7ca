// What newer releases of CCCL do with a resource: an algorithm of CUB by an environment, and a buffer. Compiled only.
#include <tcuda/cccl.hpp>

#include <cub/device/device_reduce.cuh>
#include <cuda/buffer>
#include <cuda/std/execution>

cudaError_t summed(const float *in, float *out, int n, const tcuda::stream &stream)
{
    const auto environment = cuda::std::execution::env{cuda::stream_ref(stream.get()), tcuda::memory_resource()};
    return cub::DeviceReduce::Sum(in, out, n, environment);
}

float *buffer_of(std::size_t n, const tcuda::stream &stream)
{
    static auto buffer = cuda::make_buffer<float>(cuda::stream_ref(stream.get()), tcuda::memory_resource(), n, cuda::no_init);
    return buffer.data();
}
