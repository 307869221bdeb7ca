/* What tcuda_shutdown ends and what it leaves, as docs/THREADS.md lists it, looked at when tcuda has started again. */

#include "check.h"

static int asked, told, said;

static void listen(int32_t level, const char *message, void *user_data)
{
    (void)level;
    (void)message;
    (void)user_data;
    said++;
}

static bool give(const tcuda_pressure_t *pressure, void *user_data)
{
    (void)pressure;
    (void)user_data;
    asked++;
    return false;
}

static void hear(const tcuda_trace_t *event, void *user_data)
{
    (void)event;
    (void)user_data;
    told++;
}

static void *no_memory(size_t size, int32_t device, tcuda_stream_t stream, void *user_data)
{
    (void)size;
    (void)device;
    (void)stream;
    (void)user_data;
    return NULL;
}

static void none(void *ptr, size_t size, int32_t device, tcuda_stream_t stream, void *user_data)
{
    (void)ptr;
    (void)size;
    (void)device;
    (void)stream;
    (void)user_data;
}

static int32_t nothing(const tcuda_tensor_t *inputs, size_t input_count, const tcuda_tensor_t *outputs, size_t output_count,
                       tcuda_stream_t stream, void *user_data)
{
    (void)inputs;
    (void)input_count;
    (void)outputs;
    (void)output_count;
    (void)stream;
    (void)user_data;
    return 0;
}

int main(void)
{
    const tcuda_dtype_t floats = {2, 32, 1};
    const tcuda_pool_id_t own = {0, 0};
    const int32_t devices[1] = {0};
    const int64_t shape[1] = {4};
    tcuda_callable_t callable = {nothing, NULL, NULL, 0, NULL, 0};
    tcuda_stream_t stream = NULL;
    tcuda_event_t event = NULL;
    tcuda_mem_pool_t pool = NULL;
    tcuda_graph_t graph = NULL;
    tcuda_graphed_callable_t graphed = NULL;
    tcuda_generator_t generator = NULL;
    tcuda_jit_t jit = NULL;
    tcuda_communicator_t comm = NULL;
    tcuda_snapshot_t snapshot = NULL;
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    tcuda_pluggable_allocator_t allocator = NULL;
    tcuda_nvtx_domain_t domain = NULL;
    tcuda_managed_tensor_t *tensor = NULL, *output = NULL;
    tcuda_pool_id_t graph_pool;
    uint64_t pressure = 0, trace = 0, id[2];
    int32_t rank = -1, mode = -1;
    void *block = NULL, *pinned = NULL;
    bool complete;

    CHECK_OK(tcuda_set_log_callback(listen, NULL));
    CHECK_OK(tcuda_malloc_cached(&block, 100, NULL));
    CHECK_OK(tcuda_host_malloc_cached(&pinned, 100));
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_event_create(&event, TCUDA_EVENT_DEFAULT));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_mem_pool_create(&pool, 0, NULL));
    CHECK_OK(tcuda_graph_create(&graph, 0));
    CHECK_OK(tcuda_graphed_callable_create(&graphed, &callable, 1, 0, own, NULL));
    CHECK_OK(tcuda_generator_create(&generator, 0));
    CHECK_OK(tcuda_jit_create(&jit, "template <typename T> T same(T x) { return x; }", NULL, 0));
    CHECK_OK(tcuda_communicator_init_all(&comm, devices, 1, NULL));
    CHECK_OK(tcuda_memory_snapshot(&snapshot, 0));
    CHECK_OK(tcuda_pluggable_allocator_create(&allocator, no_memory, none, NULL));
    CHECK_OK(tcuda_nvtx_domain_create(&domain, "lasting"));
    CHECK_OK(tcuda_tensor_empty(&tensor, TCUDA_DEVICE_CPU, floats, 1, shape, NULL));
    ((float *)tensor->tensor.data)[3] = 7;
    CHECK_OK(tcuda_register_pressure_callback(&pressure, give, NULL));
    CHECK_OK(tcuda_trace_register(&trace, TCUDA_TRACE_MEMORY_ALLOCATION, hear, NULL));
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_WARN));

    CHECK_OK(tcuda_shutdown());
    CHECK_STATUS(tcuda_memory_annotate("x"), TCUDA_ERROR_SHUT_DOWN);
    CHECK_STATUS(tcuda_set_device(-1), TCUDA_ERROR_SHUT_DOWN);
    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_init(NULL));
    said = 0;

    CHECK_STATUS(tcuda_free_cached(block), TCUDA_ERROR_INVALID_POINTER);
    CHECK_STATUS(tcuda_host_free_cached(pinned), TCUDA_ERROR_INVALID_POINTER);
    CHECK_STATUS(tcuda_stream_destroy(stream), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_event_query(event, &complete), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_mem_pool_id(pool, id), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_graph_pool(graph, &graph_pool), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_graphed_callable_destroy(graphed), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_generator_seed(generator, id), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_jit_destroy(jit), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_communicator_rank(comm, &rank), TCUDA_ERROR_INVALID_HANDLE);

    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    CHECK(info.segments > 0);
    CHECK_OK(tcuda_snapshot_destroy(snapshot));
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_STATUS(tcuda_pluggable_allocator_destroy(allocator), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_nvtx_domain_name_category(domain, 1, "one"));
    CHECK_OK(tcuda_nvtx_domain_destroy(domain));
    CHECK(((float *)tensor->tensor.data)[3] == 7);
    CHECK_OK(tcuda_tensor_to(&output, NULL, &tensor->tensor, 0, floats, false, true, NULL));
    CHECK_OK(tcuda_tensor_destroy(output));
    CHECK_OK(tcuda_tensor_destroy(tensor));
    CHECK(told > 0);
    CHECK(said > 0);
    CHECK_OK(tcuda_trace_unregister(trace));
    CHECK_OK(tcuda_get_sync_debug_mode(&mode));
    CHECK_EQUAL(mode, TCUDA_SYNC_WARN);
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_DEFAULT));

    /* More than the device has fails at once; more than it has left is asked for. */
    CHECK_STATUS(tcuda_malloc_cached(&block, (size_t)1 << 50, NULL), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(asked, 0);
    CHECK_OK(tcuda_set_memory_limit(64 << 20, 0));
    CHECK_STATUS(tcuda_malloc_cached(&block, 128 << 20, NULL), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK(asked > 0);
    CHECK_OK(tcuda_unregister_pressure_callback(pressure));
    CHECK_OK(tcuda_set_log_callback(NULL, NULL));
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
