/* Pinned host memory: blocks that host and device use, the streams that use them, memory of the program, and the end. */

#include <stdlib.h>

#include "check.h"

enum { KIB = 1024, MIB = 1024 * 1024, COUNT = 7 };

static int64_t statistic(const char *key)
{
    int64_t value = -1;

    CHECK_OK(tcuda_host_memory_stat_get(&value, key));
    return value;
}

static unsigned char *allocate(size_t size)
{
    void *block = NULL;

    CHECK_OK(tcuda_host_malloc_cached(&block, size));
    CHECK(block != NULL);
    return (unsigned char *)block;
}

static int holds(const unsigned char *bytes, size_t size, int value)
{
    size_t i;
    int same = 1;

    for (i = 0; i < size; i++)
        same = same && bytes[i] == (unsigned char)value;
    return same;
}

/* Through the device and back. */
static int travels(unsigned char *block, size_t size, int value, tcuda_stream_t stream)
{
    void *far = NULL;
    int same;

    memset(block, value, size);
    CHECK_OK(tcuda_malloc_cached(&far, size, stream));
    CHECK_OK(tcuda_copy_async(far, block, size, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    memset(block, value + 1, size);
    CHECK_OK(tcuda_copy_async(block, far, size, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    same = holds(block, size, value);
    CHECK_OK(tcuda_free_cached(far));
    return same;
}

static void blocks(tcuda_stream_t stream)
{
    static const size_t sizes[COUNT] = {1, 512, 3585, 4096, 64 * KIB, MIB + 1, 7 * MIB};
    unsigned char *all[COUNT];
    bool pinned = false;
    int i;

    for (i = 0; i < COUNT; i++)
        all[i] = allocate(sizes[i]);
    CHECK_EQUAL(statistic("active_requests.current"), COUNT);
    CHECK_EQUAL(statistic("active_bytes.current"), 512 + 512 + 4096 + 4096 + 64 * KIB + MIB + 4096 + 7 * MIB);
    for (i = 0; i < COUNT; i++) {
        CHECK(travels(all[i], sizes[i], i + 1, stream));
        CHECK_OK(tcuda_is_pinned(&pinned, all[i] + sizes[i] - 1));
        CHECK(pinned);
    }
    for (i = 0; i < COUNT; i++)
        CHECK_OK(tcuda_host_free_cached(all[i]));
    CHECK_STATUS(tcuda_host_free_cached(all[0]), TCUDA_ERROR_INVALID_POINTER);
    CHECK_STATUS(tcuda_host_free_cached(all), TCUDA_ERROR_INVALID_POINTER);
    CHECK_OK(tcuda_host_empty_cache());
    CHECK_EQUAL(statistic("active_requests.current"), 0);
    CHECK_EQUAL(statistic("allocated_bytes.current"), 0);
    CHECK_EQUAL(statistic("num_host_alloc"), statistic("num_host_free"));
}

/* A copy that is under way when its block is freed reads what was there. */
static void in_order(tcuda_stream_t stream)
{
    unsigned char *back = (unsigned char *)malloc(MIB);
    void *far = NULL;
    int round;

    CHECK_OK(tcuda_malloc_cached(&far, MIB, stream));
    for (round = 0; round < 20; round++) {
        unsigned char *block = allocate(MIB), *next;
        memset(block, round, MIB);
        CHECK_OK(tcuda_copy_async(far, block, MIB, stream));
        CHECK_OK(tcuda_host_record_stream(block, stream));
        CHECK_OK(tcuda_host_free_cached(block));
        next = allocate(MIB);
        memset(next, 255, MIB);
        CHECK_OK(tcuda_copy_async(back, far, MIB, stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
        CHECK(holds(back, MIB, round));
        CHECK_OK(tcuda_host_free_cached(next));
    }
    CHECK_OK(tcuda_free_cached(far));
    free(back);
}

static void foreign(tcuda_stream_t stream)
{
    size_t size = 3 * MIB;
    unsigned char *memory = (unsigned char *)malloc(size);
    bool pinned = true;

    CHECK_OK(tcuda_host_register(memory, size, 0));
    CHECK_OK(tcuda_is_pinned(&pinned, memory + MIB));
    CHECK(pinned);
    CHECK(travels(memory, size, 3, stream));
    CHECK_STATUS(tcuda_host_register(memory + MIB, 10, TCUDA_HOST_REGISTER_READ_ONLY), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tcuda_host_unregister(memory + MIB), TCUDA_ERROR_INVALID_POINTER);
    CHECK_OK(tcuda_host_unregister(memory));
    CHECK_STATUS(tcuda_host_unregister(memory), TCUDA_ERROR_INVALID_POINTER);
    CHECK_OK(tcuda_is_pinned(&pinned, memory));
    CHECK(!pinned);
    free(memory);
}

static void at_the_limit(void)
{
    uint64_t limit = 0;
    unsigned char *block;
    void *more = NULL;

    CHECK_OK(tcuda_host_set_memory_limit(8 * MIB));
    CHECK_OK(tcuda_host_get_memory_limit(&limit));
    CHECK_EQUAL(limit, 8 * MIB);
    block = allocate(6 * MIB);
    CHECK_STATUS(tcuda_host_malloc_cached(&more, 3 * MIB), TCUDA_ERROR_OUT_OF_HOST_MEMORY);
    CHECK(more == NULL && strstr(tcuda_last_error_message(), "The limit is 8.00 MiB") != NULL);
    CHECK_OK(tcuda_host_free_cached(block));
    block = allocate(8 * MIB);
    CHECK_OK(tcuda_host_free_cached(block));
    CHECK_OK(tcuda_host_set_memory_limit(UINT64_MAX));
}

/* What is in use and what is registered goes too. */
static void the_end(void)
{
    tcuda_host_memory_stats_t stats = TCUDA_HOST_MEMORY_STATS_INIT;
    unsigned char *memory = (unsigned char *)malloc(MIB), *block = allocate(5 * MIB), *kept = allocate(4096);
    void *late = NULL;

    CHECK_OK(tcuda_host_register(memory, MIB, 0));
    CHECK_OK(tcuda_host_free_cached(kept));
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_host_free_cached(block));
    CHECK_OK(tcuda_host_unregister(memory));
    CHECK_STATUS(tcuda_host_malloc_cached(&late, 1), TCUDA_ERROR_SHUT_DOWN);
    CHECK_OK(tcuda_init(NULL));
    CHECK_OK(tcuda_host_memory_stats(&stats));
    CHECK_EQUAL(stats.allocated_bytes.current, 0);
    CHECK_EQUAL(stats.active_requests.current, 0);
    CHECK_EQUAL(stats.active_requests.allocated, 0);
    CHECK_EQUAL(stats.active_bytes.peak, 0);
    CHECK_STATUS(tcuda_host_free_cached(block), TCUDA_ERROR_INVALID_POINTER);
    block = allocate(4096);
    CHECK_OK(tcuda_host_register(memory, MIB, 0));
    CHECK_OK(tcuda_host_unregister(memory));
    CHECK_OK(tcuda_host_free_cached(block));
    CHECK_OK(tcuda_shutdown());
    free(memory);
}

int main(void)
{
    tcuda_stream_t stream = NULL;

    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    blocks(stream);
    in_order(stream);
    foreign(stream);
    at_the_limit();
    CHECK_OK(tcuda_stream_destroy(stream));
    the_end();
    return CHECK_DONE();
}
