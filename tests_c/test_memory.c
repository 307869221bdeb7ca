/* The device cache: blocks come, are written and read, are used on other streams, go, and come again; what is wrong is refused. */

#include <stdlib.h>

#include "check.h"

enum { KIB = 1024, MIB = 1024 * 1024, COUNT = 8 };

static int64_t statistic(const char *key)
{
    int64_t value = -1;

    CHECK_OK(tcuda_memory_stat_get(&value, 0, key));
    return value;
}

static void *allocate(size_t size, tcuda_stream_t stream)
{
    void *block = NULL;

    CHECK_OK(tcuda_malloc_cached(&block, size, stream));
    CHECK(block != NULL);
    return block;
}

static int holds(const void *block, size_t size, int value, tcuda_stream_t stream)
{
    unsigned char *bytes = (unsigned char *)malloc(size);
    size_t i;
    int same = 1;

    if (!CHECK(bytes != NULL))
        return 0;
    memset(bytes, value + 1, size);
    CHECK_OK(tcuda_copy_async(bytes, block, size, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    for (i = 0; i < size; i++)
        same = same && bytes[i] == (unsigned char)value;
    free(bytes);
    return same;
}

static void contents(tcuda_stream_t stream)
{
    static const size_t sizes[COUNT] = {1, 511, 512, 513, 64 * KIB, MIB, MIB + 1, 5 * MIB};
    void *blocks[COUNT];
    int i;

    for (i = 0; i < COUNT; i++) {
        blocks[i] = allocate(sizes[i], stream);
        CHECK_OK(tcuda_memset_async(blocks[i], i + 1, sizes[i], stream));
    }
    for (i = 0; i < COUNT; i++)
        CHECK(holds(blocks[i], sizes[i], i + 1, stream));
    CHECK_EQUAL(statistic("allocation.all.current"), COUNT);
    CHECK_EQUAL(statistic("allocated_bytes.large_pool.current"), MIB + 512 + 5 * MIB);
    for (i = 0; i < COUNT; i++)
        CHECK_OK(tcuda_free_cached(blocks[i]));
    CHECK_EQUAL(statistic("allocation.all.current"), 0);
}

static void wrong(tcuda_stream_t stream)
{
    char on_stack[16];
    void *block = NULL, *again = NULL;

    CHECK_OK(tcuda_malloc_cached(&block, 0, stream));
    CHECK(block == NULL);
    CHECK_OK(tcuda_free_cached(NULL));
    CHECK_STATUS(tcuda_malloc_cached(NULL, 1, stream), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tcuda_malloc_cached(&block, SIZE_MAX, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(tcuda_malloc_cached(&block, (size_t)1 << 59, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(tcuda_malloc_cached_aligned(&block, 1, 3, stream), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(block == NULL);
    CHECK_STATUS(tcuda_free_cached(on_stack), TCUDA_ERROR_INVALID_POINTER);
    block = allocate(2048, stream);
    CHECK_STATUS(tcuda_free_cached((char *)block + 512), TCUDA_ERROR_INVALID_POINTER);
    CHECK_STATUS(tcuda_record_stream((char *)block + 1, stream), TCUDA_ERROR_INVALID_POINTER);
    CHECK_OK(tcuda_free_cached(block));
    CHECK_STATUS(tcuda_free_cached(block), TCUDA_ERROR_INVALID_POINTER);
    /* Its stream has it again at once. */
    again = allocate(2048, stream);
    CHECK(again == block);
    CHECK_OK(tcuda_free_cached_on(again, stream));
}

static void two_streams(tcuda_stream_t a, tcuda_stream_t b)
{
    int i;

    for (i = 0; i < 50; i++) {
        void *block = allocate(100 * KIB, a), *copy = allocate(100 * KIB, b);

        CHECK_OK(tcuda_memset_async(block, i, 100 * KIB, a));
        CHECK_OK(tcuda_stream_wait_stream(b, a));
        CHECK_OK(tcuda_copy_async(copy, block, 100 * KIB, b));
        CHECK_OK(tcuda_record_stream(block, b));
        CHECK_OK(tcuda_free_cached(block));
        block = allocate(100 * KIB, a);
        CHECK_OK(tcuda_memset_async(block, 255, 100 * KIB, a));
        CHECK(holds(copy, 100 * KIB, i, b));
        CHECK_OK(tcuda_free_cached(block));
        CHECK_OK(tcuda_free_cached_on(copy, a));
    }
}

static void a_batch(tcuda_stream_t stream)
{
    static const size_t sizes[3] = {100, 0, 3 * MIB};
    void *blocks[3] = {NULL, NULL, NULL};

    CHECK_OK(tcuda_malloc_cached_batch(blocks, sizes, 3, stream));
    CHECK(blocks[0] != NULL && blocks[1] == NULL && blocks[2] != NULL);
    CHECK_OK(tcuda_free_cached_batch(blocks, 3));
    CHECK_STATUS(tcuda_free_cached_batch(blocks, 3), TCUDA_ERROR_INVALID_POINTER);
}

static void out_of_memory(tcuda_stream_t stream)
{
    void *block = NULL, *more = NULL;
    int64_t before = statistic("num_ooms");

    CHECK_OK(tcuda_empty_cache(0));
    CHECK_OK(tcuda_set_memory_limit(16 * MIB, 0));
    block = allocate(12 * MIB, stream);
    CHECK_STATUS(tcuda_malloc_cached(&more, 12 * MIB, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK(more == NULL);
    CHECK(strstr(tcuda_last_error_message(), "Tried to allocate 12.00 MiB") != NULL);
    CHECK_EQUAL(statistic("num_ooms"), before + 1);
    CHECK_OK(tcuda_set_memory_limit(UINT64_MAX, 0));
    more = allocate(12 * MIB, stream);
    CHECK_OK(tcuda_free_cached(block));
    CHECK_OK(tcuda_free_cached(more));
}

struct cache {
    void *block;
    int asked, told;
};

static bool give_away(const tcuda_pressure_t *pressure, void *user_data)
{
    struct cache *cache = (struct cache *)user_data;
    bool gave = cache->block != NULL;

    cache->asked++;
    CHECK(pressure->struct_size >= sizeof *pressure);
    CHECK(pressure->stage >= TCUDA_PRESSURE_WAIT && pressure->stage <= TCUDA_PRESSURE_FAIL);
    CHECK_EQUAL(pressure->wanted, 12 * MIB);
    CHECK_EQUAL(pressure->limit, 16 * MIB);
    CHECK_OK(tcuda_free_cached(cache->block));
    cache->block = NULL;
    return gave;
}

static void note(const tcuda_oom_t *oom, void *user_data)
{
    CHECK_EQUAL(oom->wanted, 12 * MIB);
    CHECK(strstr(oom->message, "Tried to allocate 12.00 MiB") != NULL);
    ((struct cache *)user_data)->told++;
}

/* A program's own cache gives way; when it has nothing left, the observer is told. */
static void pressure(tcuda_stream_t stream)
{
    struct cache cache = {NULL, 0, 0};
    uint64_t callback = 0, observer = 0;
    void *block, *more = NULL;

    CHECK_OK(tcuda_empty_cache(0));
    CHECK_OK(tcuda_set_memory_limit(16 * MIB, 0));
    cache.block = allocate(12 * MIB, stream);
    CHECK_OK(tcuda_register_pressure_callback(&callback, give_away, &cache));
    CHECK_OK(tcuda_register_oom_observer(&observer, note, &cache));
    block = allocate(12 * MIB, stream);
    CHECK(cache.block == NULL && cache.asked == 1 && cache.told == 0);
    CHECK_STATUS(tcuda_malloc_cached(&more, 12 * MIB, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cache.asked == 4 && cache.told == 1);
    CHECK_OK(tcuda_unregister_pressure_callback(callback));
    CHECK_OK(tcuda_unregister_oom_observer(observer));
    CHECK_STATUS(tcuda_unregister_oom_observer(observer), TCUDA_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tcuda_malloc_cached(&more, 12 * MIB, stream), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cache.asked == 4 && cache.told == 1);
    CHECK_OK(tcuda_set_memory_limit(UINT64_MAX, 0));
    CHECK_OK(tcuda_free_cached(block));
}

static void options(void)
{
    char text[512];
    uint64_t limit = 0;

    CHECK_STATUS(tcuda_set_alloc_conf("expandable_segment:True"), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(tcuda_last_error_message(), "Did you mean expandable_segments?") != NULL);
    CHECK_OK(tcuda_set_alloc_conf("per_process_memory_fraction:0.5"));
    CHECK_OK(tcuda_get_alloc_conf(text, sizeof text, NULL));
    CHECK(strstr(text, "per_process_memory_fraction:0.5") != NULL);
    CHECK_OK(tcuda_get_memory_limit(&limit, 0));
    CHECK(limit != UINT64_MAX);
    CHECK_OK(tcuda_set_alloc_conf(NULL));
}

static void figures(void)
{
    tcuda_memory_stats_t stats;
    size_t needed = 0;
    char *table;

    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(tcuda_memory_stats(&stats, 0));
    CHECK_EQUAL(stats.allocation.all.current, 0);
    CHECK_EQUAL(stats.allocation.all.allocated, stats.allocation.all.freed);
    CHECK_EQUAL(stats.reserved_bytes.all.current, statistic("reserved_bytes.all.current"));
    CHECK_TEXT(tcuda_memory_stat_key(0), "active.all.allocated");
    CHECK_OK(tcuda_memory_summary(NULL, 0, &needed, 0, false));
    table = (char *)malloc(needed);
    if (CHECK(table != NULL)) {
        CHECK_OK(tcuda_memory_summary(table, needed, NULL, 0, false));
        CHECK(strstr(table, "| Allocated memory      |") != NULL);
        free(table);
    }
}

int main(void)
{
    tcuda_stream_t a = NULL, b = NULL;
    void *last;

    CHECK_EQUAL(statistic("reserved_bytes.all.current"), 0);
    CHECK_OK(tcuda_stream_create(&a, 0, 0));
    CHECK_OK(tcuda_stream_create(&b, 0, 0));
    contents(a);
    contents(NULL);
    wrong(a);
    two_streams(a, b);
    a_batch(b);
    out_of_memory(a);
    pressure(a);
    options();
    figures();
    /* The stream goes before its memory does. */
    last = allocate(3 * MIB, a);
    CHECK_OK(tcuda_record_stream(last, b));
    CHECK_OK(tcuda_stream_destroy(a));
    CHECK_OK(tcuda_free_cached(last));
    CHECK_OK(tcuda_stream_destroy(b));
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    CHECK_EQUAL(statistic("reserved_bytes.all.current"), 0);
    CHECK_EQUAL(statistic("active.all.current"), 0);
    CHECK_OK(tcuda_shutdown());
    CHECK_OK(tcuda_free_cached(last));
    return CHECK_DONE();
}
