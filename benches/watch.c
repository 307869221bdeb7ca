/* What it costs to look on: nanoseconds of a call with nobody looking, with a trace function, with the synchronization debug mode, and with
 * the stream sanitizer, in one run.
 *
 *     watch          20000 calls each
 *     watch --quick  200, to see that it runs
 *
 * Each figure is the median of rounds in which all take turns. Calls are enqueued on two streams that wait for each other; what the device
 * does is not counted, but for what a stream's queue holds up. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tcuda.h"

#define TRY(call) \
    if ((call) != TCUDA_SUCCESS) { \
        fprintf(stderr, "%s\n", tcuda_last_error_message()); \
        exit(1); \
    }
#define ROUNDS 9
#define BATCH 100

static tcuda_stream_t one, two;
static tcuda_event_t event;
static void *block, *other;

static void a_pair(void)
{
    void *taken;
    TRY(tcuda_malloc_cached(&taken, 4096, one));
    TRY(tcuda_free_cached(taken));
}

static void a_fill(void) { TRY(tcuda_memset_async(block, 1, 4096, one)); }

static void a_copy(void) { TRY(tcuda_copy_async(other, block, 4096, one)); }

static void an_order(void)
{
    TRY(tcuda_event_record(event, one));
    TRY(tcuda_event_wait(event, two));
}

static void a_wait(void) { TRY(tcuda_stream_synchronize(one)); }

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {
    {"allocation and free, 4 KiB", a_pair}, {"tcuda_memset_async, 4 KiB", a_fill}, {"tcuda_copy_async, 4 KiB", a_copy},
    {"record and wait", an_order},          {"tcuda_stream_synchronize", a_wait},
};
#define CALLS (sizeof calls / sizeof *calls)

static void ignore_trace(const tcuda_trace_t *happened, void *data)
{
    (void)happened;
    ++*(unsigned long *)data;
}

static void ignore_sync(const tcuda_sync_t *sync, void *data)
{
    (void)sync;
    ++*(unsigned long *)data;
}

static unsigned long told;
static uint64_t id;

static void nobody(int begin) { (void)begin; }

static void traced(int begin)
{
    if (begin) {
        TRY(tcuda_trace_register(&id, TCUDA_TRACE_ALL, ignore_trace, &told));
    } else {
        TRY(tcuda_trace_unregister(id));
    }
}

static void debugged(int begin)
{
    TRY(tcuda_sync_debug_set_callback(begin ? ignore_sync : NULL, &told));
    TRY(tcuda_set_sync_debug_mode(begin ? TCUDA_SYNC_WARN : TCUDA_SYNC_DEFAULT));
}

static void sanitized(int begin) { TRY(begin ? tcuda_sanitizer_enable() : tcuda_sanitizer_disable()); }

static const struct {
    const char *name;
    void (*turn)(int begin);
} lookers[] = {{"nobody", nobody}, {"trace", traced}, {"sync debug", debugged}, {"sanitizer", sanitized}};
#define LOOKERS (sizeof lookers / sizeof *lookers)

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double nanoseconds(void (*call)(void), int count)
{
    double spent = 0;
    int done, i;
    for (done = 0; done < count; done += BATCH) {
        const double start = now();
        for (i = 0; i < BATCH; ++i)
            call();
        spent += now() - start;
        TRY(tcuda_synchronize(-1));
    }
    return spent / count;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static double times[CALLS][LOOKERS][ROUNDS];
    const int count = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 2 * BATCH : 200 * BATCH;
    tcuda_init_options_t options = TCUDA_INIT_OPTIONS_INIT;
    size_t c, l;
    int round;
    options.backend = "auto";
    TRY(tcuda_init(&options));
    TRY(tcuda_stream_create(&one, 0, 0));
    TRY(tcuda_stream_create(&two, 0, 0));
    TRY(tcuda_event_create(&event, TCUDA_EVENT_DISABLE_TIMING));
    TRY(tcuda_malloc_cached(&block, 4096, one));
    TRY(tcuda_malloc_cached(&other, 4096, one));
    for (round = 0; round < ROUNDS; ++round) {
        for (l = 0; l < LOOKERS; ++l) {
            lookers[l].turn(1);
            for (c = 0; c < CALLS; ++c)
                times[c][l][round] = nanoseconds(calls[c].call, count);
            lookers[l].turn(0);
        }
    }
    printf("%-28s", tcuda_backend_name());
    for (l = 0; l < LOOKERS; ++l)
        printf("%12s", lookers[l].name);
    printf("  ns a call\n");
    for (c = 0; c < CALLS; ++c) {
        printf("%-28s", calls[c].name);
        for (l = 0; l < LOOKERS; ++l) {
            qsort(times[c][l], ROUNDS, sizeof(double), by_size);
            printf("%12.0f", times[c][l][ROUNDS / 2]);
        }
        printf("\n");
    }
    return told == 0;
}
