/* Threads with the smallest stack that docs/THREADS.md names: the first use of everything but what compiles, each in a fresh process. Where it does
 * not fit, that process ends by a signal. CUDA's own libraries want more. */

#include "check.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a sanitizer adds to each function is not tcuda's. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 512 << 10 };
#else
enum { STACK = 32 << 10 };
#endif

static const tcuda_dtype_t F32 = {2, 32, 1}, F16 = {2, 16, 1}, I64 = {0, 64, 1};
static const int64_t SHAPE[2] = {32, 32};

static tcuda_managed_tensor_t *made(int32_t device, tcuda_dtype_t dtype, int32_t ndim)
{
    tcuda_managed_tensor_t *tensor = NULL;
    CHECK_OK(tcuda_tensor_empty(&tensor, device, dtype, ndim, SHAPE, NULL));
    return tensor;
}

static void memory(void)
{
    tcuda_stream_t stream = NULL;
    void *blocks[3] = {NULL, NULL, NULL};
    static char text[1 << 16];
    size_t needed;

    CHECK_OK(tcuda_malloc_cached(&blocks[0], 1000, NULL));
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&blocks[1], 1000, stream));
    CHECK_OK(tcuda_malloc_cached(&blocks[2], (size_t)30 << 20, stream));
    CHECK_OK(tcuda_record_stream(blocks[2], NULL));
    CHECK_OK(tcuda_free_cached(blocks[0]));
    CHECK_OK(tcuda_free_cached(blocks[1]));
    CHECK_OK(tcuda_free_cached(blocks[2]));
    CHECK_OK(tcuda_memory_summary(text, sizeof text, &needed, 0, false));
    CHECK_OK(tcuda_config_dump(text, sizeof text, &needed));
    CHECK_STATUS(tcuda_malloc_cached(&blocks[0], (size_t)1 << 50, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(tcuda_empty_cache(0));
    CHECK_OK(tcuda_host_malloc_cached(&blocks[0], 5000));
    CHECK_OK(tcuda_host_free_cached(blocks[0]));
    CHECK_OK(tcuda_host_empty_cache());
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void sanitizer(void)
{
    tcuda_stream_t one = NULL, two = NULL;
    tcuda_event_t event = NULL;
    void *block = NULL;
    uint64_t count = 0;

    CHECK_OK(tcuda_sanitizer_enable());
    CHECK_OK(tcuda_stream_create(&one, 0, 0));
    CHECK_OK(tcuda_stream_create(&two, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, 4000, one));
    CHECK_OK(tcuda_sanitizer_annotate_access(block, 4000, TCUDA_ACCESS_WRITE, one, "one"));
    CHECK_OK(tcuda_sanitizer_annotate_access(block, 4000, TCUDA_ACCESS_WRITE, two, "two"));
    CHECK_OK(tcuda_event_create(&event, 0));
    CHECK_OK(tcuda_event_record(event, one));
    CHECK_OK(tcuda_event_wait(event, two));
    CHECK_OK(tcuda_memset_async(block, 1, 4000, two));
    CHECK_OK(tcuda_sanitizer_report_count(&count));
    CHECK_EQUAL(count, 1);
    CHECK_OK(tcuda_free_cached(block));
}

static void graph(void)
{
    tcuda_pool_id_t none = {0, 0};
    tcuda_graph_t graph = NULL;
    tcuda_stream_t stream = NULL;
    tcuda_mem_pool_t pool = NULL;
    tcuda_generator_t generator = NULL;
    tcuda_managed_tensor_t *tensor = made(0, F32, 2);
    void *block = NULL;

    CHECK_OK(tcuda_default_generator(&generator, 0));
    CHECK_OK(tcuda_graph_capture_stream(&stream, 0));
    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graph_capture_begin(graph, stream, none, TCUDA_CAPTURE_THREAD_LOCAL));
    CHECK_OK(tcuda_malloc_cached(&block, 100000, stream));
    CHECK_OK(tcuda_memset_async(block, 1, 100000, stream));
    CHECK_OK(tcuda_random_uniform(&tensor->tensor, 0, 1, generator, stream));
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_graph_capture_end(graph));
    CHECK_OK(tcuda_graph_replay(graph, stream));
    CHECK_OK(tcuda_synchronize(0));
    CHECK_OK(tcuda_graph_destroy(graph));
    CHECK_OK(tcuda_mem_pool_create(&pool, 0, NULL));
    CHECK_OK(tcuda_mem_pool_begin(pool));
    CHECK_OK(tcuda_malloc_cached(&block, 100000, NULL));
    CHECK_OK(tcuda_mem_pool_end(pool));
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_mem_pool_trim(pool));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_tensor_destroy(tensor));
}

static void snapshot(void)
{
    static const char *const ENDS[] = {"pickle", "json", "html"};
    char path[64];
    void *block = NULL;
    size_t at;

    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, 1000, true, -1));
    CHECK_OK(tcuda_malloc_cached(&block, 1000, NULL));
    CHECK_OK(tcuda_free_cached(block));
    for (at = 0; at < 3; at++) {
        snprintf(path, sizeof path, "/tmp/tcuda-stack-%ld.%s", (long)getpid(), ENDS[at]);
        CHECK_OK(tcuda_memory_dump_snapshot(path));
        CHECK_EQUAL(remove(path), 0);
    }
}

static void tensors(void)
{
    tcuda_managed_tensor_t *one = made(0, F32, 2), *two = made(0, F32, 2), *half = NULL, *indices = made(0, I64, 1);
    tcuda_tensor_origin_t origin;
    float value = 0.5f;

    CHECK_OK(tcuda_tensor_fill(&one->tensor, &value, F32, NULL));
    CHECK_OK(tcuda_random_bernoulli_tensor(&two->tensor, &one->tensor, NULL, NULL));
    CHECK_OK(tcuda_random_normal(&two->tensor, 0, 1, NULL, NULL));
    CHECK_OK(tcuda_random_permutation(&indices->tensor, NULL, NULL));
    CHECK_OK(tcuda_tensor_to(&half, &origin, &two->tensor, 0, F16, false, true, NULL));
    CHECK_OK(tcuda_tensor_destroy(half));
    CHECK_OK(tcuda_tensor_to(&half, &origin, &two->tensor, TCUDA_DEVICE_CPU, F16, false, true, NULL));
    CHECK_OK(tcuda_tensor_destroy(half));
    CHECK_OK(tcuda_tensor_destroy(one));
    CHECK_OK(tcuda_tensor_destroy(two));
    CHECK_OK(tcuda_tensor_destroy(indices));
}

static void devices(void)
{
    tcuda_device_properties_t properties = TCUDA_DEVICE_PROPERTIES_INIT;
    tcuda_telemetry_t telemetry = TCUDA_TELEMETRY_INIT;
    tcuda_communicator_t comms[2] = {NULL, NULL};
    tcuda_managed_tensor_t *copies[2] = {NULL, NULL}, *sum = NULL;
    const tcuda_tensor_t *inputs[2];
    static const int32_t BOTH[2] = {0, 1};
    int32_t count = 0, at;

    CHECK_OK(tcuda_device_count(&count));
    CHECK_OK(tcuda_get_device_properties(&properties, 0));
    tcuda_telemetry_read(&telemetry, 0, 0);
    if (count < 2)
        return;
    sum = made(0, F32, 2);
    CHECK_OK(tcuda_comm_broadcast(copies, &sum->tensor, BOTH, 2));
    CHECK_OK(tcuda_tensor_destroy(sum));
    for (at = 0; at < 2; at++)
        inputs[at] = &copies[at]->tensor;
    CHECK_OK(tcuda_comm_reduce_add(&sum, inputs, 2, 0));
    CHECK_OK(tcuda_tensor_destroy(sum));
    CHECK_OK(tcuda_comm_gather(&sum, inputs, 2, 0, 0));
    CHECK_OK(tcuda_tensor_destroy(sum));
    CHECK_OK(tcuda_communicator_init_all(comms, BOTH, 2, NULL));
    CHECK_OK(tcuda_communicator_group_start());
    for (at = 0; at < 2; at++)
        CHECK_OK(tcuda_communicator_all_reduce(comms[at], inputs[at], inputs[at], TCUDA_REDUCE_SUM, NULL));
    CHECK_OK(tcuda_communicator_group_end());
    for (at = 0; at < 2; at++) {
        CHECK_OK(tcuda_communicator_synchronize(comms[at], NULL, 0));
        CHECK_OK(tcuda_communicator_destroy(comms[at]));
        CHECK_OK(tcuda_tensor_destroy(copies[at]));
    }
}

static void shares(void)
{
    tcuda_ipc_handle_t handle;
    void *block = NULL;

    CHECK_OK(tcuda_malloc_cached(&block, 1000, NULL));
    CHECK_OK(tcuda_ipc_export(&handle, block, 1000, 1, NULL));
    CHECK_OK(tcuda_free_cached(block));
}

static void ends(void)
{
    memory();
    CHECK_OK(tcuda_shutdown());
}

typedef void (*use_t)(void);
static const use_t USES[] = {memory, sanitizer, graph, snapshot, tensors, devices, shares, ends};

static void *runs(void *at)
{
    USES[(intptr_t)at]();
    return NULL;
}

int main(void)
{
    size_t at;

    for (at = 0; at < sizeof USES / sizeof *USES; at++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            pthread_attr_t small;
            pthread_t thread;
            CHECK_EQUAL(pthread_attr_init(&small), 0);
            CHECK_EQUAL(pthread_attr_setstacksize(&small, STACK), 0);
            CHECK_EQUAL(pthread_create(&thread, &small, runs, (void *)(intptr_t)at), 0);
            CHECK_EQUAL(pthread_join(thread, NULL), 0);
            _exit(check_failed != 0);
        }
        CHECK_EQUAL(waitpid(child, &status, 0), child);
        if (!CHECK_EQUAL(status, 0))
            fprintf(stderr, "    the use %d\n", (int)at);
    }
    return CHECK_DONE();
}
