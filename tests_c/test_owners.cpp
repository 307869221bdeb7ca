/* tcuda.hpp: errors, owners that move, guards that restore, functions of the host. */

#include "tcuda.hpp"

#include "check.h"

#include <atomic>
#include <cstring>
#include <vector>

static void errors_carry_the_status()
{
    bool caught = false;
    try {
        tcuda::synchronize(12345);
    } catch (const tcuda::error &error) {
        caught = true;
        CHECK_EQUAL(error.status(), TCUDA_ERROR_INVALID_DEVICE);
        CHECK_TEXT(error.name(), "TCUDA_ERROR_INVALID_DEVICE");
        CHECK(std::strstr(error.what(), "12345") != nullptr);
        CHECK_EQUAL(error.native(), 0);
    }
    CHECK(caught);
    tcuda::check(TCUDA_SUCCESS);
    caught = false;
    try {
        tcuda::check(TCUDA_ERROR_OUT_OF_MEMORY);
    } catch (const tcuda::out_of_memory &) {
        caught = true;
    }
    CHECK(caught);
}

/* The record may be of another failure than the status that is thrown. */
static void errors_say_what_belongs_to_their_status()
{
    CHECK_STATUS(tcuda_synchronize(12345), TCUDA_ERROR_INVALID_DEVICE);
    const tcuda::error other(TCUDA_ERROR_TIMEOUT);
    CHECK_EQUAL(other.status(), TCUDA_ERROR_TIMEOUT);
    CHECK_TEXT(other.what(), tcuda_status_message(TCUDA_ERROR_TIMEOUT));
    CHECK_EQUAL(other.native(), 0);
    const tcuda::error same(TCUDA_ERROR_INVALID_DEVICE);
    CHECK(std::strstr(same.what(), "12345") != nullptr);
    tcuda_error_info_t info = TCUDA_ERROR_INFO_INIT;
    tcuda::check(tcuda_last_error(&info));
    bool caught = false;
    try {
        tcuda::check(info.status);
    } catch (const tcuda::error &error) {
        caught = error.status() == TCUDA_ERROR_INVALID_DEVICE && std::strstr(error.what(), "12345") != nullptr;
    }
    CHECK(caught);
}

static void devices()
{
    CHECK(tcuda::device_count() >= 1);
    const int before = tcuda::current_device();
    const int other = tcuda::device_count() - 1;
    {
        tcuda::device_guard guard(other);
        CHECK_EQUAL(tcuda::current_device(), other);
        tcuda::device_guard nothing(-1);
        CHECK_EQUAL(tcuda::current_device(), other);
    }
    CHECK_EQUAL(tcuda::current_device(), before);
    CHECK(tcuda::device_properties().multi_processor_count > 0);
    CHECK(std::strlen(tcuda::device_properties(other).name) > 0);
}

static void streams_move_and_work()
{
    tcuda::stream first;
    CHECK(first->query());
    CHECK_EQUAL(first->device(), tcuda::current_device());
    const tcuda_stream_t raw = first.get();
    tcuda::stream second(std::move(first));
    CHECK(second.get() == raw);
    bool refused = false;
    try {
        first->synchronize(); /* moved from: no stream, not the default one */
    } catch (const tcuda::error &error) {
        refused = error.status() == TCUDA_ERROR_INVALID_HANDLE;
    }
    CHECK(refused);
    first = tcuda::stream(-1, -1);
    CHECK(first.get() != raw && first->priority() <= 0);
    first = std::move(second);
    CHECK(first.get() == raw);

    std::atomic<int> count{0};
    for (int i = 0; i < 10; i++)
        first->add_host_function([&count, expected = i] { count += count == expected ? 1 : 100; });
    first->synchronize();
    CHECK_EQUAL(count.load(), 10);

    tcuda::stream_ref pooled = tcuda::stream_ref::from_pool();
    pooled.wait_stream(first);
    pooled.synchronize();
    CHECK(pooled.native() == pooled.get());
    CHECK(pooled != first && pooled == tcuda::stream_ref(pooled.get()));
    CHECK(tcuda::stream_ref::default_of(0).get() == TCUDA_STREAM_DEFAULT(0));
}

static_assert(!std::is_convertible_v<tcuda::stream, tcuda_stream_t>, "a stream that goes at once is no handle");
static_assert(std::is_convertible_v<tcuda::stream &, tcuda_stream_t>);
static_assert(!std::is_convertible_v<tcuda::stream, tcuda::stream_ref> && !std::is_constructible_v<tcuda::stream_guard, tcuda::stream>);
static_assert(std::is_convertible_v<tcuda::stream &, tcuda::stream_ref> && std::is_convertible_v<const tcuda::stream &, tcuda::stream_ref>);

static void streams_are_taken_and_compared_as_handles()
{
    const tcuda::stream stream;
    tcuda::stream other;
    void *block = nullptr;
    CHECK_OK(tcuda_malloc_cached(&block, 512, stream));
    CHECK_OK(tcuda_record_stream(block, other));
    CHECK_OK(tcuda_free_cached(block));
    const tcuda::stream_ref ref = stream, direct(stream), first = tcuda::stream_ref::default_of(0);
    CHECK(first == TCUDA_STREAM_DEFAULT(0) && TCUDA_STREAM_DEFAULT(0) == first && first != TCUDA_STREAM_DEFAULT(1));
    CHECK(ref == stream && stream == ref && ref == direct && stream == stream.get() && ref != other && !(stream == other));
}

static void a_destroyed_stream_is_an_error()
{
    tcuda_stream_t dead = nullptr;
    {
        tcuda::stream stream;
        dead = stream.get();
    }
    try {
        tcuda::stream_ref(dead).synchronize();
        CHECK(false);
    } catch (const tcuda::error &error) {
        CHECK_EQUAL(error.status(), TCUDA_ERROR_INVALID_HANDLE);
    }
}

static void events_move_and_measure()
{
    tcuda::stream stream;
    tcuda::event untimed;
    CHECK(untimed.query());
    untimed.record(stream);
    untimed.synchronize();
    try {
        (void)untimed.elapsed_time(untimed);
        CHECK(false);
    } catch (const tcuda::error &error) {
        CHECK_EQUAL(error.status(), TCUDA_ERROR_INVALID_STATE);
    }

    tcuda::event start(TCUDA_EVENT_DEFAULT), end(TCUDA_EVENT_DEFAULT);
    start.record(stream);
    end.record(stream);
    end.synchronize();
    CHECK(start.elapsed_time(end) >= 0);

    tcuda::graph graph;
    graph.capture(stream, [&] {
        untimed.wait_external(stream);
        start.record_external(stream);
        end.record_external(stream);
    });
    graph.replay(stream);
    stream->synchronize();
    CHECK(start.elapsed_time(end) >= 0);

    tcuda::event made = stream->record_event();
    const tcuda_event_t raw = made.get();
    std::vector<tcuda::event> events;
    events.push_back(std::move(made));
    CHECK(events[0].get() == raw && made.get() == nullptr);
    events[0].wait(tcuda::stream_ref::default_of());
    stream->wait_event(events[0]);
    stream->synchronize();
}

static void guards_restore_stream_and_device()
{
    const int other = tcuda::device_count() - 1;
    tcuda::stream here, there(other), there_before(other);
    tcuda::check(tcuda_set_stream(there_before.get()));
    tcuda::check(tcuda_set_stream(here.get()));
    const tcuda_stream_t on_other = tcuda::stream_ref::current(other).get();
    {
        tcuda::stream_guard guard(there);
        CHECK_EQUAL(tcuda::current_device(), other);
        CHECK(tcuda::stream_ref::current() == there);
    }
    CHECK_EQUAL(tcuda::current_device(), 0);
    CHECK(tcuda::stream_ref::current() == here);
    CHECK(tcuda::stream_ref::current(other).get() == on_other);
}

static void guards_bring_the_device_back_where_a_stream_is_gone()
{
    const int other = tcuda::device_count() - 1;
    auto here = std::make_unique<tcuda::stream>(0), there_before = std::make_unique<tcuda::stream>(other);
    const tcuda::stream there(other);
    tcuda::check(tcuda_set_stream(*there_before));
    tcuda::check(tcuda_set_stream(*here));
    {
        const tcuda::stream_guard guard(there);
        here.reset();
        there_before.reset();
    }
    CHECK_EQUAL(tcuda::current_device(), 0);
    CHECK(tcuda::stream_ref::current() == TCUDA_STREAM_DEFAULT(0));
    CHECK(tcuda::stream_ref::current(other) == TCUDA_STREAM_DEFAULT(other));
}

template <std::size_t ALIGNMENT>
struct alignas(ALIGNMENT) aligned {
    char bytes[ALIGNMENT];
};

static void buffers_are_aligned_as_their_elements_are()
{
    const auto is_aligned = [](const auto &buffer, std::size_t to) { return reinterpret_cast<std::uintptr_t>(buffer.data()) % to == 0; };
    std::vector<tcuda::buffer<>> between;
    for (int i = 0; i < 8; i++) {
        between.emplace_back(100); /* so that the next free place is at no great power of two */
        CHECK(is_aligned(tcuda::buffer<aligned<1024>>(1), 1024));
        CHECK(is_aligned(tcuda::buffer<aligned<65536>>(3), 65536));
        CHECK(is_aligned(tcuda::pinned_buffer<aligned<4096>>(1), 4096));
    }
}

static void buffers_move_and_come_back()
{
    std::int64_t before = -1, during = -1, after = -1;
    tcuda::stream stream, other;
    tcuda::check(tcuda_memory_stat_get(&before, -1, "allocated_bytes.all.current"));
    {
        tcuda::buffer<float> first(1000, stream);
        CHECK(first.data() != nullptr && first.size() == 1000 && first.size_bytes() == 4000 && !first.empty());
        std::int32_t device = -7;
        CHECK_OK(tcuda_device_of(&device, first.data()));
        CHECK_EQUAL(device, tcuda::current_device());
        first.record_stream(other);
        float *const raw = first.data();
        tcuda::buffer<float> second(std::move(first));
        CHECK(second.data() == raw && first.data() == nullptr && first.empty());
        first = std::move(second);
        CHECK(first.data() == raw);
        tcuda::buffer<> bytes(512), none(0);
        CHECK(bytes.size_bytes() == 512 && none.empty());
        tcuda::check(tcuda_memory_stat_get(&during, -1, "allocated_bytes.all.current"));
        CHECK(during >= before + 4000 + 512);
        CHECK_OK(tcuda_free_cached(bytes.release()));
        CHECK(bytes.data() == nullptr && bytes.empty());
    }
    tcuda::synchronize();
    tcuda::check(tcuda_memory_stat_get(&after, -1, "allocated_bytes.all.current"));
    CHECK_EQUAL(after, before);
    bool caught = false;
    try {
        tcuda::buffer<double> huge(SIZE_MAX / 4);
    } catch (const std::length_error &) {
        caught = true;
    }
    CHECK(caught);
    caught = false;
    try {
        tcuda::buffer<> huge(std::size_t(1) << 50);
    } catch (const tcuda::out_of_memory &error) {
        caught = std::strstr(error.what(), "out of memory") != nullptr;
    }
    CHECK(caught);
}

static std::int64_t allocated()
{
    std::int64_t bytes = -1;
    tcuda::check(tcuda_memory_stat_get(&bytes, -1, "allocated_bytes.all.current"));
    return bytes;
}

static tcuda::tensor empty(std::int64_t size)
{
    tcuda_managed_tensor_t *made = nullptr;
    tcuda::check(tcuda_tensor_empty(&made, TCUDA_DEVICE_CURRENT, TCUDA_DTYPE_FLOAT32, 1, &size, TCUDA_STREAM_CURRENT));
    return tcuda::tensor(made);
}

static void tensors_end_once()
{
    const std::int64_t before = allocated();
    {
        tcuda::tensor first = empty(1000);
        CHECK(first.get() != nullptr && first->tensor.shape[0] == 1000);
        const float one = 1;
        CHECK_OK(tcuda_tensor_fill(&first->tensor, &one, first->tensor.dtype, TCUDA_STREAM_CURRENT));
        tcuda_managed_tensor_t *const raw = first.get();
        tcuda::tensor second(std::move(first)), none;
        CHECK(second.get() == raw && first.get() == nullptr && none.get() == nullptr);
        first = std::move(second);
        CHECK(first.get() == raw);
        CHECK(allocated() >= before + 4000);
        CHECK_OK(tcuda_tensor_destroy(first.release()));
        CHECK(first.get() == nullptr);
        CHECK_EQUAL(allocated(), before);
        second = empty(10);
        CHECK(allocated() > before);
    }
    CHECK_EQUAL(allocated(), before);
}

static void generators_move_and_draw()
{
    tcuda::generator first;
    CHECK_EQUAL(first.device(), tcuda::current_device());
    first.manual_seed(7);
    const tcuda_generator_t raw = first.get();
    tcuda::generator second(std::move(first));
    CHECK(second.get() == raw);
    bool refused = false;
    try {
        first.manual_seed(8); /* moved from: no generator, not the default one */
    } catch (const tcuda::error &error) {
        refused = error.status() == TCUDA_ERROR_INVALID_HANDLE;
    }
    CHECK(refused);
    const tcuda_philox_state_t taken = second.philox_state(5, tcuda::stream_ref::default_of());
    CHECK(taken.seed == 7 && taken.offset == 0 && second.offset() == 8);
    tcuda::generator other = second.clone();
    second.set_offset(400);
    CHECK(other.offset() == 8 && other.initial_seed() == 7);
    other.set_state(second.state());
    CHECK_EQUAL(other.offset(), 400);
    CHECK(other.seed() == other.initial_seed() && other.offset() == 0);
    std::int32_t kind = -1, multiprocessors = 0, threads = 0;
    second.draw_as("A100");
    CHECK_OK(tcuda_generator_get_geometry(second, &kind, &multiprocessors, &threads));
    CHECK(kind == TCUDA_GEOMETRY_NAMED && multiprocessors == 108 && threads == 2048);
    second.draw_portably();
    CHECK_OK(tcuda_generator_get_geometry(second, &kind, &multiprocessors, &threads));
    CHECK_EQUAL(kind, TCUDA_GEOMETRY_PORTABLE);
    other = std::move(second);
    CHECK(other.get() == raw);
}

static void pinned_buffers_hold_what_is_written()
{
    tcuda::pinned_buffer<int> first(1000);
    int next = 0;
    for (int &value : first)
        value = next++;
    const int *const data = first.data();
    tcuda::pinned_buffer<int> second(std::move(first)), back(1000);
    CHECK(first.empty() && first.data() == nullptr && second.data() == data && second.size_bytes() == 4000);
    tcuda::stream stream;
    tcuda::buffer<int> device(second.size(), stream);
    CHECK_OK(tcuda_copy_async(device.data(), second.data(), second.size_bytes(), stream));
    CHECK_OK(tcuda_copy_async(back.data(), device.data(), back.size_bytes(), stream));
    second.record_stream(stream);
    stream->synchronize();
    CHECK(back[0] == 0 && back[999] == 999);
    bool refused = false;
    try {
        tcuda::pinned_buffer<int>(SIZE_MAX / 2);
    } catch (const std::length_error &) {
        refused = true;
    }
    CHECK(refused);
}

static void graphs_capture_and_replay()
{
    const std::int64_t before = allocated();
    {
        tcuda::stream stream;
        tcuda::pinned_buffer<int> in(1), out(1);
        tcuda::graph first;
        bool current = false;
        first.capture(stream, [&] {
            current = tcuda::stream_ref::current() == stream.get();
            tcuda::buffer<int> between(1); /* on the current stream, and so of the graph's pool */
            CHECK_OK(tcuda_copy_async(between.data(), in.data(), sizeof(int), stream));
            CHECK_OK(tcuda_copy_async(out.data(), between.data(), sizeof(int), stream));
        });
        CHECK(current && tcuda::stream_ref::current() == tcuda::stream_ref::default_of());
        tcuda::graph moved(std::move(first));
        for (int number = 1; number < 4; number++) {
            in[0] = number;
            moved.replay(stream);
            stream->synchronize();
            CHECK_EQUAL(out[0], number);
        }
        CHECK(moved.pool().first != 0 && first.get() == nullptr);

        tcuda::graph other;
        bool thrown = false;
        try {
            other.capture(stream, [] { throw 5; }, moved.pool());
        } catch (int number) {
            thrown = number == 5;
        }
        CHECK(thrown && tcuda::stream_ref::current() == tcuda::stream_ref::default_of());
        stream->synchronize(); /* nothing is captured any more */
        CHECK_STATUS(tcuda_graph_replay(other.get(), stream), TCUDA_ERROR_INVALID_STATE);
        other.capture(stream, [&] { CHECK_OK(tcuda_memset_async(out.data(), 0, sizeof(int), stream)); }, moved.pool());
        moved.reset();
        other.replay(stream);
        stream->synchronize();
        CHECK_EQUAL(out[0], 0);
    }
    CHECK_EQUAL(allocated(), before);
}

static void count_calls(void *calls) { ++*static_cast<std::atomic<int> *>(calls); }

/* A callable is gone after its call, and a replay may come again. */
static void functions_that_go_with_their_call_are_not_captured()
{
    std::atomic<int> calls{0};
    tcuda::stream stream;
    tcuda::graph graph;
    bool refused = false;
    try {
        graph.capture(stream, [&] { stream->add_host_function([&calls] { calls++; }); });
    } catch (const std::logic_error &error) {
        refused = std::strstr(error.what(), "tcuda_stream_add_host_function") != nullptr;
    }
    CHECK(refused);
    stream->add_host_function([&calls] { calls++; });
    stream->synchronize();
    CHECK_EQUAL(calls.load(), 1);
    graph.capture(stream, [&] { CHECK_OK(tcuda_stream_add_host_function(stream, count_calls, &calls)); });
    for (int i = 0; i < 3; i++)
        graph.replay(stream);
    stream->synchronize();
    CHECK_EQUAL(calls.load(), 4);
}

static void pools_are_open_for_a_scope()
{
    const std::int64_t before = allocated();
    tcuda::mem_pool pool;
    const auto in_use = [&] { return pool.stats().allocated_bytes.all.current; };
    {
        tcuda::stream stream;
        tcuda::buffer<> inside, outside(1000, stream);
        CHECK_EQUAL(in_use(), 0);
        {
            const tcuda::mem_pool_guard open(pool);
            inside = tcuda::buffer<>(1000, stream);
            CHECK_EQUAL(pool.use_count(), 2);
        }
        CHECK_EQUAL(pool.use_count(), 1);
        CHECK_EQUAL(in_use(), 1024);
        tcuda::buffer<> after(1000, stream);
        CHECK_EQUAL(in_use(), 1024);
    }
    CHECK_EQUAL(in_use(), 0);
    pool.trim();
    CHECK_EQUAL(pool.stats().reserved_bytes.all.current, 0);
    try {
        CHECK_EQUAL(pool.pause(), 0);
        pool.resume();
    } catch (const tcuda::error &error) {
        CHECK_EQUAL(error.status(), TCUDA_ERROR_NOT_SUPPORTED); /* plain segments */
    }
    CHECK_OK(tcuda_mem_pool_destroy(pool.release()));
    CHECK_STATUS(tcuda_mem_pool_trim(pool.get()), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_EQUAL(allocated(), before);
}

static void green_contexts_end_with_their_streams()
{
    tcuda_green_context_t dead = nullptr;
    try {
        const tcuda::green_context context(9);
        dead = context.get();
        CHECK(context.num_sms() >= 9);
        const tcuda::stream_ref before = tcuda::stream_ref::current();
        {
            const tcuda::stream_ref stream = context.stream();
            const tcuda::stream_guard on(stream);
            CHECK(tcuda::stream_ref::current().get() == stream.get());
            tcuda::buffer<> inside(1000);
        }
        CHECK(tcuda::stream_ref::current().get() == before.get());
    } catch (const tcuda::error &error) {
        CHECK_EQUAL(error.status(), TCUDA_ERROR_NOT_SUPPORTED); /* an older driver */
        return;
    }
    std::int32_t none = 0;
    CHECK_STATUS(tcuda_green_context_num_sms(dead, &none), TCUDA_ERROR_INVALID_HANDLE);
}

static void handles_end_with_their_owners()
{
    tcuda_jit_t made = nullptr;
    CHECK_OK(tcuda_jit_create(&made, "template <typename T> T same(T x) { return x; }", nullptr, 0));
    {
        tcuda::jit first(made), second(std::move(first));
        CHECK(first.get() == nullptr && second.get() == made);
    }
    CHECK_STATUS(tcuda_jit_destroy(made), TCUDA_ERROR_INVALID_HANDLE);
}

static void ranges_end_with_their_scope()
{
    const tcuda::nvtx_range outer("outer");
    {
        const tcuda::nvtx_range inner(std::string("inner"));
    }
    /* No tool counts. */
    CHECK_EQUAL(tcuda_nvtx_range_push("another"), -2);
    CHECK_EQUAL(tcuda_nvtx_range_pop(), -2);
    const tcuda::profiler_guard profiled;
}

static void annotations_come_back()
{
    const std::string none = tcuda_memory_annotation();
    CHECK(none.empty());
    {
        const tcuda::annotation_guard outer("outer");
        {
            const tcuda::annotation_guard inner(std::string("inner"));
            CHECK(std::string(tcuda_memory_annotation()) == "inner");
        }
        CHECK(std::string(tcuda_memory_annotation()) == "outer");
    }
    CHECK(std::string(tcuda_memory_annotation()).empty());
}

int main()
{
    errors_carry_the_status();
    errors_say_what_belongs_to_their_status();
    devices();
    streams_move_and_work();
    streams_are_taken_and_compared_as_handles();
    a_destroyed_stream_is_an_error();
    events_move_and_measure();
    guards_restore_stream_and_device();
    guards_bring_the_device_back_where_a_stream_is_gone();
    buffers_are_aligned_as_their_elements_are();
    buffers_move_and_come_back();
    tensors_end_once();
    pinned_buffers_hold_what_is_written();
    graphs_capture_and_replay();
    functions_that_go_with_their_call_are_not_captured();
    pools_are_open_for_a_scope();
    green_contexts_end_with_their_streams();
    handles_end_with_their_owners();
    generators_move_and_draw();
    ranges_end_with_their_scope();
    annotations_come_back();
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
