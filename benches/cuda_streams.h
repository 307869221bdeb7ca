/* Streams and threads of an anchor that runs on CUDA's runtime, or on the fake one. */

#include "anchor.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

void bench_thread(void)
{
    cudaSetDevice(0);
}

void *bench_stream_create(void)
{
    cudaStream_t stream = NULL;
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream : NULL;
}

#ifdef __cplusplus
}
#endif
