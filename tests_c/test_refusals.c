/* What is refused, and what is said then: tcuda_shutdown by functions that are told of what happened, structs that end inside of a field, a group
 * from before a shutdown, inputs that a callable does not have, pools that never were. */

#include "check.h"

#include <stdint.h>
#include <string.h>

static int told;

static void ends_tcuda(void)
{
    told++;
    CHECK_STATUS(tcuda_shutdown(), TCUDA_ERROR_INVALID_STATE);
}

static void traced(const tcuda_trace_t *happened, void *unused)
{
    (void)happened;
    (void)unused;
    ends_tcuda();
}

static void waited(const tcuda_sync_t *sync, void *unused)
{
    (void)sync;
    (void)unused;
    ends_tcuda();
}

static void reported(const tcuda_sanitizer_report_t *report, void *unused)
{
    (void)report;
    (void)unused;
    ends_tcuda();
}

static void nobody_is_told_and_ends_tcuda(void)
{
    tcuda_stream_t one = NULL, two = NULL;
    uint64_t number = 0;
    void *block = NULL;

    CHECK_OK(tcuda_trace_register(&number, TCUDA_TRACE_ALL, traced, NULL));
    CHECK_OK(tcuda_malloc_cached(&block, 1000, NULL));
    CHECK_OK(tcuda_trace_unregister(number));
    CHECK(told > 0);
    told = 0;
    CHECK_OK(tcuda_sync_debug_set_callback(waited, NULL));
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_WARN));
    CHECK_OK(tcuda_synchronize(0));
    CHECK_OK(tcuda_set_sync_debug_mode(TCUDA_SYNC_DEFAULT));
    CHECK_OK(tcuda_sync_debug_set_callback(NULL, NULL));
    CHECK(told > 0);
    told = 0;
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_sanitizer_enable());
    CHECK_OK(tcuda_sanitizer_set_callback(reported, NULL));
    CHECK_OK(tcuda_stream_create(&one, 0, 0));
    CHECK_OK(tcuda_stream_create(&two, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, 400, one));
    CHECK_OK(tcuda_sanitizer_annotate_access(block, 400, TCUDA_ACCESS_WRITE, one, NULL));
    CHECK_OK(tcuda_sanitizer_annotate_access(block, 400, TCUDA_ACCESS_WRITE, two, NULL));
    CHECK_OK(tcuda_sanitizer_set_callback(NULL, NULL));
    CHECK_OK(tcuda_sanitizer_disable());
    CHECK(told > 0);
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_stream_destroy(one));
    CHECK_OK(tcuda_stream_destroy(two));
}

static void structs_end_where_fields_do(void)
{
    tcuda_mem_pool_options_t options = TCUDA_MEM_POOL_OPTIONS_INIT;
    tcuda_init_options_t init = TCUDA_INIT_OPTIONS_INIT;
    tcuda_mem_pool_t pool = NULL;
    size_t size;

    for (size = sizeof(size_t); size <= sizeof options; size++) {
        int whole = size == sizeof(size_t) || size == offsetof(tcuda_mem_pool_options_t, use_on_oom)
            || size == offsetof(tcuda_mem_pool_options_t, no_split) || size == sizeof options;
        options.struct_size = size;
        CHECK_STATUS(tcuda_mem_pool_create(&pool, 0, &options), whole ? TCUDA_SUCCESS : TCUDA_ERROR_INVALID_ARGUMENT);
        if (whole)
            CHECK_OK(tcuda_mem_pool_destroy(pool));
        else
            CHECK(strstr(tcuda_last_error_message(), "inside of a field") != NULL);
    }
    init.struct_size = offsetof(tcuda_init_options_t, cudart_path) + 4;
    CHECK_STATUS(tcuda_init(&init), TCUDA_ERROR_INVALID_ARGUMENT);
    init.struct_size = offsetof(tcuda_init_options_t, cudart_path);
    CHECK_OK(tcuda_init(&init));
}

static int32_t nothing(const tcuda_tensor_t *inputs, size_t input_count, const tcuda_tensor_t *outputs, size_t output_count,
                       tcuda_stream_t stream, void *unused)
{
    (void)inputs;
    (void)input_count;
    (void)outputs;
    (void)output_count;
    (void)stream;
    (void)unused;
    return 0;
}

static void one_input_too_many(void)
{
    const tcuda_dtype_t floats = {2, 32, 1};
    const int64_t shape[1] = {4};
    const tcuda_pool_id_t own = {0, 0};
    tcuda_callable_t callable = {nothing, NULL, NULL, 0, NULL, 0};
    tcuda_graphed_callable_t graphed = NULL;
    tcuda_managed_tensor_t *tensor = NULL;
    tcuda_tensor_t inputs[2];

    if (!CHECK_OK(tcuda_tensor_empty(&tensor, 0, floats, 1, shape, NULL)))
        return;
    /* What lies behind the only input is no tensor. */
    memset(inputs, 0x5a, sizeof inputs);
    inputs[0] = tensor->tensor;
    callable.inputs = inputs;
    callable.input_count = 1;
    CHECK_OK(tcuda_graphed_callable_create(&graphed, &callable, 1, 0, own, NULL));
    CHECK_STATUS(tcuda_graphed_callable_call(graphed, 0, inputs, 2, NULL), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "2 inputs were given; the callable was captured with 1") != NULL);
    CHECK_STATUS(tcuda_graphed_callable_call(graphed, 0, inputs, 0, NULL), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tcuda_graphed_callable_call(graphed, 0, inputs, 1, NULL));
    CHECK_OK(tcuda_graphed_callable_call(graphed, 0, NULL, 0, NULL));
    CHECK_OK(tcuda_synchronize(0));
    CHECK_OK(tcuda_graphed_callable_destroy(graphed));
    CHECK_OK(tcuda_tensor_destroy(tensor));
}

int main(void)
{
    tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;
    tcuda_pool_id_t never = {123456789, 0};

    nobody_is_told_and_ends_tcuda();
    structs_end_where_fields_do();
    one_input_too_many();

    CHECK_STATUS(tcuda_set_thread_sync_debug_mode(7), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "-1 (follow)") != NULL);
    CHECK_STATUS(tcuda_set_sync_debug_mode(-1), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "follow") == NULL);
    CHECK_STATUS(tcuda_graph_pool_stats(&stats, never), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "There is no graph pool (123456789, 0)") != NULL);

    CHECK_OK(tcuda_communicator_group_start());
    CHECK_OK(tcuda_communicator_group_start());
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_init(NULL));
    CHECK_STATUS(tcuda_communicator_group_end(), TCUDA_ERROR_INVALID_STATE);
    CHECK_OK(tcuda_communicator_group_start());
    CHECK_OK(tcuda_communicator_group_end());
    CHECK_STATUS(tcuda_communicator_group_end(), TCUDA_ERROR_INVALID_STATE);
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
