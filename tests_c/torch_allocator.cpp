// torch's caching allocator for test_order, to compare with. Built where torch is installed:
//   g++ -std=c++20 -O2 -fPIC -shared torch_allocator.cpp -I$TORCH/include -I$CUDA/include -L$TORCH/lib -lc10 -lc10_cuda -lcudart -o torch_allocator.so

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

namespace cache = c10::cuda::CUDACachingAllocator;

#ifdef NO_TORCH_CUDA // libtorch_cuda, which sets this, is not there
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}
static bool has_context(c10::DeviceIndex) {
    return true;
}
#endif

extern "C" {

void order_start() {
#ifdef NO_TORCH_CUDA
    c10::cuda::_internal::setHasPrimaryContext(has_context);
#endif
    cache::init(c10::cuda::device_count());
}

void *order_allocate(size_t size, void *stream) {
    return cache::raw_alloc_with_stream(size, static_cast<cudaStream_t>(stream));
}

void order_give_back(void *ptr) {
    cache::raw_delete(ptr);
}

// recordStream takes the owner of memory; only its address and its deleter are looked at.
void order_record(void *ptr, void *stream) {
    c10::DataPtr data(ptr, ptr, cache::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
    cache::recordStream(data, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
    data.release_context();
}

size_t order_reserved_peak() {
    return static_cast<size_t>(cache::getDeviceStats(0).reserved_bytes[0].peak);
}
}
