/* cudaMallocAsync from the device's default pool, which gives nothing back before bench_end. */

#include "cuda_streams.h"

static cudaMemPool_t pool;
/* An allocation and a free are a call each. */
static __thread uint64_t calls;

void bench_begin(void)
{
    uint64_t most = UINT64_MAX;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most);
}

void bench_end(void)
{
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool, 0);
}

void *bench_alloc(size_t size, void *stream)
{
    void *ptr = NULL;
    calls++;
    return cudaMallocAsync(&ptr, size, (cudaStream_t)stream) == cudaSuccess ? ptr : NULL;
}

void bench_free(void *ptr, size_t size, void *stream)
{
    (void)size;
    calls++;
    cudaFreeAsync(ptr, (cudaStream_t)stream);
}

uint64_t bench_reserved_peak(void)
{
    uint64_t peak = 0;
    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &peak);
    return peak;
}

void bench_reset_peak(void)
{
    uint64_t zero = 0;
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero);
}

uint64_t bench_driver_calls(void)
{
    return calls;
}
