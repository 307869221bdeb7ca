/* Who looks on, from C and with threads: trace functions come and go while others work, the synchronization debug mode counts and refuses, and
 * the sanitizer sees a missing wait and leaves a program in order alone. */

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS 50
#define BYTES 4096

struct told {
    long kinds[11];
    long waits;
    long reports;
};

static void count_trace(const tcuda_trace_t *happened, void *data)
{
    struct told *told = (struct told *)data;
    if (happened->kind >= 1 && happened->kind <= 10)
        (void)__atomic_add_fetch(&told->kinds[happened->kind], 1, __ATOMIC_RELAXED);
}

static void count_wait(const tcuda_sync_t *sync, void *data)
{
    CHECK(sync->function[0] != '\0' && sync->call[0] != '\0');
    (void)__atomic_add_fetch(&((struct told *)data)->waits, 1, __ATOMIC_RELAXED);
}

static void count_report(const tcuda_sanitizer_report_t *report, void *data)
{
    CHECK(report->text[0] != '\0' && report->json[0] == '{');
    (void)__atomic_add_fetch(&((struct told *)data)->reports, 1, __ATOMIC_RELAXED);
}

/* Two streams that hand blocks to each other in order. */
static void *work(void *unused)
{
    tcuda_stream_t one = NULL, two = NULL;
    int round;
    CHECK_OK(tcuda_stream_create(&one, 0, 0));
    CHECK_OK(tcuda_stream_create(&two, 0, 0));
    for (round = 0; round < ROUNDS; ++round) {
        void *from = NULL, *to = NULL;
        CHECK_OK(tcuda_malloc_cached(&from, BYTES, one));
        CHECK_OK(tcuda_malloc_cached(&to, BYTES, two));
        CHECK_OK(tcuda_memset_async(from, round, BYTES, one));
        CHECK_OK(tcuda_stream_wait_stream(two, one));
        CHECK_OK(tcuda_copy_async(to, from, BYTES, two));
        CHECK_OK(tcuda_free_cached(from));
        CHECK_OK(tcuda_free_cached(to));
    }
    CHECK_OK(tcuda_stream_synchronize(one));
    CHECK_OK(tcuda_stream_synchronize(two));
    CHECK_OK(tcuda_stream_destroy(one));
    CHECK_OK(tcuda_stream_destroy(two));
    return unused;
}

static void *come_and_go(void *data)
{
    int round;
    for (round = 0; round < ROUNDS; ++round) {
        uint64_t id = 0;
        CHECK_OK(tcuda_trace_register(&id, round % 11, count_trace, data));
        CHECK_OK(tcuda_synchronize(0));
        CHECK_OK(tcuda_trace_unregister(id));
    }
    return NULL;
}

static void with_threads(void *(*other)(void *), void *data)
{
    pthread_t threads[THREADS + 1];
    int i;
    for (i = 0; i < THREADS; ++i)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    CHECK(pthread_create(&threads[THREADS], NULL, other, data) == 0);
    for (i = 0; i <= THREADS; ++i)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void traces(void)
{
    static struct told told, passing;
    uint64_t id = 0;
    CHECK_OK(tcuda_trace_register(&id, TCUDA_TRACE_ALL, count_trace, &told));
    with_threads(come_and_go, &passing);
    CHECK_OK(tcuda_trace_unregister(id));
    CHECK_EQUAL(told.kinds[TCUDA_TRACE_MEMORY_ALLOCATION], 2 * THREADS * ROUNDS);
    CHECK_EQUAL(told.kinds[TCUDA_TRACE_MEMORY_DEALLOCATION], 2 * THREADS * ROUNDS);
    CHECK_EQUAL(told.kinds[TCUDA_TRACE_EVENT_RECORD], THREADS * ROUNDS);
    CHECK_EQUAL(told.kinds[TCUDA_TRACE_STREAM_CREATION], 2 * THREADS);
    CHECK_EQUAL(told.kinds[TCUDA_TRACE_DEVICE_SYNCHRONIZATION], ROUNDS);
    CHECK_STATUS(tcuda_trace_unregister(id), TCUDA_ERROR_INVALID_HANDLE);
}

static void *switch_modes(void *unused)
{
    int round;
    for (round = 0; round < ROUNDS; ++round)
        CHECK_OK(tcuda_set_sync_debug_mode(round % 2));
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_DEFAULT));
    return unused;
}

static void modes(void)
{
    static struct told told;
    tcuda_sync_stats_t stats = TCUDA_SYNC_STATS_INIT;
    int32_t mode = 7;
    CHECK_OK(tcuda_sync_debug_set_callback(count_wait, &told));
    with_threads(switch_modes, NULL);
    CHECK_OK(tcuda_set_thread_sync_debug_mode(TCUDA_SYNC_ERROR));
    CHECK_STATUS(tcuda_synchronize(0), TCUDA_ERROR_INVALID_STATE);
    CHECK_OK(tcuda_set_thread_sync_debug_mode(TCUDA_SYNC_WARN));
    told.waits = 0;
    CHECK_OK(tcuda_synchronize(0));
    CHECK_EQUAL(told.waits, 1);
    CHECK_OK(tcuda_set_thread_sync_debug_mode(TCUDA_SYNC_FOLLOW));
    CHECK_OK(tcuda_get_sync_debug_mode(&mode));
    CHECK_EQUAL(mode, TCUDA_SYNC_DEFAULT);
    CHECK_OK(tcuda_sync_debug_stats(&stats));
    CHECK(stats.num_refused >= 1 && stats.num_waits >= 1 && stats.nanoseconds >= stats.longest_nanoseconds);
    CHECK_OK(tcuda_sync_debug_set_callback(NULL, NULL));
}

static void *ask(void *unused)
{
    int round;
    for (round = 0; round < ROUNDS; ++round) {
        uint64_t count = 77;
        CHECK_OK(tcuda_sanitizer_report_count(&count));
        CHECK_EQUAL(count, 0);
    }
    return unused;
}

static void sanitizer(void)
{
    static struct told told;
    tcuda_stream_t one = NULL, two = NULL;
    void *block = NULL;
    uint64_t count = 77;
    CHECK_OK(tcuda_sanitizer_enable());
    CHECK_OK(tcuda_sanitizer_set_callback(count_report, &told));
    with_threads(ask, NULL);
    CHECK_OK(tcuda_stream_create(&one, 0, 0));
    CHECK_OK(tcuda_stream_create(&two, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, BYTES, one));
    CHECK_OK(tcuda_memset_async(block, 1, BYTES, one));
    CHECK_OK(tcuda_sanitizer_annotate_access(block, BYTES, TCUDA_ACCESS_READ, two, "a_kernel"));
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(told.reports, 1);
    CHECK_OK(tcuda_stream_synchronize(two));
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_sanitizer_set_callback(NULL, NULL));
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK_OK(tcuda_stream_destroy(one));
    CHECK_OK(tcuda_stream_destroy(two));
}

int main(void)
{
    CHECK_OK(tcuda_set_device(0));
    traces();
    modes();
    sanitizer();
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
