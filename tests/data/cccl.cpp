/* tcuda/cccl.hpp on the host, compiled with the headers of several CCCLs: the resource, the allocator and temporary storage on two simulated
 * devices, whose memory the host can write. */

#include <tcuda/cccl.hpp>

#include "check.h"

#include <chrono>
#include <cstring>
#include <thread>

static std::uint64_t live(std::int32_t device)
{
    std::uint64_t bytes = 0;
    CHECK_OK(tcuda_memory_allocated(&bytes, device));
    return bytes;
}

/* Both spellings as one: what a program of its CCCL writes. */
#if CCCL_VERSION >= 3001000
#define TAKE(from, stream, bytes, alignment) (from).allocate(cuda::stream_ref{stream}, bytes, alignment)
#define GIVE(to, stream, data, bytes, alignment) (to).deallocate(cuda::stream_ref{stream}, data, bytes, alignment)
#define TAKE_WAITED_FOR(from, bytes) (from).allocate_sync(bytes)
#define GIVE_WAITED_FOR(to, data, bytes) (to).deallocate_sync(data, bytes)
#else
#define TAKE(from, stream, bytes, alignment) (from).allocate_async(bytes, alignment, stream)
#define GIVE(to, stream, data, bytes, alignment) (to).deallocate_async(data, bytes, alignment, stream)
#define TAKE_WAITED_FOR(from, bytes) (from).allocate(bytes)
#define GIVE_WAITED_FOR(to, data, bytes) (to).deallocate(data, bytes)
#endif

template <class Call>
static int refused(Call call)
{
    try {
        call();
    } catch (const tcuda::error &error) {
        return error.status();
    }
    return TCUDA_SUCCESS;
}

static void memory_follows_streams()
{
    tcuda::memory_resource resource;
    tcuda::stream first, second;
    for (size_t alignment : {size_t(1), size_t(256), size_t(512), size_t(4096), size_t(2) << 20}) {
        void *data = TAKE(resource, first.get(), 100000, alignment);
        CHECK(reinterpret_cast<uintptr_t>(data) % (alignment > 512 ? alignment : 512) == 0);
        std::memset(data, 7, 100000);
        GIVE(resource, first.get(), data, 100000, alignment);
    }
    CHECK_EQUAL(live(0), 0);
    /* What is freed on another stream is that stream's at once, also while the first one has work. */
    tcuda_empty_cache(-1);
    void *data = TAKE(resource, first.get(), 3 << 20, 256);
    first->add_host_function([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    second->wait_stream(first);
    GIVE(resource, second.get(), data, 3 << 20, 256);
    void *again = TAKE(resource, second.get(), 3 << 20, 256);
    CHECK(again == data);
    GIVE(resource, second.get(), again, 3 << 20, 256);
    CHECK_EQUAL(live(0), 0);
}

static void sizes_and_errors()
{
    tcuda::memory_resource resource;
    tcuda::stream stream;
    CHECK(TAKE(resource, stream.get(), 0, 256) == nullptr);
    GIVE(resource, stream.get(), nullptr, 0, 256);
    CHECK_EQUAL(refused([&] { TAKE(resource, stream.get(), 100, 3); }), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(refused([&] { TAKE(resource, stream.get(), 100, 0); }), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_EQUAL(refused([&] { TAKE(resource, stream.get(), 100, size_t(2) << 30); }), TCUDA_ERROR_INVALID_ARGUMENT);
    bool none = false;
    try {
        TAKE(resource, stream.get(), size_t(1) << 50, 256);
    } catch (const tcuda::out_of_memory &) {
        none = true;
    }
    CHECK(none);
    CHECK_EQUAL(refused([&] { TAKE(resource, stream.get(), SIZE_MAX, 4096); }), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(live(0), 0);
    /* What is no block does no harm, and says why. */
    int nothing = 0;
    GIVE(resource, stream.get(), &nothing, 4, 4);
    CHECK(std::strlen(tcuda_last_error_message()) > 0);
}

static void default_streams_are_the_resources()
{
    tcuda::memory_resource here, there(1);
    CHECK_EQUAL(here.device(), 0);
    CHECK_EQUAL(there.device(), 1);
    CHECK(here == tcuda::memory_resource(0) && here != there && !(here != tcuda::memory_resource(0)));
    for (cudaStream_t stream : {cudaStream_t{nullptr}, cudaStreamLegacy}) {
        void *data = TAKE(there, stream, 1000, 256);
        CHECK_EQUAL(live(0), 0);
        CHECK_EQUAL(live(1), 1024);
        GIVE(there, stream, data, 1000, 256);
        CHECK_EQUAL(live(1), 0);
    }
    /* Used last by another device: nothing is lost, and what has the memory next comes after that. */
    {
        const tcuda::stream peer(1);
        const auto own = tcuda::stream_ref::default_of(0);
        bool done = false, after = false;
        void *data = TAKE(here, own.native(), 1000, 256);
        CHECK_EQUAL(live(0), 1024);
        peer->add_host_function([&done] {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            done = true;
        });
        GIVE(here, peer.get(), data, 1000, 256);
        CHECK_EQUAL(live(0), 0);
        own.add_host_function([&] { after = done; });
        own.synchronize();
        CHECK(after);
    }
    tcuda::device_guard guard(1);
    CHECK(tcuda::memory_resource() == there);
    tcuda::memory_resource nowhere(99);
    CHECK_EQUAL(refused([&] { TAKE_WAITED_FOR(nowhere, 10); }), TCUDA_ERROR_INVALID_DEVICE);
}

/* Memory without a stream may be used on any: what came before it on the default stream is done. */
static void waited_for()
{
    tcuda::memory_resource resource;
    bool done = false;
    tcuda::stream_ref::default_of(0).add_host_function([&done] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        done = true;
    });
    void *data = TAKE_WAITED_FOR(resource, 5000);
    CHECK(done);
    std::memset(data, 1, 5000);
    GIVE_WAITED_FOR(resource, data, 5000);
    CHECK_EQUAL(live(0), 0);
    /* In a mode that refuses to wait the error is that of the wait, and nothing is lost. */
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_ERROR));
    CHECK_EQUAL(refused([&] { TAKE_WAITED_FOR(resource, 5000); }), TCUDA_ERROR_INVALID_STATE);
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_DEFAULT));
    CHECK_EQUAL(live(0), 0);
}

/* As CCCL holds a resource whose type it does not know. */
static void erased()
{
    tcuda::memory_resource resource;
    tcuda::stream stream;
#if CCCL_VERSION >= 3001000
    const auto environment = cuda::std::execution::env{cuda::stream_ref(stream.get()), resource};
    CHECK(cuda::mr::get_memory_resource(environment) == resource);
    cuda::mr::resource_ref<cuda::mr::device_accessible> ref(resource);
    void *data = ref.allocate(cuda::stream_ref(stream.get()), 1000, 256);
    CHECK_EQUAL(live(0), 1024);
    ref.deallocate(cuda::stream_ref(stream.get()), data, 1000, 256);
    data = ref.allocate_sync(1000, 256);
    ref.deallocate_sync(data, 1000, 256);
#if CCCL_VERSION >= 3002000
    cuda::mr::any_resource<cuda::mr::device_accessible> any(resource), same(tcuda::memory_resource(0)), other(tcuda::memory_resource(1));
    CHECK(any == same && any != other);
    any.deallocate_sync(same.allocate_sync(1000, 256), 1000, 256);
#endif
#else
    cuda::mr::async_resource_ref<cuda::mr::device_accessible> ref(resource);
    void *data = ref.allocate_async(1000, 256, stream.get());
    CHECK_EQUAL(live(0), 1024);
    ref.deallocate_async(data, 1000, 256, stream.get());
    cuda::mr::resource_ref<cuda::mr::device_accessible> waited(resource);
    data = waited.allocate(1000, 256);
    waited.deallocate(data, 1000, 256);
#endif
    CHECK_EQUAL(live(0), 0);
}

static void allocators()
{
    tcuda::stream one, other;
    tcuda::allocator<double> a(one), same(one), differs(other);
    CHECK(a == same && a != differs && !(a != same));
    CHECK(a.stream().get() == one.get());
    const tcuda::allocator<char> chars(a);
    CHECK(chars.stream() == a.stream() && tcuda::allocator<double>(chars) == a);
    {
        tcuda::stream_guard current(other);
        CHECK(tcuda::allocator<double>() == differs);
        /* The stream that is current now, whatever is current later. */
        CHECK(tcuda::allocator<double>(tcuda::stream_ref(TCUDA_STREAM_CURRENT)) == differs);
    }
    using traits = std::allocator_traits<tcuda::allocator<double>>;
    static_assert(std::is_same_v<traits::pointer, thrust::device_ptr<double>>);
    static_assert(std::is_same_v<traits::rebind_alloc<int>, tcuda::allocator<int>>);
    auto data = traits::allocate(a, 100);
    CHECK_EQUAL(live(0), 1024);
    std::memset(data.get(), 0, 800);
    traits::deallocate(a, data, 100);
    CHECK_EQUAL(live(0), 0);
    bool too_many = false;
    try {
        (void)a.allocate(SIZE_MAX / 8 + 1);
    } catch (const std::length_error &) {
        too_many = true;
    }
    CHECK(too_many);
    CHECK_EQUAL(refused([&] { (void)a.allocate(size_t(1) << 47); }), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(live(0), 0);
    CHECK(traits::allocate(a, 0).get() == nullptr);
}

/* A container works on the default stream, on memory that the allocator's stream may still use. */
static void containers_come_after()
{
    tcuda::stream busy;
    tcuda::allocator<int> allocator(busy);
    bool done = false, after = false;
    busy->add_host_function([&done] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        done = true;
    });
    const auto data = allocator.allocate(100);
    const auto legacy = tcuda::stream_ref::default_of(0);
    legacy.add_host_function([&] { after = done; });
    legacy.synchronize();
    CHECK(after);
    allocator.deallocate(data, 100);
    /* Where that cannot be, it is an error, and no memory is lost: a capture, which a container has no place in. */
    tcuda_graph_t graph;
    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graph_capture_begin(graph, busy.get(), tcuda_pool_id_t{}, TCUDA_CAPTURE_THREAD_LOCAL));
    CHECK(refused([&] { (void)allocator.allocate(100); }) != TCUDA_SUCCESS);
    (void)tcuda_graph_destroy(graph);
    CHECK_EQUAL(live(0), 0);
}

static void policies()
{
    tcuda::stream stream;
    const auto legacy = tcuda::stream_ref::default_of(0);
    /* What CUDA knows of a stream, not tcuda's name for it. */
    CHECK(get_stream(tcuda::par(stream)) == stream.get() && get_stream(tcuda::par(legacy)) == legacy.native());
    CHECK(get_stream(tcuda::par_nosync(stream)) == stream.get() && get_stream(tcuda::par_nosync(legacy)) == legacy.native());
    auto policy = tcuda::par_nosync(stream);
    static_assert(std::is_same_v<std::decay_t<decltype(policy.get_allocator())>, tcuda::detail::temporary>);
    tcuda_graph_t graph;
    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream.get(), tcuda_pool_id_t{}, TCUDA_CAPTURE_THREAD_LOCAL));
    char *data = policy.get_allocator().allocate(1000);
    CHECK(data != nullptr);
    policy.get_allocator().deallocate(data, 1000);
    CHECK_OK(tcuda_stream_add_host_function(stream.get(), [](void *) {}, nullptr));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_EQUAL(live(0), 0);
}

static void temporary_storage()
{
    tcuda::stream stream;
    int calls = 0;
    tcuda::with_temporary_storage(stream, [&](void *storage, size_t &bytes) {
        CHECK((storage == nullptr) == (calls++ == 0));
        if (storage == nullptr)
            return bytes = 1000, cudaSuccess;
        CHECK_EQUAL(bytes, 1000);
        CHECK_EQUAL(live(0), 1024);
        std::memset(storage, 0, bytes);
        return cudaSuccess;
    });
    CHECK_EQUAL(calls, 2);
    /* What needs none gets some all the same: NULL is the question. */
    tcuda::with_temporary_storage(stream, [&](void *storage, size_t &bytes) {
        bytes = 0;
        return calls += storage != nullptr, cudaSuccess;
    });
    CHECK_EQUAL(calls, 3);
    for (int fails = 0; fails < 2; fails++) {
        int at = 0, code = 0;
        try {
            tcuda::with_temporary_storage(stream, [&](void *, size_t &bytes) {
                bytes = 10;
                return at++ == fails ? cudaErrorInvalidValue : cudaSuccess;
            });
        } catch (const thrust::system_error &error) {
            code = error.code().value();
        }
        CHECK_EQUAL(code, cudaErrorInvalidValue);
        CHECK_EQUAL(at, fails + 1);
    }
    CHECK_EQUAL(live(0), 0);
}

int main()
{
    memory_follows_streams();
    sizes_and_errors();
    default_streams_are_the_resources();
    waited_for();
    erased();
    allocators();
    containers_come_after();
    policies();
    temporary_storage();
    return CHECK_DONE();
}
