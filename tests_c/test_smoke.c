/* The library loads, says which backend it has, and does work. */

#include <stdlib.h>

#include "check.h"

int main(void)
{
    int32_t count = -1;
    tcuda_stream_t stream = NULL;
    tcuda_event_t event = NULL;
    bool complete = false;
    void *block = NULL;
    unsigned char byte = 0;

    CHECK(getenv("TCUDA_BACKEND") != NULL);
    CHECK_TEXT(tcuda_backend_name(), getenv("TCUDA_BACKEND"));
    CHECK_OK(tcuda_device_count(&count));
    CHECK(count >= 1);
    CHECK(tcuda_device_count(NULL) != TCUDA_SUCCESS);
    CHECK(strlen(tcuda_last_error_message()) > 0);
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_event_create(&event, TCUDA_EVENT_DISABLE_TIMING));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_event_query(event, &complete));
    CHECK(complete);
    CHECK_OK(tcuda_malloc_cached(&block, 1000, stream));
    CHECK_OK(tcuda_memset_async(block, 42, 1000, stream));
    CHECK_OK(tcuda_copy_async(&byte, (char *)block + 999, 1, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQUAL(byte, 42);
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    return CHECK_DONE();
}
