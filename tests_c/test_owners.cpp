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
    const tcuda_dtype_t float32 = {2, 32, 1};
    tcuda::check(tcuda_tensor_empty(&made, TCUDA_DEVICE_CURRENT, float32, 1, &size, TCUDA_STREAM_CURRENT));
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

static void ranges_end_with_their_scope()
{
    const tcuda::nvtx_range outer("outer");
    {
        const tcuda::nvtx_range inner(std::string("inner"));
    }
    /* No tool counts. */
    CHECK_EQUAL(tcuda_nvtx_range_push("another"), -2);
    CHECK_EQUAL(tcuda_nvtx_range_pop(), -2);
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
    buffers_move_and_come_back();
    tensors_end_once();
    generators_move_and_draw();
    ranges_end_with_their_scope();
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
