/* No block is reused before its work is done: the recorded two-stream run (a training loop whose batches are copied ahead on a stream of
 * their own) with work on both streams. Each block is stamped by its stream when it is handed out and looked at when it is freed, and the
 * host never waits in between: memory that goes to the other stream too early holds the other's stamp.
 *
 *     test_order [ROUNDS [EVENTS [AHEAD [ALLOCATOR.so]]]]
 *
 * EVENTS: only so many of the recording in each round; 0: all. AHEAD: the host waits when the device is so many events behind, or up to
 * twice as many, as a program does that looks at its results now and then; 0: never. ALLOCATOR.so: the memory comes from there
 * (tests_c/torch_allocator.cpp). */

#include <time.h>

#include "../examples_c/trace.h"
#include "stamp.h"

/* What a batch has of real bytes from the host, at most. */
#define COPIED ((size_t)4 << 20)

struct allocator {
    void *(*allocate)(size_t size, void *stream);
    void (*give_back)(void *ptr);
    void (*record)(void *ptr, void *stream);
    size_t (*reserved_peak)(void);
    size_t (*active_peak)(void); /* NULL: nobody knows */
};

static void *own_allocate(size_t size, void *stream)
{
    void *ptr = NULL;
    CHECK_OK(tcuda_malloc_cached(&ptr, size, (tcuda_stream_t)stream));
    return ptr;
}

static void own_give_back(void *ptr)
{
    CHECK_OK(tcuda_free_cached(ptr));
}

static void own_record(void *ptr, void *stream)
{
    CHECK_OK(tcuda_record_stream(ptr, (tcuda_stream_t)stream));
}

static size_t own_reserved_peak(void)
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_max_memory_reserved(&bytes, 0));
    return (size_t)bytes;
}

/* With what was freed while another stream was recorded on it. */
static size_t own_active_peak(void)
{
    int64_t bytes = 0;
    CHECK_OK(tcuda_memory_stat_get(&bytes, 0, "active_bytes.all.peak"));
    return (size_t)bytes;
}

static struct allocator memory = {own_allocate, own_give_back, own_record, own_reserved_peak, own_active_peak};

enum { COMPUTING, COPYING, STREAMS };

struct run {
    struct trace_event *events;
    uint32_t *born; /* of each block, the event that allocates it */
    void **ptrs;
    uint64_t count, peak;
    uint32_t blocks;
};

/* The first events of the recording, and a free for all that lives then. */
static int load(struct run *run, uint64_t most)
{
    struct trace trace;
    struct trace_event event;
    uint64_t held = 0;

    memset(run, 0, sizeof *run);
    if (!CHECK(trace_open(&trace, "examples_c/data/prefetch_streams.trace")) || !CHECK_EQUAL(trace.streams, STREAMS))
        return 0;
    if (most == 0 || most > trace.events)
        most = trace.events;
    run->events = (struct trace_event *)calloc(2 * (size_t)most, sizeof *run->events);
    run->born = (uint32_t *)calloc((size_t)most, sizeof *run->born);
    run->ptrs = (void **)calloc((size_t)most, sizeof *run->ptrs);
    if (!CHECK(run->events != NULL && run->born != NULL && run->ptrs != NULL))
        return 0;
    while (run->count < most && trace_next(&trace, &event)) {
        if (!event.free)
            run->born[event.block] = (uint32_t)run->count;
        run->events[run->count++] = event;
        held = event.free ? held - event.size : held + event.size;
        run->peak = held > run->peak ? held : run->peak;
    }
    while (trace.live != 0) {
        run->events[run->count] = trace.stack[--trace.live];
        run->events[run->count++].free = 1;
    }
    run->blocks = trace.blocks;
    trace_close(&trace);
    return CHECK(trace.error == NULL && run->blocks > 0);
}

/* A batch on its way lives for a few events only and is done with on the stream that copies; what lives longer is used by the other
 * stream, which waits for the copy and which the cache is told of. */
static int is_consumed(const struct run *run, const struct trace_event *event, uint64_t at)
{
    return event->stream == COPYING && at - run->born[event->block] > 4;
}

static tcuda_event_t before;

static void stay_near(uint64_t ahead, tcuda_stream_t stream)
{
    static uint64_t count;
    tcuda_event_t here = NULL;

    if (ahead == 0 || ++count % ahead != 0)
        return;
    CHECK_OK(tcuda_stream_record_event(stream, &here));
    if (before != NULL) {
        CHECK_OK(tcuda_event_synchronize(before));
        CHECK_OK(tcuda_event_destroy(before));
    }
    before = here;
}

static void replay(struct run *run, struct stamps *stamps, uint32_t stamp, const tcuda_stream_t *streams, const char *host, uint64_t ahead)
{
    uint64_t i;

    for (i = 0; i < run->count; i++) {
        const struct trace_event *event = run->events + i;
        tcuda_stream_t stream = streams[event->stream];
        void **ptr = run->ptrs + event->block;
        size_t size = (size_t)event->size;

        if (!event->free) {
            *ptr = memory.allocate(size, stream);
            if (!CHECK(*ptr != NULL))
                return;
            if (event->stream == COPYING && host != NULL)
                CHECK_OK(tcuda_copy_async(*ptr, host, size < COPIED ? size : COPIED, stream));
            stamp_write(stamps, stamp + event->block, *ptr, size, stream);
        } else if (is_consumed(run, event, i)) {
            CHECK_OK(tcuda_stream_wait_stream(streams[COMPUTING], stream));
            stamp_verify(stamps, stamp + event->block, *ptr, size, streams[COMPUTING]);
            memory.record(*ptr, streams[COMPUTING]);
            memory.give_back(*ptr);
        } else {
            stamp_verify(stamps, stamp + event->block, *ptr, size, stream);
            memory.give_back(*ptr);
        }
        stay_near(ahead, streams[COMPUTING]);
    }
}

/* From elsewhere than tcuda. */
static int use_allocator(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    void (*start)(void);

    if (!CHECK(library != NULL)) {
        fprintf(stderr, "    %s\n", dlerror());
        return 0;
    }
    if (!stamp_find(library, "order_start", &start) || !stamp_find(library, "order_allocate", &memory.allocate) ||
        !stamp_find(library, "order_give_back", &memory.give_back) || !stamp_find(library, "order_record", &memory.record) ||
        !stamp_find(library, "order_reserved_peak", &memory.reserved_peak))
        return 0;
    memory.active_peak = NULL;
    start();
    return 1;
}

/* Pinned, so that the copy from it is none that the host waits for. NULL on the simulated device. */
static char *host_bytes(const struct stamps *stamps)
{
    int (*allocate)(void **, size_t, unsigned);
    void *bytes = NULL;

    if (stamps->driver == NULL || !stamp_find(stamps->driver, "cuMemHostAlloc", &allocate))
        return NULL;
    CHECK_EQUAL(allocate(&bytes, COPIED, 0), 0);
    if (bytes != NULL)
        memset(bytes, 0x5a, COPIED);
    return (char *)bytes;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    tcuda_sim_options_t options = TCUDA_SIM_OPTIONS_INIT;
    tcuda_stream_t streams[STREAMS];
    tcuda_event_t first, last;
    struct stamps stamps;
    struct run run;
    uint32_t rounds, round, wrong;
    double wall, later;
    float milliseconds = 0;
    char *host;
    int i, cuda;

    /* Streams that go on in an order of their own; the caller may choose another. */
    options.seed = 1;
    if (getenv("TCUDA_SIM_SEED") == NULL)
        CHECK_OK(tcuda_sim_configure(&options));
    CHECK_OK(tcuda_synchronize(0));
    cuda = strcmp(tcuda_backend_name(), "cuda") == 0;
    rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : cuda ? 20 : 2;
    if (!load(&run, argc > 2 ? strtoul(argv[2], NULL, 10) : cuda ? 0 : 400) || !CHECK(rounds > 0) ||
        !stamps_open(&stamps, rounds * run.blocks, 0) || (argc > 4 && !use_allocator(argv[4])))
        return CHECK_DONE();
    host = host_bytes(&stamps);
    for (i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_create(streams + i, 0, 0));
    CHECK_OK(tcuda_event_create(&first, TCUDA_EVENT_DEFAULT));
    CHECK_OK(tcuda_event_create(&last, TCUDA_EVENT_DEFAULT));

    wall = now();
    for (round = 0; round < rounds; round++) {
        replay(&run, &stamps, round * run.blocks, streams, host, argc > 3 ? strtoul(argv[3], NULL, 10) : 0);
        if (round == 0)
            CHECK_OK(tcuda_event_record(first, streams[COMPUTING]));
    }
    CHECK_OK(tcuda_event_record(last, streams[COMPUTING]));
    CHECK_OK(tcuda_synchronize(0));
    wall = now() - wall;
    wrong = stamps_wrong(&stamps);
    CHECK_OK(tcuda_event_elapsed_time(&milliseconds, first, last));
    later = rounds > 1 ? (double)milliseconds / (rounds - 1) : 0;
    printf("order: %u words reused too early; %u rounds of %u blocks, %.3f ms a round, %.3f after the first; peak reserved %.4f of peak requested",
           (unsigned)wrong, (unsigned)rounds, (unsigned)run.blocks, wall / rounds, later, (double)memory.reserved_peak() / (double)run.peak);
    if (memory.active_peak != NULL)
        printf(", in use or pending %.4f", (double)memory.active_peak() / (double)run.peak);
    printf("\n");
    CHECK_EQUAL(wrong, 0);

    for (i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    if (before != NULL)
        CHECK_OK(tcuda_event_destroy(before));
    CHECK_OK(tcuda_event_destroy(first));
    CHECK_OK(tcuda_event_destroy(last));
    stamps_close(&stamps);
    CHECK_OK(tcuda_empty_cache(0));
    free(run.events);
    free(run.born);
    free(run.ptrs);
    return CHECK_DONE();
}
