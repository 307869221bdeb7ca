// RMM's pool, which begins with 1 GiB and grows; with BENCH_ARENA its arena, which is half of the free memory, RMM's default.

#include "cuda_streams.h"

#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <optional>

#ifdef BENCH_ARENA
using Resource = rmm::mr::arena_memory_resource;
#else
using Resource = rmm::mr::pool_memory_resource;
#endif

static rmm::mr::cuda_memory_resource upstream;
static std::optional<Resource> resource;

static cuda::stream_ref stream_of(void *stream)
{
    return cuda::stream_ref{static_cast<cudaStream_t>(stream)};
}

extern "C" {

void bench_begin(void)
{
    if (resource)
        return;
#ifdef BENCH_ARENA
    resource.emplace(upstream);
#else
    resource.emplace(upstream, std::size_t{1} << 30);
#endif
}

void bench_end(void)
{
    cudaDeviceSynchronize();
    resource.reset();
}

void *bench_alloc(size_t size, void *stream)
{
    try {
        return resource->allocate(stream_of(stream), size, 256);
    } catch (const std::exception &) {
        return nullptr;
    }
}

void bench_free(void *ptr, size_t size, void *stream)
{
    resource->deallocate(stream_of(stream), ptr, size, 256);
}

// The arena does not say; the pool never shrinks.
uint64_t bench_reserved_peak(void)
{
#ifdef BENCH_ARENA
    return 0;
#else
    return resource->pool_size();
#endif
}

void bench_reset_peak(void) {}

uint64_t bench_driver_calls(void)
{
    return UINT64_MAX;
}
}
