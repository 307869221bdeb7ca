/* No pinned block is given out again before the copies out of it and into it are done, while threads copy on streams of their own and
 * free the block as soon as the copy is enqueued. What goes to the device is looked at there at the end; what comes from the device late
 * would be found in blocks that the host has filled meanwhile.
 *
 *     test_pinned_order [ROUNDS]           of each thread; 60 without */

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

enum { THREADS = 3, STREAMS = 2, SLOTS = 16, HELD = 4, WORDS = 32 << 10 };

static int rounds = 60;
static unsigned long long wrong;

static void look(const uint32_t *words, uint32_t value)
{
    unsigned long long found = 0;
    size_t i;

    for (i = 0; i < WORDS; i++)
        found += words[i] != value;
    __atomic_add_fetch(&wrong, found, __ATOMIC_RELAXED);
}

static uint32_t *filled(uint32_t value)
{
    void *block = NULL;
    uint32_t *words;
    size_t i;

    if (!CHECK_OK(tcuda_host_malloc_cached(&block, WORDS * sizeof(uint32_t))))
        abort();
    words = (uint32_t *)block;
    for (i = 0; i < WORDS; i++)
        words[i] = value;
    return words;
}

static void *work(void *number)
{
    const size_t size = WORDS * sizeof(uint32_t);
    uint32_t base = (uint32_t)(uintptr_t)number * 1000000, value[SLOTS] = {0}, held_value[HELD] = {0}, *held[HELD] = {NULL};
    uint32_t *back = (uint32_t *)malloc(size);
    tcuda_stream_t streams[STREAMS];
    void *far[SLOTS];
    int i;

    for (i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_create(&streams[i], 0, 0));
    for (i = 0; i < SLOTS; i++)
        CHECK_OK(tcuda_malloc_cached(&far[i], size, streams[i % STREAMS]));
    for (i = 0; i < rounds; i++) {
        int slot = i % SLOTS, place = i % HELD;
        tcuda_stream_t stream = streams[slot % STREAMS];
        uint32_t *out;

        /* To the device, out of a block that is free from now on. */
        value[slot] = base + (uint32_t)i * 2;
        out = filled(value[slot]);
        CHECK_OK(tcuda_copy_async(far[slot], out, size, stream));
        CHECK_OK(tcuda_host_free_cached(out));
        /* From the device, into one that is free from now on. */
        out = filled(0);
        CHECK_OK(tcuda_copy_async(out, far[slot], size, stream));
        CHECK_OK(tcuda_host_free_cached(out));
        /* One that stays the host's for some rounds. */
        if (held[place] != NULL) {
            look(held[place], held_value[place]);
            CHECK_OK(tcuda_host_free_cached(held[place]));
        }
        held_value[place] = base + (uint32_t)i * 2 + 1;
        held[place] = filled(held_value[place]);
    }
    for (i = 0; i < SLOTS; i++) {
        CHECK_OK(tcuda_copy_async(back, far[i], size, streams[i % STREAMS]));
        CHECK_OK(tcuda_stream_synchronize(streams[i % STREAMS]));
        if (i < rounds)
            look(back, value[i]);
        CHECK_OK(tcuda_free_cached(far[i]));
    }
    for (i = 0; i < HELD; i++) {
        if (held[i] != NULL) {
            look(held[i], held_value[i]);
            CHECK_OK(tcuda_host_free_cached(held[i]));
        }
    }
    for (i = 0; i < STREAMS; i++)
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    free(back);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int64_t left = -1;
    int i;

    if (argc > 1)
        rounds = atoi(argv[1]);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%llu words reused too early\n", wrong);
    CHECK_EQUAL(wrong, 0);
    CHECK_OK(tcuda_host_empty_cache());
    CHECK_OK(tcuda_host_memory_stat_get(&left, "active_bytes.current"));
    CHECK_EQUAL(left, 0);
    return CHECK_DONE();
}
