/* A thread that is cancelled (pthread_cancel, deferred) while it is in a call ends after that call, whatever the call does: it waits, reads and
 * writes files, runs a compiler, calls the program. Also one that is cancelled as it ends. */

#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char path[64];
static tcuda_communicator_id_t id;
static int waiting;

static tcuda_status_t first_of_all(void)
{
    void *block = NULL;
    tcuda_status_t status = tcuda_malloc_cached(&block, 4096, TCUDA_STREAM_CURRENT);
    return status == TCUDA_SUCCESS ? tcuda_free_cached(block) : status;
}

static tcuda_status_t more_memory(void)
{
    void *block = NULL;
    tcuda_status_t status = tcuda_malloc_cached(&block, (size_t)8 << 20, TCUDA_STREAM_CURRENT);
    return status == TCUDA_SUCCESS ? tcuda_free_cached(block) : status;
}

static tcuda_status_t empty_cache(void)
{
    return tcuda_empty_cache(TCUDA_DEVICE_ALL);
}

static void holds_up(void *unused)
{
    struct timespec moment = {0, 20000000};
    (void)unused;
    nanosleep(&moment, NULL);
}

static tcuda_status_t wait_for_device(void)
{
    tcuda_status_t status = tcuda_stream_add_host_function(NULL, holds_up, NULL);
    return status == TCUDA_SUCCESS ? tcuda_synchronize(0) : status;
}

static tcuda_status_t write_snapshot(void)
{
    tcuda_snapshot_t snapshot = NULL;
    tcuda_status_t status = tcuda_memory_snapshot(&snapshot, 0);
    if (status == TCUDA_SUCCESS)
        status = tcuda_snapshot_write(snapshot, path);
    tcuda_snapshot_destroy(snapshot);
    return status;
}

static tcuda_status_t compile(void)
{
    int64_t shape = 4;
    tcuda_dtype_t f32 = {2, 32, 1};
    tcuda_managed_tensor_t *tensor = NULL, *out = NULL;
    const tcuda_tensor_t *input;
    tcuda_jit_t jit = NULL;
    tcuda_status_t status;
    char source[128];

    if (!CHECK_OK(tcuda_tensor_empty(&tensor, 0, f32, 1, &shape, TCUDA_STREAM_CURRENT)))
        return TCUDA_ERROR_INTERNAL;
    input = &tensor->tensor;
    /* A source that no cache of compiled functions has. */
    snprintf(source, sizeof source, "template <typename T> T cancelled_%ld(T x) { return x + T(1); }", (long)getpid());
    CHECK_OK(tcuda_jit_create(&jit, source, NULL, 0));
    status = tcuda_jit_call(jit, &out, &input, 1, NULL, 0, NULL);
    CHECK_OK(tcuda_tensor_destroy(out));
    CHECK_OK(tcuda_tensor_destroy(tensor));
    CHECK_OK(tcuda_jit_destroy(jit));
    return status;
}

static void heard(const tcuda_trace_t *happened, void *count)
{
    (void)happened;
    *(int *)count += 1;
    pthread_testcancel();
}

static tcuda_status_t call_program(void)
{
    int count = 0;
    uint64_t number;
    tcuda_status_t status = tcuda_trace_register(&number, TCUDA_TRACE_ALL, heard, &count);
    if (status == TCUDA_SUCCESS)
        status = tcuda_synchronize(0);
    CHECK_OK(tcuda_trace_unregister(number));
    CHECK(count > 0);
    return status;
}

/* Waits for the other rank, which comes later. */
static tcuda_status_t wait_for_rank(void)
{
    tcuda_communicator_t comm = NULL;
    tcuda_status_t status = tcuda_communicator_init_rank(&comm, 2, &id, 0, 0, NULL);
    CHECK_OK(tcuda_communicator_destroy(comm));
    return status;
}

static tcuda_status_t (*const CALLS[])(void) = {first_of_all, more_memory, empty_cache, wait_for_device, write_snapshot, compile, call_program};

static void *call_cancelled(void *at)
{
    int before;

    /* It stands, and is for the next point at which threads are cancelled. */
    pthread_cancel(pthread_self());
    CHECK_OK(CALLS[(intptr_t)at]());
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CHECK_EQUAL(before, PTHREAD_CANCEL_ENABLE);
    CHECK_OK(tcuda_synchronize(0));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    CHECK_EQUAL(before, PTHREAD_CANCEL_DISABLE);
    pthread_testcancel();
    CHECK(!"a thread went on that was cancelled");
    return NULL;
}

static void *wait_cancelled(void *unused)
{
    __atomic_store_n(&waiting, 1, __ATOMIC_RELEASE);
    CHECK_OK(wait_for_rank());
    pthread_testcancel();
    CHECK(!"a thread went on that was cancelled");
    return unused;
}

static void *end_cancelled(void *unused)
{
    void *block = NULL, *pinned = NULL;
    tcuda_event_t event = NULL;
    tcuda_graph_t graph = NULL;
    tcuda_stream_t stream = NULL;
    tcuda_pool_id_t none = {0, 0};

    CHECK_OK(tcuda_malloc_cached(&block, 4096, TCUDA_STREAM_CURRENT));
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_host_malloc_cached(&pinned, 4096));
    CHECK_OK(tcuda_host_free_cached(pinned));
    CHECK_OK(tcuda_event_create(&event, 0));
    CHECK_OK(tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_destroy(event));
    /* Its end ends the capture. */
    CHECK_OK(tcuda_graph_capture_stream(&stream, 0));
    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, none, TCUDA_CAPTURE_THREAD_LOCAL));
    pthread_cancel(pthread_self());
    return unused;
}

int main(void)
{
    pthread_t thread;
    tcuda_communicator_t comm = NULL;
    struct timespec moment = {0, 50000000};
    int32_t count = 0;
    size_t at;
    void *result;

    snprintf(path, sizeof path, "/tmp/tcuda-cancel-%ld.json", (long)getpid());
    for (at = 0; at < sizeof CALLS / sizeof *CALLS; at++) {
        CHECK_EQUAL(pthread_create(&thread, NULL, call_cancelled, (void *)(intptr_t)at), 0);
        CHECK_EQUAL(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
    }
    remove(path);

    CHECK_EQUAL(pthread_create(&thread, NULL, end_cancelled, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_OK(tcuda_synchronize(0));

    CHECK_OK(tcuda_device_count(&count));
    if (count > 1 && CHECK_OK(tcuda_communicator_unique_id(&id))) {
        CHECK_EQUAL(pthread_create(&thread, NULL, wait_cancelled, NULL), 0);
        while (!__atomic_load_n(&waiting, __ATOMIC_ACQUIRE))
            nanosleep(&moment, NULL);
        nanosleep(&moment, NULL);
        CHECK_EQUAL(pthread_cancel(thread), 0);
        nanosleep(&moment, NULL);
        CHECK_OK(tcuda_communicator_init_rank(&comm, 2, &id, 1, 1, NULL));
        CHECK_EQUAL(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK_OK(tcuda_communicator_destroy(comm));
    }
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
