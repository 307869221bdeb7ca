/* What a request for memory costs beside many of something else, and what each of those takes of the host's memory.
 *
 *     many          a hundred and a thousand of each, and ten thousand of what is cheap
 *     many --quick  a hundred, to see that it runs
 *
 * pair   ns of an allocation of 4 KiB and its free
 * mixed  ns of an allocation and a free, of 64 blocks of 24 MiB and a bit, when all sizes were there before
 * more   us of an allocation that finds nothing at hand, of 30 MiB and more
 * stats  us of tcuda_memory_stats
 * KiB    what each takes of the host, by what the process has resident */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tcuda.h"

#define TRY(call) \
    if ((call) != TCUDA_SUCCESS) { \
        fprintf(stderr, "%s\n", tcuda_last_error_message()); \
        exit(1); \
    }
#define MOST 10000
#define MIB ((size_t)1 << 20)

static tcuda_stream_t stream, held;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *allocate(size_t size, tcuda_stream_t on)
{
    void *block;
    TRY(tcuda_malloc_cached(&block, size, on));
    return block;
}

static void release(void *block) { TRY(tcuda_free_cached(block)); }

static long resident(void)
{
    long all, there = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &all, &there) != 2)
        there = 0;
    if (file != NULL)
        fclose(file);
    return there * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---- What there are many of ---------------------------------------------------------------------------------------------------- */

static void *things[MOST];
static pthread_t threads[MOST];
static pthread_barrier_t barrier;
static atomic_int is_open;

static void nothing(int count) { (void)count; }

static void blocks_begin(int count)
{
    while (count-- > 0)
        things[count] = allocate(64 << 10, stream);
}

static void blocks_end(int count)
{
    while (count-- > 0)
        release(things[count]);
}

/* Not for ever: what the driver does meanwhile may wait for it. */
static void gate(void *unused)
{
    int i;
    (void)unused;
    for (i = 0; i < 20000 && !is_open; i++)
        usleep(1000);
}

/* Freed, and used by a stream that comes no further. */
static void waiting_begin(int count)
{
    int i;
    blocks_begin(count);
    atomic_store(&is_open, 0);
    TRY(tcuda_stream_add_host_function(held, gate, NULL));
    for (i = 0; i < count; i++) {
        TRY(tcuda_record_stream(things[i], held));
        release(things[i]);
    }
}

static void waiting_end(int count)
{
    (void)count;
    atomic_store(&is_open, 1);
    TRY(tcuda_synchronize(0));
}

/* With memory of their own that is free. */
static void streams_begin(int count)
{
    while (count-- > 0) {
        tcuda_stream_t *made = (tcuda_stream_t *)&things[count];
        TRY(tcuda_stream_create(made, 0, 0));
        release(allocate(MIB, *made));
    }
}

static void streams_end(int count)
{
    while (count-- > 0)
        TRY(tcuda_stream_destroy((tcuda_stream_t)things[count]));
}

static void *thread(void *unused)
{
    release(allocate(4096, stream));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

/* That allocated once. */
static void threads_begin(int count)
{
    pthread_barrier_init(&barrier, NULL, (unsigned)count + 1);
    while (count-- > 0) {
        if (pthread_create(&threads[count], NULL, thread, NULL) != 0) {
            fprintf(stderr, "no thread can be made\n");
            exit(1);
        }
    }
    pthread_barrier_wait(&barrier);
}

static void threads_end(int count)
{
    pthread_barrier_wait(&barrier);
    while (count-- > 0)
        pthread_join(threads[count], NULL);
    pthread_barrier_destroy(&barrier);
}

/* With memory that is free. */
static void pools_begin(int count)
{
    while (count-- > 0) {
        tcuda_mem_pool_t *made = (tcuda_mem_pool_t *)&things[count];
        void *block;
        TRY(tcuda_mem_pool_create(made, 0, NULL));
        TRY(tcuda_mem_pool_malloc(&block, MIB, stream, *made));
        release(block);
    }
}

static void pools_end(int count)
{
    while (count-- > 0)
        TRY(tcuda_mem_pool_destroy((tcuda_mem_pool_t)things[count]));
}

/* With a pool each, and a block in it. */
static void graphs_begin(int count)
{
    const tcuda_pool_id_t own = {0};
    while (count-- > 0) {
        tcuda_graph_t *made = (tcuda_graph_t *)&things[count];
        void *block;
        TRY(tcuda_graph_create(made, 0));
        TRY(tcuda_graph_capture_begin(*made, stream, own, 0));
        block = allocate(MIB, stream);
        TRY(tcuda_memset_async(block, 1, MIB, stream));
        release(block);
        TRY(tcuda_graph_capture_end(*made));
    }
}

static void graphs_end(int count)
{
    while (count-- > 0)
        TRY(tcuda_graph_destroy((tcuda_graph_t)things[count]));
}

static const struct {
    const char *name;
    int most;
    void (*begin)(int count);
    void (*end)(int count);
} kinds[] = {
    {"nothing", 0, nothing, nothing},
    {"blocks in use", MOST, blocks_begin, blocks_end},
    {"blocks that wait", MOST, waiting_begin, waiting_end},
    {"streams", 1000, streams_begin, streams_end},
    {"threads", 1000, threads_begin, threads_end},
    {"pools", 1000, pools_begin, pools_end},
    {"graphs", 1000, graphs_begin, graphs_end},
};

/* ---- What it costs ------------------------------------------------------------------------------------------------------------- */

static double pairs(void)
{
    int i;
    const double start = now();
    for (i = 0; i < 20000; i++)
        release(allocate(4096, stream));
    return (now() - start) / 20000;
}

static double mixed(int rounds)
{
    void *blocks[64];
    int round, i;
    const double start = now();
    for (round = 0; round < rounds; round++) {
        for (i = 0; i < 64; i++)
            blocks[i] = allocate(24 * MIB + (size_t)(i * 7 % 64) * 4096, stream);
        for (i = 0; i < 64; i++)
            release(blocks[i]);
    }
    return (now() - start) / (64 * rounds);
}

static double more(void)
{
    void *blocks[80];
    double spent;
    int i;
    const double start = now();
    for (i = 0; i < 80; i++)
        blocks[i] = allocate((30 + (size_t)i % 8) * MIB, stream);
    spent = now() - start;
    for (i = 0; i < 80; i++)
        release(blocks[i]);
    return spent / 80 / 1e3;
}

static double statistics(void)
{
    tcuda_memory_stats_t stats;
    int i;
    const double start = now();
    stats.struct_size = sizeof stats;
    for (i = 0; i < 100; i++)
        TRY(tcuda_memory_stats(&stats, 0));
    return (now() - start) / 100 / 1e3;
}

static void measure(size_t kind, int count)
{
    const long before = resident();
    double each;
    kinds[kind].begin(count);
    each = count != 0 ? (double)(resident() - before) / count : 0;
    mixed(2);
    printf("%-18s %6d %8.0f %8.0f", kinds[kind].name, count, pairs(), mixed(20));
    printf(" %8.1f %8.2f %8.1f\n", more(), statistics(), each);
    fflush(stdout);
    kinds[kind].end(count);
    TRY(tcuda_synchronize(0));
    TRY(tcuda_empty_cache(0));
}

int main(int argc, char **argv)
{
    const int most = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 100 : MOST;
    size_t kind;
    TRY(tcuda_init(NULL));
    TRY(tcuda_stream_create(&stream, 0, 0));
    TRY(tcuda_stream_create(&held, 0, 0));
    /* What is done for the first time is done before something is held up. */
    release(allocate(MIB, held));
    graphs_begin(1);
    graphs_end(1);
    mixed(1);
    more();
    TRY(tcuda_empty_cache(0));
    printf("%-18s %6s %8s %8s %8s %8s %8s\n", "beside", "", "pair, ns", "mixed", "more, us", "stats", "KiB each");
    for (kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        int count = kinds[kind].most == 0 ? 0 : 100;
        do {
            measure(kind, count);
            count *= 10;
        } while (count != 0 && count <= kinds[kind].most && count <= most);
    }
    TRY(tcuda_shutdown());
    return 0;
}
