/* tcuda. With BENCH_CUDA the streams are made by CUDA, as those of the others are; without, by tcuda, for its simulated device. With
 * BENCH_PINNED it is the cache of pinned memory, which has no streams. */

#include "anchor.h"
#include "tcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef BENCH_CUDA
#include "cuda_streams.h"
#else
void bench_thread(void)
{
}

void *bench_stream_create(void)
{
    tcuda_stream_t stream = NULL;
    return tcuda_stream_create(&stream, 0, 0) == TCUDA_SUCCESS ? stream : NULL;
}
#endif

static int64_t figure(const char *key)
{
    int64_t value = 0;
#ifdef BENCH_PINNED
    tcuda_host_memory_stat_get(&value, key);
#else
    tcuda_memory_stat_get(&value, 0, key);
#endif
    return value;
}

void bench_begin(void)
{
    if (tcuda_init(NULL) != TCUDA_SUCCESS || tcuda_set_device(0) != TCUDA_SUCCESS) {
        fprintf(stderr, "%s\n", tcuda_last_error_message());
        exit(1);
    }
}

#ifdef BENCH_PINNED

void bench_end(void)
{
    tcuda_host_empty_cache();
}

void *bench_alloc(size_t size, void *stream)
{
    void *ptr;
    (void)stream;
    return tcuda_host_malloc_cached(&ptr, size) == TCUDA_SUCCESS ? ptr : NULL;
}

void bench_free(void *ptr, size_t size, void *stream)
{
    (void)size;
    (void)stream;
    tcuda_host_free_cached(ptr);
}

uint64_t bench_reserved_peak(void)
{
    return (uint64_t)figure("allocated_bytes.peak");
}

void bench_reset_peak(void)
{
    tcuda_reset_peak_host_memory_stats();
}

#else

void bench_end(void)
{
    tcuda_empty_cache(0);
}

void *bench_alloc(size_t size, void *stream)
{
    void *ptr;
    return tcuda_malloc_cached(&ptr, size, stream) == TCUDA_SUCCESS ? ptr : NULL;
}

void bench_free(void *ptr, size_t size, void *stream)
{
    (void)size;
    (void)stream;
    tcuda_free_cached(ptr);
}

uint64_t bench_reserved_peak(void)
{
    return (uint64_t)figure("reserved_bytes.all.peak");
}

void bench_reset_peak(void)
{
    tcuda_reset_peak_memory_stats(0);
}

int bench_pool(int open)
{
    static tcuda_mem_pool_t pool;
    if (open)
        return tcuda_mem_pool_create(&pool, 0, NULL) == TCUDA_SUCCESS && tcuda_mem_pool_begin(pool) == TCUDA_SUCCESS;
    return tcuda_mem_pool_end(pool) == TCUDA_SUCCESS && tcuda_mem_pool_destroy(pool) == TCUDA_SUCCESS;
}

#endif

int bench_history(size_t entries)
{
    return tcuda_memory_record_history(entries != 0 ? TCUDA_HISTORY_ALL : TCUDA_HISTORY_OFF, entries, true, 0) == TCUDA_SUCCESS;
}

/* Every call on the simulated device; on a real one those for memory, which the statistics count. */
uint64_t bench_driver_calls(void)
{
    uint64_t calls = 0;
    if (strcmp(tcuda_backend_name(), "sim") == 0)
        tcuda_sim_call_count(&calls, NULL);
    else
#ifdef BENCH_PINNED
        calls = (uint64_t)(figure("num_host_alloc") + figure("num_host_free"));
#else
        calls = (uint64_t)(figure("num_device_alloc") + figure("num_device_free"));
#endif
    return calls;
}
