/* The traces of the demo can be read to the end, hold what their recording says, and a broken file is an error. */

#include "../examples_c/trace.h"
#include "check.h"

/* peak_mib: of the bytes asked for, rounded down. */
static void whole(const char *path, uint64_t events, uint32_t streams, uint64_t peak_mib)
{
    struct trace trace;
    struct trace_event event;
    uint64_t held = 0, peak = 0, seen = 0;

    if (CHECK(trace_open(&trace, path))) {
        CHECK_EQUAL(trace.events, events);
        CHECK_EQUAL(trace.streams, streams);
        while (trace_next(&trace, &event)) {
            seen++;
            held = event.free ? held - event.size : held + event.size;
            peak = held > peak ? held : peak;
        }
        CHECK(trace.error == NULL);
        CHECK_EQUAL(seen, events);
        CHECK_EQUAL(peak >> 20, peak_mib);
        CHECK_EQUAL(trace.at, trace.length);
    }
    trace_close(&trace);
}

static void broken(const char *path, const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    struct trace trace;
    struct trace_event event;

    if (!CHECK(file != NULL))
        return;
    fwrite(bytes, 1, length, file);
    fclose(file);
    if (trace_open(&trace, path))
        while (trace_next(&trace, &event))
            continue;
    CHECK(trace.error != NULL);
    trace_close(&trace);
}

int main(int argc, char **argv)
{
    struct trace trace;
    char path[4096];

    /* A file of this program's own: the tests run side by side. */
    CHECK(argc > 0 && snprintf(path, sizeof path, "%s.trace", argv[0]) < (int)sizeof path);

    whole("examples_c/data/gpt_varlen.trace", 158595, 1, 28789);
    whole("examples_c/data/resnet_varsize.trace", 84425, 1, 7354);
    whole("examples_c/data/prefetch_streams.trace", 9525, 2, 1773);
    whole("examples_c/data/gan_steps.trace", 27000, 1, 307);
    whole("examples_c/data/bert_requests.trace", 20000, 1, 477);
    whole("examples_c/data/pipeline_streams.trace", 60000, 5, 1925);
    CHECK(!trace_open(&trace, "examples_c/data/none.trace"));
    CHECK(trace.error != NULL);
    trace_close(&trace);
    broken(path, "", 0);
    broken(path, "tcudatr2\1\1\1\1\3", 13);
    broken(path, "tcudatr1\1\1\1\1", 12);     /* ends before its only event */
    broken(path, "tcudatr1\1\1\1\1\5", 13);   /* a size that is not there */
    broken(path, "tcudatr1\1\1\1\1\0", 13);   /* frees what is not there */
    broken(path, "tcudatr1\1\1\1\1\1\4\3", 15); /* a stream that is not there */
    broken(path, "tcudatr1\1\1\377\377\377\177", 14);
    remove(path);
    return CHECK_DONE();
}
