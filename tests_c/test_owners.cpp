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

int main()
{
    errors_carry_the_status();
    devices();
    streams_move_and_work();
    a_destroyed_stream_is_an_error();
    events_move_and_measure();
    guards_restore_stream_and_device();
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
