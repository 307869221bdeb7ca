/* A pluggable allocator in plain C, loaded by name, under a pool: statistics, other streams, what happens when it has nothing, and the end.
 * libarena.so of plugin_arena.c lies in the folder of the program or in ../lib. */

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)

static char path[4096];

static int find_library(void)
{
    const char *const names[] = {"libarena.so", "../lib/libarena.so"};
    char folder[2048];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    int at;
    if (length <= 0)
        return 0;
    folder[length] = 0;
    *(strrchr(folder, '/') + 1) = 0;
    for (at = 0; at < 2; at++) {
        snprintf(path, sizeof path, "%s%s", folder, names[at]);
        if (access(path, R_OK) == 0)
            return 1;
    }
    return 0;
}

static int64_t current(const tcuda_pool_stat_t *stat) { return stat->all.current; }

/* Work that takes until it is let go. */
static void hold(void *gate)
{
    while (!__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE))
        sched_yield();
}

/* Segments of the pool in a snapshot: how many, and their bytes. */
static uint64_t in_snapshot(tcuda_mem_pool_t pool, uint64_t *bytes)
{
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    tcuda_snapshot_segment_t segment = TCUDA_SNAPSHOT_SEGMENT_INIT;
    tcuda_snapshot_t snapshot = NULL;
    uint64_t at, id = 0, found = 0;

    CHECK_OK(tcuda_mem_pool_id(pool, &id));
    CHECK_OK(tcuda_memory_snapshot(&snapshot, 0));
    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    *bytes = 0;
    for (at = 0; at < info.segments; at++) {
        CHECK_OK(tcuda_snapshot_segment(snapshot, &segment, at));
        if (segment.pool_id[0] == 0 && segment.pool_id[1] == id) {
            CHECK(!segment.is_expandable);
            found++;
            *bytes += segment.total_size;
        }
    }
    CHECK_OK(tcuda_snapshot_destroy(snapshot));
    return found;
}

int main(void)
{
    tcuda_pluggable_allocator_t allocator = NULL;
    tcuda_mem_pool_options_t options = TCUDA_MEM_POOL_OPTIONS_INIT;
    tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;
    tcuda_mem_pool_t pool = NULL;
    tcuda_stream_t stream, other;
    void *arena = NULL, *blocks[20], *next = NULL;
    unsigned char bytes[64];
    void *library;
    void (*bring)(void *);
    void (*refuse)(int);
    int (*out)(void), (*misled)(void);
    uint64_t bytes_held;
    int at, gate = 0;

    CHECK(find_library());
    library = dlopen(path, RTLD_NOW);
    CHECK(library != NULL);
    if (library == NULL)
        return CHECK_DONE();
    *(void **)&bring = dlsym(library, "arena_bring");
    *(void **)&refuse = dlsym(library, "arena_refuse");
    *(void **)&out = dlsym(library, "arena_out");
    *(void **)&misled = dlsym(library, "arena_misled");

    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_stream_create(&other, 0, 0));
    /* The allocator's own memory begins behind the block's start. */
    CHECK_OK(tcuda_malloc_cached(&arena, 90 * MIB, stream));
    bring((char *)arena + 2 * MIB);

    CHECK_STATUS(tcuda_pluggable_allocator_load(&allocator, path, "arena_alloc", "no_such_name"), TCUDA_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tcuda_pluggable_allocator_load(&allocator, path, "arena_alloc", "arena_free"));
    options.allocator = allocator;
    CHECK_OK(tcuda_mem_pool_create(&pool, 0, &options));

    /* Blocks of several sizes, in few segments; the pool's figures are right. */
    for (at = 0; at < 20; at++)
        CHECK_OK(tcuda_mem_pool_malloc(&blocks[at], 1000 + (size_t)at * 10000, stream, pool));
    CHECK_OK(tcuda_mem_pool_stats(pool, &stats));
    CHECK_EQUAL(current(&stats.allocation), 20);
    CHECK_EQUAL(current(&stats.segment), out());
    CHECK(out() >= 1 && out() <= 3);
    CHECK_EQUAL(current(&stats.requested_bytes), 20 * 1000 + 190 * 10000);
    CHECK_EQUAL(in_snapshot(pool, &bytes_held), out());
    CHECK_EQUAL(bytes_held, current(&stats.reserved_bytes));
    CHECK_OK(tcuda_memset_async(blocks[7], 42, 1000, stream));
    CHECK_OK(tcuda_copy_async(bytes, blocks[7], sizeof bytes, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_EQUAL(bytes[63], 42);

    /* While another stream uses a block it is not handed out again; then it is. */
    CHECK_OK(tcuda_stream_add_host_function(other, hold, &gate));
    CHECK_OK(tcuda_record_stream(blocks[19], other));
    CHECK_OK(tcuda_free_cached(blocks[19]));
    CHECK_OK(tcuda_mem_pool_malloc(&next, 1000 + 19 * 10000, stream, pool));
    CHECK(next != blocks[19]);
    CHECK_OK(tcuda_mem_pool_stats(pool, &stats));
    CHECK_EQUAL(current(&stats.active) - current(&stats.allocation), 1);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    CHECK_OK(tcuda_stream_synchronize(other));
    CHECK_OK(tcuda_mem_pool_stats(pool, &stats));
    CHECK_EQUAL(current(&stats.active) - current(&stats.allocation), 0);
    CHECK_OK(tcuda_free_cached(next));

    /* It has nothing: free memory goes back to it, and it is asked again; then the request fails, and all is as before. */
    refuse(1);
    CHECK_OK(tcuda_mem_pool_malloc(&next, 3 * MIB, stream, pool));
    CHECK_OK(tcuda_free_cached(next));
    refuse(100);
    CHECK_OK(tcuda_mem_pool_trim(pool));
    CHECK_STATUS(tcuda_mem_pool_malloc(&next, 3 * MIB, stream, pool), TCUDA_ERROR_OUT_OF_MEMORY);
    refuse(0);
    CHECK_STATUS(tcuda_mem_pool_malloc(&next, 30 * MIB, stream, pool), TCUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(tcuda_mem_pool_malloc(&next, 3 * MIB, stream, pool));
    CHECK_OK(tcuda_free_cached(next));

    CHECK_STATUS(tcuda_pluggable_allocator_destroy(allocator), TCUDA_ERROR_INVALID_STATE);
    for (at = 0; at < 19; at++)
        CHECK_OK(tcuda_free_cached(blocks[at]));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    CHECK_EQUAL(out(), 0);
    CHECK_EQUAL(misled(), 0);
    CHECK_OK(tcuda_pluggable_allocator_destroy(allocator));
    CHECK_OK(tcuda_free_cached(arena));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
