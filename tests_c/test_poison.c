/* The shadow mode: a write through a stale pointer is found, with the place; new memory holds a pattern. */

#include <stdlib.h>

#include "check.h"

static char reported[1024];

static void keep(int32_t level, const char *message, void *user_data)
{
    (void)user_data;
    if (level == TCUDA_LOG_ERROR)
        strncpy(reported, message, sizeof reported - 1);
}

int main(void)
{
    unsigned char bytes[100];
    uint64_t count = 77;
    tcuda_stream_t stream;
    void *block = NULL, *again = NULL;
    int i, fresh = 1;

    CHECK_EQUAL(setenv("TCUDA_MEMORY_POISON", "1", 1), 0);
    CHECK_OK(tcuda_set_log_callback(keep, NULL));
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_malloc_cached(&block, sizeof bytes, stream));
    CHECK_OK(tcuda_copy_async(bytes, block, sizeof bytes, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (i = 0; i < (int)sizeof bytes; i++)
        fresh = fresh && bytes[i] == 0xFF;
    CHECK(fresh);
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_memory_check_poison(&count, 0));
    CHECK_EQUAL(count, 0);
    CHECK_OK(tcuda_memset_async((char *)block + 40, 1, 8, stream));
    CHECK_OK(tcuda_malloc_cached(&again, sizeof bytes, stream));
    CHECK(again == block);
    CHECK(strstr(reported, "8 bytes between offsets 40 and 47") != NULL);
    CHECK_OK(tcuda_memory_check_poison(&count, TCUDA_DEVICE_ALL));
    CHECK_EQUAL(count, 1);
    CHECK_OK(tcuda_free_cached(again));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    CHECK_OK(tcuda_set_log_callback(NULL, NULL));
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
