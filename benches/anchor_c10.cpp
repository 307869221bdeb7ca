// torch's caching allocator: libc10_cuda as it ships. PYTORCH_CUDA_ALLOC_CONF chooses what torch lets one choose.

#include "cuda_streams.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <dlfcn.h>

namespace allocator = c10::cuda::CUDACachingAllocator;

// libtorch_cuda sets this at load; libc10_cuda alone ends the program without it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(c10::DeviceIndex));
}

static bool has_context(c10::DeviceIndex)
{
    return true;
}

extern "C" {

void bench_begin(void)
{
    static const bool once = [] {
        c10::cuda::_internal::setHasPrimaryContext(has_context);
        allocator::init(c10::cuda::device_count());
        return true;
    }();
    (void)once;
}

void bench_end(void)
{
    allocator::emptyCache();
}

void *bench_alloc(size_t size, void *stream)
{
    try {
        return allocator::raw_alloc_with_stream(size, static_cast<cudaStream_t>(stream));
    } catch (const std::exception &) {
        return nullptr;
    }
}

void bench_free(void *ptr, size_t, void *)
{
    allocator::raw_delete(ptr);
}

uint64_t bench_reserved_peak(void)
{
    return static_cast<uint64_t>(allocator::getDeviceStats(0).reserved_bytes[0].peak);
}

void bench_reset_peak(void)
{
    allocator::resetPeakStats(0);
}

// Without a stack for each entry, which is torch's own and would cost far more.
int bench_history(size_t entries)
{
    try {
        allocator::recordHistory(entries != 0, nullptr, entries, allocator::RecordContext::NEVER, true, {});
    } catch (const std::exception &) {
        return 0;
    }
    return 1;
}

// As torch.cuda.use_mem_pool, for all streams.
int bench_pool(int open)
{
    static const c10::MempoolId_t pool{0, 1};
    try {
        if (open) {
            allocator::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
        } else {
            allocator::endAllocateToPool(0, pool);
            allocator::releasePool(0, pool);
        }
    } catch (const std::exception &) {
        return 0;
    }
    return 1;
}

// Every call on the fake runtime; on the real one those for memory, which the statistics count.
uint64_t bench_driver_calls(void)
{
    static const auto all = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "fake_cudart_calls"));
    if (all != nullptr)
        return all();
    auto stats = allocator::getDeviceStats(0);
    return static_cast<uint64_t>(stats.num_device_alloc + stats.num_device_free);
}
}
