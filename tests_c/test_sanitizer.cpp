/* The stream sanitizer and the synchronization debug mode from C++: the macro names the place, guards restore. */

#include "tcuda.hpp"

#include "check.h"

#include <cstring>
#include <vector>

static std::string report(std::uint64_t index, std::int32_t format)
{
    std::size_t needed = 0;
    tcuda::check(tcuda_sanitizer_report_get(nullptr, 0, &needed, index, format));
    std::vector<char> text(needed);
    tcuda::check(tcuda_sanitizer_report_get(text.data(), text.size(), nullptr, index, format));
    return text.data();
}

static void quiet(const tcuda_sanitizer_report_t *found, void *count)
{
    CHECK_EQUAL(found->kind, TCUDA_REPORT_RACE);
    CHECK(std::strstr(found->json, "\"kind\":\"race\"") != nullptr);
    ++*static_cast<int *>(count);
}

static void a_macro_names_the_place()
{
    tcuda::sanitizer_guard sanitizer;
    tcuda::stream one, two;
    void *block = nullptr;
    tcuda::check(tcuda_malloc_cached(&block, 400, one.get()));
    float *numbers = static_cast<float *>(block);
    TCUDA_WRITES(one.get(), numbers, 100);
    TCUDA_READS(one.get(), numbers, 100);
    CHECK_EQUAL(sanitizer.count(), 0);
    int told = 0;
    tcuda::check(tcuda_sanitizer_set_callback(quiet, &told));
    TCUDA_READS(two.get(), numbers + 99, 1);
    tcuda::check(tcuda_sanitizer_set_callback(nullptr, nullptr));
    CHECK_EQUAL(sanitizer.count(), 1);
    CHECK_EQUAL(told, 1);
    const std::string text = report(0, TCUDA_REPORT_TEXT);
    CHECK(text.find("read of 4 bytes") != std::string::npos);
    CHECK(text.find("test_sanitizer.cpp:") != std::string::npos);
    CHECK(text.find("write of 400 bytes") != std::string::npos);
    /* Past it, all is well. */
    tcuda::check(tcuda_stream_wait_stream(two.get(), one.get()));
    TCUDA_WRITES(two.get(), numbers, 100);
    tcuda::check(tcuda_stream_synchronize(two.get()));
    tcuda::check(tcuda_free_cached(block));
    CHECK_EQUAL(sanitizer.count(), 1);
}

static bool is_on()
{
    bool enabled = false;
    tcuda::check(tcuda_sanitizer_is_enabled(&enabled));
    return enabled;
}

/* A report: one stream writes, another one reads past it. */
static void race()
{
    tcuda::stream one, two;
    const tcuda::buffer<float> numbers(100, one);
    void *bytes = numbers.data();
    int told = 0;
    tcuda::check(tcuda_sanitizer_set_callback(quiet, &told));
    TCUDA_WRITES(one, numbers.data(), numbers.size());
    TCUDA_READS(tcuda::stream_ref(two), bytes, 400);
    tcuda::check(tcuda_sanitizer_set_callback(nullptr, nullptr));
    CHECK_EQUAL(told, 1);
    tcuda::synchronize();
    one->wait_stream(two);
    TCUDA_WRITES(one, bytes, numbers.size_bytes());
}

static void a_guard_ends_what_it_began()
{
    CHECK(!is_on());
    {
        const tcuda::sanitizer_guard outer;
        race();
        CHECK_EQUAL(outer.count(), 1);
        {
            const tcuda::sanitizer_guard inner;
            CHECK_EQUAL(inner.count(), 0);
            race();
            CHECK_EQUAL(inner.count(), 1);
        }
        CHECK(is_on());
        CHECK_EQUAL(outer.count(), 2);
        race();
        CHECK_EQUAL(outer.count(), 3);
    }
    CHECK(!is_on());
    tcuda::check(tcuda_sanitizer_enable());
    {
        const tcuda::sanitizer_guard within;
        race();
        CHECK_EQUAL(within.count(), 1);
    }
    CHECK(is_on());
    tcuda::check(tcuda_sanitizer_disable());
    {
        /* Turned off and on in it. */
        tcuda::check(tcuda_sanitizer_enable());
        race();
        const tcuda::sanitizer_guard within;
        tcuda::check(tcuda_sanitizer_disable());
        tcuda::check(tcuda_sanitizer_enable());
        CHECK_EQUAL(within.count(), 0);
    }
    CHECK(is_on());
    tcuda::check(tcuda_sanitizer_disable());
}

static void a_mode_for_a_scope()
{
    tcuda::stream stream;
    {
        tcuda::sync_debug_guard error(TCUDA_SYNC_ERROR);
        bool refused = false;
        try {
            stream->synchronize();
        } catch (const tcuda::error &caught) {
            refused = caught.status() == TCUDA_ERROR_INVALID_STATE;
        }
        CHECK(refused);
        {
            tcuda::sync_debug_guard inner(TCUDA_SYNC_DEFAULT);
            stream->synchronize();
        }
        CHECK_STATUS(tcuda_stream_synchronize(stream.get()), TCUDA_ERROR_INVALID_STATE);
    }
    stream->synchronize();
}

int main()
{
    a_macro_names_the_place();
    a_guard_ends_what_it_began();
    a_mode_for_a_scope();
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
