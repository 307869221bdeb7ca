/* No two live blocks overlap, and none is handed out before the work on it is done, while many threads allocate, free each other's blocks,
 * use them on other streams, ask for statistics and empty the cache. The host keeps a list of what lives, and the device one number in each
 * block (stamp.h), which is looked at before the block is freed.
 *
 *     test_overlap [SECONDS [THREADS]]     3m are three minutes; without SECONDS: a short run of a fixed number of rounds
 *     test_overlap planted                 the short run with memory that is handed out while it is another's, which must be found: it fails,
 *                                          with as many overlaps as were planted */

#include <pthread.h>
#include <time.h>

#include "stamp.h"

enum { MOST_THREADS = 64, SHARED = 4, SHELF = 192, SHORT_ROUNDS = 300, PLANTED_EACH = 30 };

/* Little enough that memory must be had from other streams, and enough for all that lives. */
#define LIMIT ((uint64_t)4 << 30)

struct block {
    unsigned char *start;
    size_t size;
    uint32_t stamp;
    tcuda_stream_t stream; /* its last work was given to this one */
};

/* The list of what lives, in the order of addresses. A thread holds one block more than there are on the shelf. */
static struct block living[SHELF + MOST_THREADS];
static size_t lives;
static pthread_mutex_t living_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where blocks wait for another thread to free them. */
static struct block shelf[SHELF];
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;

static tcuda_stream_t shared[SHARED];
static struct stamps stamps;
static double end; /* 0: a short run */
static uint32_t threads, next_stamp;
static unsigned long long handed_out, overlaps;
/* Planted: what is handed out a second time; it lives to the end. */
static struct block victim;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint32_t next(uint64_t *random)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*random >> 33);
}

/* Where a block that starts here is or belongs. */
static size_t place_of(const unsigned char *start)
{
    size_t low = 0, high = lives;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (living[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* 0: it is memory of another live block, and not in the list. */
static int comes_to_life(const struct block *block)
{
    size_t at;
    int is_free;

    pthread_mutex_lock(&living_lock);
    at = place_of(block->start);
    is_free = (at == 0 || living[at - 1].start + living[at - 1].size <= block->start) &&
              (at == lives || block->start + block->size <= living[at].start);
    if (is_free) {
        memmove(living + at + 1, living + at, (lives - at) * sizeof *living);
        living[at] = *block;
        lives++;
    } else {
        overlaps++;
    }
    handed_out++;
    pthread_mutex_unlock(&living_lock);
    return is_free;
}

static void dies(const struct block *block)
{
    size_t at;

    pthread_mutex_lock(&living_lock);
    at = place_of(block->start);
    if (CHECK(at < lives && living[at].start == block->start)) {
        memmove(living + at, living + at + 1, (lives - at - 1) * sizeof *living);
        lives--;
    }
    pthread_mutex_unlock(&living_lock);
}

static size_t random_size(uint64_t *random)
{
    /* As many between 1 and 2 KiB as between 16 and 32 MiB. */
    size_t base = (size_t)1 << (9 + next(random) % 16);
    return base + next(random) % base;
}

/* The end of the victim, its start, or all of it. */
static tcuda_status_t hand_out_again(void **start, struct block *block)
{
    *start = victim.start + (block->stamp % 3 == 0 ? victim.size - 512 : 0);
    block->size = block->stamp % 3 == 1 ? victim.size : 512;
    return TCUDA_SUCCESS;
}

/* 0: there was none. -1: it is another's. */
static int take(struct block *block, tcuda_stream_t own, uint64_t *random, uint32_t round)
{
    int is_planted = victim.start != NULL && round % PLANTED_EACH == 0;
    void *start = NULL;

    block->stream = next(random) % 2 != 0 ? own : shared[next(random) % SHARED];
    block->size = random_size(random);
    block->stamp = __atomic_fetch_add(&next_stamp, 1, __ATOMIC_RELAXED);
    if (!CHECK_OK(is_planted ? hand_out_again(&start, block) : tcuda_malloc_cached(&start, block->size, block->stream)) ||
        !CHECK(start != NULL))
        return 0;
    block->start = (unsigned char *)start;
    if (!comes_to_life(block))
        return -1;
    stamp_write(&stamps, block->stamp, start, block->size, block->stream);
    return 1;
}

/* Looked at on its stream, or on another one that waits for it, and freed, in one of the ways there are. */
static void put_back(struct block *block, tcuda_stream_t own, uint64_t *random)
{
    tcuda_stream_t stream = next(random) % 2 != 0 ? block->stream : next(random) % 2 != 0 ? own : shared[next(random) % SHARED];
    int on = next(random) % 4 == 0;

    if (stream != block->stream)
        CHECK_OK(tcuda_stream_wait_stream(stream, block->stream));
    stamp_verify(&stamps, block->stamp, block->start, block->size, stream);
    if (stream != block->stream && !on)
        CHECK_OK(tcuda_record_stream(block->start, stream));
    dies(block);
    if (on)
        CHECK_OK(tcuda_free_cached_on(block->start, stream));
    else
        CHECK_OK(tcuda_free_cached(block->start));
    block->start = NULL;
}

static void look_around(uint64_t *random)
{
    uint64_t allocated = 0, peak = 0;
    int64_t active = -1;
    char text[16 << 10];

    CHECK_OK(tcuda_max_memory_allocated(&peak, 0));
    CHECK_OK(tcuda_memory_allocated(&allocated, 0));
    CHECK_OK(tcuda_memory_stat_get(&active, 0, "active_bytes.all.current"));
    CHECK(active >= 0);
    CHECK_OK(tcuda_memory_summary(text, sizeof text, NULL, 0, true));
    if (next(random) % 8 == 0)
        CHECK_OK(tcuda_empty_cache(0));
}

static void *work(void *number)
{
    uint64_t random = *(uint32_t *)number * UINT64_C(7919) + 1;
    tcuda_stream_t own = NULL;
    uint32_t round, place;
    struct block mine, other;

    stamps_enter(&stamps);
    if (!CHECK_OK(tcuda_stream_create(&own, 0, 0)))
        return number;
    /* Off a GPU the table of stamps may be full before. */
    for (round = 0; end != 0 ? now() < end && __atomic_load_n(&next_stamp, __ATOMIC_RELAXED) < stamps.most - MOST_THREADS : round < SHORT_ROUNDS; round++) {
        int took = take(&mine, own, &random, round);
        if (took == 0)
            break;
        if (took < 0)
            continue;
        place = next(&random) % SHELF;
        pthread_mutex_lock(&shelf_lock);
        other = shelf[place];
        shelf[place] = mine;
        pthread_mutex_unlock(&shelf_lock);
        if (other.start != NULL)
            put_back(&other, own, &random);
        if (next(&random) % 64 == 0)
            look_around(&random);
    }
    return number;
}

int main(int argc, char **argv)
{
    tcuda_sim_options_t options = TCUDA_SIM_OPTIONS_INIT;
    pthread_t handles[MOST_THREADS];
    uint32_t numbers[MOST_THREADS], i, wrong;
    int is_planted = argc > 1 && strcmp(argv[1], "planted") == 0;
    char *unit = NULL;
    double seconds = argc > 1 && !is_planted ? strtod(argv[1], &unit) : 0;
    uint64_t random = 1, held = 1;

    if (unit != NULL && *unit == 'm')
        seconds *= 60;
    options.seed = 1;
    if (getenv("TCUDA_SIM_SEED") == NULL)
        CHECK_OK(tcuda_sim_configure(&options));
    threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 16;
    if (!CHECK(threads > 0 && threads <= MOST_THREADS))
        return CHECK_DONE();
    /* Off a GPU each stamp has a place in a table. */
    if (!stamps_open(&stamps, seconds > 0 ? 1u << 20 : threads * SHORT_ROUNDS, 0))
        return CHECK_DONE();
    stamps.slow = 1500000; /* a millisecond, so that the device is behind the host */
    CHECK_OK(tcuda_set_memory_limit(LIMIT, 0));
    for (i = 0; i < SHARED; i++)
        CHECK_OK(tcuda_stream_create(shared + i, 0, 0));
    if (is_planted && take(&victim, shared[0], &random, 1) <= 0)
        return CHECK_DONE();
    end = seconds > 0 ? now() + seconds : 0;
    for (i = 0; i < threads; i++) {
        numbers[i] = i;
        if (!CHECK_EQUAL(pthread_create(handles + i, NULL, work, numbers + i), 0))
            return CHECK_DONE();
    }
    for (i = 0; i < threads; i++)
        CHECK_EQUAL(pthread_join(handles[i], NULL), 0);
    for (i = 0; i < SHELF; i++)
        if (shelf[i].start != NULL)
            put_back(shelf + i, shared[0], &random);
    if (is_planted)
        put_back(&victim, shared[0], &random);
    CHECK_EQUAL(lives, 0);
    wrong = stamps_wrong(&stamps);
    printf("overlap: %llu live blocks overlap, %u words reused too early; %llu blocks by %u threads\n", overlaps, (unsigned)wrong, handed_out,
           (unsigned)threads);
    CHECK_EQUAL(overlaps, 0);
    CHECK_EQUAL(wrong, 0);
    stamps_close(&stamps);
    CHECK_OK(tcuda_empty_cache(0));
    CHECK_OK(tcuda_memory_reserved(&held, 0));
    CHECK_EQUAL(held, 0);
    CHECK_OK(tcuda_shutdown()); /* ends the streams too */
    return CHECK_DONE();
}
