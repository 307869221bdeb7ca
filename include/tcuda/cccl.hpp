/* tcuda for CCCL in C++17, header only: a resource of cuda::mr, an allocator and execution policies for Thrust, temporary storage for CUB. All
 * memory comes from the cache of a device and follows the order of streams. For nvcc, and for the host's compiler with CUDA's headers; CCCL 2.8
 * (CUDA 12.9) or newer.
 *
 *     tcuda::stream stream;
 *     thrust::device_vector<int, tcuda::allocator<int>> keys(n, tcuda::allocator<int>(stream));
 *     thrust::sort(tcuda::par_nosync(stream), keys.begin(), keys.end());
 *     tcuda::with_temporary_storage(stream, [&](void *storage, std::size_t &bytes) {
 *         return cub::DeviceReduce::Sum(storage, bytes, keys.begin(), sum, n, stream->native());
 *     });
 *
 * A failing call throws tcuda::error, tcuda::out_of_memory among them; what CUB answers is thrust::system_error, as with Thrust itself. Giving
 * memory back never throws. */

#ifndef TCUDA_CCCL_HPP
#define TCUDA_CCCL_HPP

#include "../tcuda.hpp"

#include <cuda/version>

/* Before CCCL 3.2 (CUDA 13.2) parts of it are there on request only; before 3.1 resources are spelt otherwise. */
#if CCCL_VERSION < 3002000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <thrust/device_ptr.h>
#include <thrust/system/cuda/error.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tcuda {

namespace detail {

/* Every block starts at a multiple of 512, and is had faster without an alignment. */
inline void *allocate(std::size_t bytes, std::size_t alignment, tcuda_stream_t stream) {
    const bool usual = alignment != 0 && alignment <= 512 && (alignment & (alignment - 1)) == 0;
    void *data = nullptr;
    check(usual ? tcuda_malloc_cached(&data, bytes, stream) : tcuda_malloc_cached_aligned(&data, bytes, alignment, stream));
    return data;
}

/* The stream that is current now, whatever is current later. */
inline stream_ref named(stream_ref stream) { return stream.get() == TCUDA_STREAM_CURRENT ? stream_ref::current() : stream; }

inline stream_ref thrusts_default(std::int32_t device) {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    return TCUDA_STREAM_PER_THREAD(device);
#else
    return TCUDA_STREAM_DEFAULT(device);
#endif
}

/* What an algorithm of Thrust needs while it runs on a stream, and only there. */
struct temporary {
    using value_type = char;

    char *allocate(std::size_t bytes) { return static_cast<char *>(detail::allocate(bytes, alignof(std::max_align_t), stream)); }
    void deallocate(char *data, std::size_t) noexcept { (void)tcuda_free_cached(data); }

    stream_ref stream;
};

} // namespace detail

/* The cache of a device as a resource of cuda::mr, for cuda::mr::any_resource, cuda::buffer and what else takes one. Memory is allocated for the
 * stream that is named and lies on that stream's device; the default streams are those of the resource's device. It is freed on the stream that used
 * it last, on any device, after other uses were ordered before, as with cudaFreeAsync; a free that fails leaves its reason with
 * tcuda_last_error_message.
 * Without a stream memory may be used on any at once, for which the default stream is waited for, and has to be past for all when it is freed.
 * Size 0 is NULL; alignments are powers of two up to 1 GiB. Copies are equal; resources of two devices are not. For any thread. */
class memory_resource {
public:
    explicit memory_resource(std::int32_t device = TCUDA_DEVICE_CURRENT) : device_(device == TCUDA_DEVICE_CURRENT ? current_device() : device) {}

    std::int32_t device() const noexcept { return device_; }

#if CCCL_VERSION >= 3001000
    void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = usual_alignment) {
        return detail::allocate(bytes, alignment, on(stream));
    }
    void deallocate(::cuda::stream_ref stream, void *data, std::size_t = 0, std::size_t = usual_alignment) noexcept {
        give(data, on(stream));
    }
    void *allocate_sync(std::size_t bytes, std::size_t alignment = usual_alignment) { return allocate_waited_for(bytes, alignment); }
    void deallocate_sync(void *data, std::size_t = 0, std::size_t = usual_alignment) noexcept { (void)tcuda_free_cached(data); }

    /* So that it can stand in an environment of CUB as it is. */
    const memory_resource &query(const ::cuda::mr::get_memory_resource_t &) const noexcept { return *this; }
#else
    void *allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
        return detail::allocate(bytes, alignment, on(stream));
    }
    void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return allocate_async(bytes, usual_alignment, stream); }
    void deallocate_async(void *data, std::size_t, std::size_t, ::cuda::stream_ref stream) noexcept { give(data, on(stream)); }
    void deallocate_async(void *data, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
        deallocate_async(data, bytes, usual_alignment, stream);
    }
    void *allocate(std::size_t bytes, std::size_t alignment = usual_alignment) { return allocate_waited_for(bytes, alignment); }
    void deallocate(void *data, std::size_t = 0, std::size_t = usual_alignment) noexcept { (void)tcuda_free_cached(data); }
#endif

#if CCCL_VERSION >= 3002000
    using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;
#endif
    friend constexpr void get_property(const memory_resource &, ::cuda::mr::device_accessible) noexcept {}
    friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept { return a.device_ == b.device_; }
    friend bool operator!=(const memory_resource &a, const memory_resource &b) noexcept { return a.device_ != b.device_; }

private:
    static constexpr std::size_t usual_alignment = ::cuda::mr::default_cuda_malloc_alignment;

    tcuda_stream_t own() const noexcept { return TCUDA_STREAM_DEFAULT(device_); }
    /* NULL, cudaStreamLegacy and cudaStreamPerThread would mean the current device's. */
    tcuda_stream_t on(::cuda::stream_ref stream) const noexcept {
        if (stream.get() == cudaStreamPerThread)
            return TCUDA_STREAM_PER_THREAD(device_);
        return stream.get() == nullptr || stream.get() == cudaStreamLegacy ? own() : stream.get();
    }
    /* A stream of another device, which used the memory as a peer: the default stream comes after it, and has the memory then. */
    void give(void *data, tcuda_stream_t stream) const noexcept {
        if (tcuda_free_cached_on(data, stream) != TCUDA_SUCCESS && tcuda_stream_wait_stream(own(), stream) == TCUDA_SUCCESS)
            (void)tcuda_free_cached_on(data, own());
    }
    void *allocate_waited_for(std::size_t bytes, std::size_t alignment) {
        void *data = detail::allocate(bytes, alignment, own());
        const tcuda_status_t status = tcuda_stream_synchronize(own());
        if (status != TCUDA_SUCCESS) {
            const error reason(status);
            (void)tcuda_free_cached(data);
            throw reason;
        }
        return data;
    }

    std::int32_t device_;
};

#if CCCL_VERSION >= 3001000
static_assert(::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::synchronous_resource_with<memory_resource, ::cuda::mr::device_accessible>);
#else
static_assert(::cuda::mr::async_resource_with<memory_resource, ::cuda::mr::device_accessible>);
#endif
static_assert(!::cuda::has_property<memory_resource, ::cuda::mr::host_accessible>);

/* For containers of Thrust: memory for a stream, the calling thread's current one if none is named. What a container does by itself (filling,
 * copying, reading an element) it does on Thrust's default stream, and waits for. So an allocation makes that one wait, on the device, for what
 * the memory's stream has got before; wait for that stream before the container is read, copied or grown. It may go at any time. Other streams
 * are told by tcuda_record_stream. Equal are those of one stream. */
template <class T>
class allocator {
    static_assert(alignof(T) <= 512, "memory of the cache is aligned to 512 bytes");

public:
    using value_type = T;
    using pointer = thrust::device_ptr<T>;
    using const_pointer = thrust::device_ptr<const T>;
    using reference = thrust::device_reference<T>;
    using const_reference = thrust::device_reference<const T>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    template <class U>
    struct rebind {
        using other = allocator<U>;
    };

    allocator() : allocator(stream_ref::current()) {}
    explicit allocator(stream_ref stream) : stream_(detail::named(stream)) {}
    template <class U>
    allocator(const allocator<U> &other) noexcept : stream_(other.stream()) {}

    stream_ref stream() const noexcept { return stream_; }

    pointer allocate(size_type count) {
        if (count > max_size())
            throw std::length_error("tcuda::allocator: more elements than memory can hold");
        buffer<unsigned char> memory(count * sizeof(T), stream_);
        if (const auto thrusts = detail::thrusts_default(stream_.device()); count != 0 && stream_ != thrusts)
            thrusts.wait_stream(stream_);
        return pointer(reinterpret_cast<T *>(memory.release()));
    }
    void deallocate(pointer data, size_type) noexcept { (void)tcuda_free_cached(const_cast<std::remove_cv_t<T> *>(data.get())); }
    size_type max_size() const noexcept { return SIZE_MAX / sizeof(T); }

    friend bool operator==(const allocator &a, const allocator &b) noexcept { return a.stream_ == b.stream_; }
    friend bool operator!=(const allocator &a, const allocator &b) noexcept { return a.stream_ != b.stream_; }

private:
    stream_ref stream_;
};

/* thrust::cuda::par on a stream, with temporary memory of the cache. */
inline auto par(stream_ref stream) { return thrust::cuda::par(detail::temporary{detail::named(stream)}).on(stream.native()); }

/* The same for algorithms that need not be waited for: thrust::cuda::par_nosync. For streams that are captured too. */
inline auto par_nosync(stream_ref stream) {
    return thrust::cuda::par_nosync(detail::temporary{detail::named(stream)}).on(stream.native());
}

/* Runs an algorithm of CUB on a stream: `call(void *storage, std::size_t &bytes)` is called twice, as CUB wants it, the second time with
 * temporary storage of the cache, which goes back in the order of the stream. */
template <class Call>
void with_temporary_storage(stream_ref stream, Call &&call) {
    const auto must = [](cudaError_t answer) {
        if (answer != cudaSuccess)
            throw thrust::system_error(answer, thrust::cuda_category(), "tcuda::with_temporary_storage");
    };
    std::size_t bytes = 0;
    must(call(static_cast<void *>(nullptr), bytes));
    /* CUB takes NULL for the question how much it needs. */
    const buffer<> storage(bytes != 0 ? bytes : 1, stream);
    must(call(static_cast<void *>(storage.data()), bytes));
}

} // namespace tcuda

#endif
