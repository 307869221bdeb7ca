/* The end of tcuda where it is hard, on the simulated device: inside a host function, and with a device that is lost. */

#include "check.h"

static tcuda_status_t inside = TCUDA_SUCCESS;

static void end(void *user_data)
{
    (void)user_data;
    inside = tcuda_shutdown();
}

int main(void)
{
    tcuda_sim_live_t live = TCUDA_SIM_LIVE_INIT;
    tcuda_stream_t stream = NULL;
    void *block = NULL;
    int32_t device = -1;

    /* A host function cannot end it: nothing is given back, nothing is lost. */
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, 100, stream));
    CHECK_OK(tcuda_stream_add_host_function(stream, end, NULL));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_STATUS(inside, TCUDA_ERROR_INVALID_STATE);
    CHECK(tcuda_is_initialized());
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_init(NULL));
    CHECK_OK(tcuda_sim_live(&live, TCUDA_DEVICE_ALL));
    CHECK_EQUAL(live.handle_bytes, 0);
    CHECK_EQUAL(live.streams, 0);
    CHECK_EQUAL(live.events, 0);

    /* A lost device stays the current one, and lost, also after the end and a new start. */
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, 100, stream));
    CHECK_OK(tcuda_sim_lose_device(0, 700));
    CHECK_STATUS(tcuda_synchronize(0), TCUDA_ERROR_DEVICE_LOST);
    /* The cache takes back and gives out on a stream that the thread knows; it does not grow. A stream cannot be ended. */
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_malloc_cached(&block, 100, stream));
    CHECK_STATUS(tcuda_malloc_cached(&block, (size_t)1 << 30, stream), TCUDA_ERROR_DEVICE_LOST);
    CHECK_STATUS(tcuda_stream_destroy(stream), TCUDA_ERROR_DEVICE_LOST);
    CHECK_STATUS(tcuda_stream_destroy(stream), TCUDA_ERROR_DEVICE_LOST);
    CHECK_STATUS(tcuda_empty_cache(0), TCUDA_ERROR_DEVICE_LOST);
    CHECK_STATUS(tcuda_empty_cache(0), TCUDA_ERROR_DEVICE_LOST);
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_init(NULL));
    CHECK_STATUS(tcuda_stream_destroy(stream), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(tcuda_current_device(&device));
    CHECK_EQUAL(device, 0);
    CHECK_STATUS(tcuda_malloc_cached(&block, 8 << 20, NULL), TCUDA_ERROR_DEVICE_LOST);
    CHECK(strlen(tcuda_last_error_message()) < 300);
    return CHECK_DONE();
}
