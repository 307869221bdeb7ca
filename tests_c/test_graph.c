/* Graphs: a capture with a fork on two streams, replays with new inputs, a pool that is shared, captures on threads that end without them, and
   beside threads that use the caches. */

#include <pthread.h>

#include "check.h"

enum { BYTES = 4096, THREADS = 4, ROUNDS = 20, CAPTURES = 2000 };

static const tcuda_pool_id_t own = {0, 0};

/* What comes out is what went in, by way of two streams and memory of the pool. */
static void replays_do_what_was_captured(void)
{
    tcuda_graph_t graph = NULL;
    tcuda_stream_t stream = NULL, side = NULL;
    tcuda_event_t fork = NULL, join = NULL;
    tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;
    tcuda_pool_id_t pool = own;
    void *in = NULL, *out = NULL, *between = NULL, *other = NULL;
    bool capturing = false;
    int value;

    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graph_capture_stream(&stream, -1));
    CHECK_OK(tcuda_stream_create(&side, -1, 0));
    CHECK_OK(tcuda_event_create(&fork, TCUDA_EVENT_DISABLE_TIMING));
    CHECK_OK(tcuda_event_create(&join, TCUDA_EVENT_DISABLE_TIMING));
    CHECK_OK(tcuda_host_malloc_cached(&in, BYTES));
    CHECK_OK(tcuda_host_malloc_cached(&out, BYTES));
    CHECK_STATUS(tcuda_graph_replay(graph, stream), TCUDA_ERROR_INVALID_STATE);
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, own, TCUDA_CAPTURE_GLOBAL));
    CHECK_OK(tcuda_malloc_cached(&between, BYTES, stream));
    CHECK_OK(tcuda_copy_async(between, in, BYTES, stream));
    CHECK_OK(tcuda_event_record(fork, stream));
    CHECK_OK(tcuda_stream_wait_event(side, fork));
    CHECK_OK(tcuda_stream_is_capturing(side, &capturing));
    CHECK(capturing);
    CHECK_OK(tcuda_malloc_cached(&other, BYTES, side));
    CHECK_OK(tcuda_copy_async(other, between, BYTES, side));
    CHECK_OK(tcuda_copy_async(out, other, BYTES / 2, side));
    CHECK_OK(tcuda_event_record(join, side));
    CHECK_OK(tcuda_copy_async((char *)out + BYTES / 2, between, BYTES / 2, stream));
    CHECK_OK(tcuda_stream_wait_event(stream, join));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_pool(graph, &pool));
    CHECK(pool.first > 0 && pool.second == 0);
    CHECK_OK(tcuda_graph_pool_stats(&stats, pool));
    CHECK_EQUAL(stats.allocation.all.current, 2);
    for (value = 1; value < 6; value++) {
        memset(in, value, BYTES);
        CHECK_OK(tcuda_graph_replay(graph, value == 3 ? NULL : side));
        CHECK_OK(tcuda_stream_synchronize(value == 3 ? NULL : side));
        CHECK(((char *)out)[0] == value && ((char *)out)[BYTES - 1] == value);
    }
    CHECK_OK(tcuda_free_cached(between));
    CHECK_OK(tcuda_free_cached(other));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_STATUS(tcuda_graph_destroy(graph), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_host_free_cached(in));
    CHECK_OK(tcuda_host_free_cached(out));
    CHECK_OK(tcuda_event_destroy(fork));
    CHECK_OK(tcuda_event_destroy(join));
    CHECK_OK(tcuda_stream_destroy(side));
}

/* The second graph works in the memory of the first. */
static void graphs_share_a_pool(void)
{
    tcuda_graph_t graphs[2] = {NULL, NULL};
    tcuda_stream_t stream = NULL;
    tcuda_pool_id_t pool = own;
    void *block[2] = {NULL, NULL};
    int i;

    CHECK_OK(tcuda_graph_capture_stream(&stream, -1));
    CHECK_OK(tcuda_graph_pool_handle(&pool));
    for (i = 0; i < 2; i++) {
        CHECK_OK(tcuda_graph_create(&graphs[i], TCUDA_GRAPH_KEEP));
        CHECK_OK(tcuda_graph_capture_begin(graphs[i], stream, pool, TCUDA_CAPTURE_THREAD_LOCAL));
        CHECK_OK(tcuda_malloc_cached(&block[i], BYTES, stream));
        CHECK_OK(tcuda_memset_async(block[i], i + 1, BYTES, stream));
        CHECK_OK(tcuda_free_cached(block[i]));
        CHECK_OK(tcuda_graph_capture_end(graphs[i]));
    }
    CHECK(block[0] == block[1]);
    CHECK_OK(tcuda_graph_instantiate(graphs[0]));
    CHECK_OK(tcuda_graph_update(graphs[0], graphs[1]));
    CHECK_OK(tcuda_graph_destroy(graphs[1]));
    CHECK_OK(tcuda_graph_replay(graphs[0], stream));
    CHECK_OK(tcuda_graph_destroy(graphs[0]));
    CHECK_OK(tcuda_stream_synchronize(stream));
}

/* Every third capture is left open: the thread ends, and it with it. */
static void *capture(void *argument)
{
    tcuda_graph_t *graph = (tcuda_graph_t *)argument;
    tcuda_stream_t stream = NULL;
    void *block = NULL;
    int round;

    CHECK_OK(tcuda_stream_create(&stream, -1, 0));
    for (round = 0; round < ROUNDS; round++) {
        CHECK_OK(tcuda_graph_capture_begin(*graph, stream, own, TCUDA_CAPTURE_THREAD_LOCAL));
        CHECK_OK(tcuda_malloc_cached(&block, (size_t)1000 * (size_t)(round + 1), stream));
        CHECK_OK(tcuda_memset_async(block, round, 1000, stream));
        CHECK_OK(tcuda_free_cached(block));
        if (round == ROUNDS - 1)
            break;
        if (round % 3 == 0) {
            CHECK_OK(tcuda_graph_reset(*graph));
            continue;
        }
        CHECK_OK(tcuda_graph_capture_end(*graph));
        CHECK_OK(tcuda_graph_replay(*graph, stream));
        CHECK_OK(tcuda_graph_reset(*graph));
    }
    return NULL;
}

static void captures_of_threads_that_end(void)
{
    tcuda_graph_t graphs[THREADS];
    pthread_t threads[THREADS];
    int i;

    for (i = 0; i < THREADS; i++) {
        CHECK_OK(tcuda_graph_create(&graphs[i], 0));
        CHECK(pthread_create(&threads[i], NULL, capture, &graphs[i]) == 0);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_STATUS(tcuda_graph_capture_end(graphs[i]), TCUDA_ERROR_INVALID_STATE);
        CHECK_OK(tcuda_graph_destroy(graphs[i]));
    }
}

static int over;

/* What other threads do on streams of their own. */
static void *others(void *argument)
{
    void *block = NULL, *host = NULL;
    tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;

    (void)argument;
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        CHECK_OK(tcuda_malloc_cached(&block, 100000, NULL));
        CHECK_OK(tcuda_host_malloc_cached(&host, 3000));
        CHECK_OK(tcuda_memory_stats(&stats, -1));
        CHECK_OK(tcuda_free_cached(block));
        CHECK_OK(tcuda_host_free_cached(host));
        CHECK_OK(tcuda_empty_cache(-1));
        CHECK_OK(tcuda_host_empty_cache());
    }
    return NULL;
}

/* A stream that joins a capture has memory that is not past, of which those ask and which they mark at that moment. */
static void captures_that_are_joined_beside_other_threads(void)
{
    tcuda_stream_t stream = NULL, side = NULL;
    tcuda_graph_t graph = NULL;
    void *kept = NULL, *of_side = NULL, *used = NULL, *host = NULL;
    pthread_t thread;
    int round;

    CHECK_OK(tcuda_stream_create(&stream, -1, 0));
    CHECK_OK(tcuda_stream_create(&side, -1, 0));
    CHECK_OK(tcuda_malloc_cached(&kept, BYTES, stream));
    CHECK(pthread_create(&thread, NULL, others, NULL) == 0);
    for (round = 0; round < CAPTURES; round++) {
        CHECK_OK(tcuda_malloc_cached(&of_side, BYTES, side));
        CHECK_OK(tcuda_malloc_cached(&used, BYTES, stream));
        CHECK_OK(tcuda_host_malloc_cached(&host, BYTES));
        CHECK_OK(tcuda_memset_async(of_side, 0, BYTES, side));
        CHECK_OK(tcuda_copy_async(host, of_side, BYTES, side));
        CHECK_OK(tcuda_record_stream(used, side));
        CHECK_OK(tcuda_free_cached(of_side));
        CHECK_OK(tcuda_free_cached(used));
        CHECK_OK(tcuda_host_free_cached(host));
        CHECK_OK(tcuda_graph_create(&graph, 0));
        CHECK_OK(tcuda_graph_capture_begin(graph, stream, own, round % 2 ? TCUDA_CAPTURE_RELAXED : TCUDA_CAPTURE_THREAD_LOCAL));
        CHECK_OK(tcuda_stream_wait_stream(side, stream));
        CHECK_OK(tcuda_memset_async(kept, 1, 9, side));
        CHECK_OK(tcuda_stream_wait_stream(stream, side));
        CHECK_OK(tcuda_graph_capture_end(graph));
        CHECK_OK(tcuda_graph_destroy(graph));
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK_OK(tcuda_free_cached(kept));
    CHECK_OK(tcuda_stream_destroy(side));
    CHECK_OK(tcuda_stream_destroy(stream));
}

int main(void)
{
    int64_t reserved = -1;

    replays_do_what_was_captured();
    graphs_share_a_pool();
    captures_of_threads_that_end();
    captures_that_are_joined_beside_other_threads();
    CHECK_OK(tcuda_synchronize(-1));
    CHECK_OK(tcuda_empty_cache(-1));
    CHECK_OK(tcuda_memory_stat_get(&reserved, -1, "reserved_bytes.all.current"));
    CHECK_EQUAL(reserved, 0);
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
