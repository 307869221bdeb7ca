/* A pool goes to sleep and wakes up at the same addresses with the same contents, again and again, while another pool works.
 * test_pause [ROUNDS] */

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

#define MIB ((size_t)1 << 20)
#define BLOCKS 12

static int stop, worked;

/* Blocks of another pool, written and read without a break. */
static void *work(void *argument)
{
    tcuda_mem_pool_t pool = (tcuda_mem_pool_t)argument;
    tcuda_stream_t stream;
    unsigned seed = 7;
    unsigned char byte[2];

    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        void *block = NULL;
        size_t size;
        seed = seed * 1664525u + 1013904223u;
        size = 1000 + seed % (4 * MIB);
        CHECK_OK(tcuda_mem_pool_malloc(&block, size, stream, pool));
        CHECK_OK(tcuda_memset_async(block, (int32_t)(seed >> 24), size, stream));
        CHECK_OK(tcuda_copy_async(byte, block, 1, stream));
        CHECK_OK(tcuda_copy_async(byte + 1, (char *)block + size - 1, 1, stream));
        CHECK_OK(tcuda_stream_synchronize(stream));
        CHECK(byte[0] == seed >> 24 && byte[1] == seed >> 24);
        CHECK_OK(tcuda_free_cached(block));
        worked++;
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    return NULL;
}

int main(int count, char **arguments)
{
    const int rounds = count > 1 ? atoi(arguments[1]) : 10;
    tcuda_mem_pool_t asleep = NULL, awake = NULL;
    tcuda_stream_t stream;
    tcuda_memory_stats_t stats = TCUDA_MEMORY_STATS_INIT;
    void *blocks[BLOCKS];
    size_t sizes[BLOCKS], held = 0, given;
    unsigned char *bytes = (unsigned char *)malloc(8 * MIB);
    pthread_t worker;
    int round, at;

    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_mem_pool_create(&asleep, 0, NULL));
    CHECK_OK(tcuda_mem_pool_create(&awake, 0, NULL));
    for (at = 0; at < BLOCKS; at++) {
        sizes[at] = 300 + (size_t)at * at * 50021;
        CHECK_OK(tcuda_mem_pool_malloc(&blocks[at], sizes[at], stream, asleep));
        CHECK_OK(tcuda_memset_async(blocks[at], at + 1, sizes[at], stream));
    }
    if (tcuda_mem_pool_pause(asleep, &given, TCUDA_PAUSE_KEEP) == TCUDA_ERROR_NOT_SUPPORTED) {
        printf("no virtual memory here: a pause is refused\n");
    } else {
        CHECK_OK(tcuda_mem_pool_resume(asleep));
        CHECK_EQUAL(pthread_create(&worker, NULL, work, awake), 0);
        for (round = 0; round < rounds; round++) {
            int right = 1;
            CHECK_OK(tcuda_mem_pool_stats(asleep, &stats));
            held = (size_t)stats.reserved_bytes.all.current;
            CHECK_OK(tcuda_mem_pool_pause(asleep, &given, TCUDA_PAUSE_KEEP));
            CHECK_EQUAL(given, held);
            CHECK_OK(tcuda_mem_pool_stats(asleep, &stats));
            CHECK_EQUAL(stats.reserved_bytes.all.current, 0);
            CHECK_EQUAL(stats.allocation.all.current, BLOCKS);
            CHECK_OK(tcuda_mem_pool_resume(asleep));
            for (at = 0; at < BLOCKS; at++) {
                size_t byte;
                CHECK_OK(tcuda_copy_async(bytes, blocks[at], sizes[at], stream));
                CHECK_OK(tcuda_stream_synchronize(stream));
                for (byte = 0; byte < sizes[at]; byte++)
                    right = right && bytes[byte] == (unsigned char)(at + 1 + round);
                /* The next round has other contents. */
                CHECK_OK(tcuda_memset_async(blocks[at], at + 2 + round, sizes[at], stream));
            }
            CHECK(right);
        }
        __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        CHECK_EQUAL(pthread_join(worker, NULL), 0);
        CHECK(worked > 0);
        printf("%d rounds of %zu bytes, while the other pool made %d blocks\n", rounds, held, worked);
    }
    for (at = 0; at < BLOCKS; at++)
        CHECK_OK(tcuda_free_cached(blocks[at]));
    CHECK_OK(tcuda_mem_pool_destroy(asleep));
    CHECK_OK(tcuda_mem_pool_destroy(awake));
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    free(bytes);
    CHECK_OK(tcuda_shutdown());
    return CHECK_DONE();
}
