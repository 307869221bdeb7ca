/* Threads that use the library at the same time: each its own streams and events, one stream and one event for all, a host function that
 * hands memory from one to the other, and blocks of the device cache that one thread allocates and another frees. ThreadSanitizer watches
 * this one above all. */

#include <pthread.h>
#include <stdlib.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 50 };

static tcuda_stream_t common_stream;
static tcuda_event_t common_event;
/* Written by host functions on common_stream only, which runs them one after another; read when it is done. */
static int ran;

static void on_host(void *counter)
{
    *(int *)counter += 1;
}

static void own_objects(int32_t device)
{
    tcuda_stream_t stream = NULL;
    tcuda_event_t event = NULL;
    int own = 0;

    CHECK_OK(tcuda_stream_create(&stream, device, 0));
    CHECK_OK(tcuda_event_create(&event, TCUDA_EVENT_DISABLE_TIMING));
    CHECK_OK(tcuda_stream_add_host_function(stream, on_host, &own));
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_EQUAL(own, 1);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* Blocks that any thread may free; the lock is the program's, the blocks are the cache's. */
enum { SHELF = 6 };
static struct parcel {
    unsigned char *block;
    size_t size;
    int value;
} shelf[SHELF];
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;

/* Another thread's block is read and freed. */
static void hand_over(int32_t device, int round)
{
    struct parcel mine, other;
    tcuda_stream_t stream = NULL;
    unsigned char last = 0;
    int32_t of = -1;

    CHECK_OK(tcuda_stream_create(&stream, device, 0));
    mine.size = round % 7 == 0 ? (size_t)2 << 20 : (size_t)(round + 1) * 700;
    mine.value = round + 1;
    mine.block = NULL;
    CHECK_OK(tcuda_malloc_cached((void **)&mine.block, mine.size, stream));
    CHECK_OK(tcuda_memset_async(mine.block, mine.value, mine.size, stream));
    CHECK_OK(tcuda_stream_synchronize(stream));
    pthread_mutex_lock(&shelf_lock);
    other = shelf[round % SHELF];
    shelf[round % SHELF] = mine;
    pthread_mutex_unlock(&shelf_lock);
    if (other.block != NULL) {
        CHECK_OK(tcuda_device_of(&of, other.block));
        CHECK_OK(tcuda_copy(&last, other.block + other.size - 1, 1, false));
        CHECK_EQUAL(last, other.value);
        if (of == device)
            CHECK_OK(tcuda_record_stream(other.block, stream));
        CHECK_OK(tcuda_free_cached(other.block));
    }
    CHECK_OK(tcuda_stream_destroy(stream));
    if (round % 16 == 0)
        CHECK_OK(tcuda_empty_cache(device));
}

static void *work(void *index)
{
    int32_t device = (int32_t)(*(int *)index % 2), current = -1, i;
    bool complete = false;

    for (i = 0; i < ROUNDS; i++) {
        CHECK_OK(tcuda_set_device(device));
        CHECK_OK(tcuda_current_device(&current));
        CHECK_EQUAL(current, device); /* the others do not change this thread's */
        own_objects(device);
        hand_over(device, i);
        CHECK_OK(tcuda_stream_add_host_function(common_stream, on_host, &ran));
        CHECK_OK(tcuda_event_record(common_event, common_stream));
        CHECK_OK(tcuda_event_query(common_event, &complete));
        CHECK(tcuda_set_device(12345) != TCUDA_SUCCESS);
        CHECK(strstr(tcuda_last_error_message(), "12345") != NULL);
    }
    return index;
}

int main(void)
{
    pthread_t threads[THREADS];
    int index[THREADS], i;
    int32_t count = 0;

    CHECK_OK(tcuda_device_count(&count));
    if (!CHECK(count >= 1))
        return CHECK_DONE();
    CHECK_OK(tcuda_stream_create(&common_stream, 0, 0));
    CHECK_OK(tcuda_event_create(&common_event, TCUDA_EVENT_DISABLE_TIMING));
    for (i = 0; i < THREADS; i++) {
        index[i] = count >= 2 ? i : 0;
        if (!CHECK(pthread_create(&threads[i], NULL, work, &index[i]) == 0))
            return CHECK_DONE();
    }
    for (i = 0; i < THREADS; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK_OK(tcuda_stream_synchronize(common_stream));
    CHECK_EQUAL(ran, THREADS * ROUNDS);
    for (i = 0; i < SHELF; i++)
        CHECK_OK(tcuda_free_cached(shelf[i].block));
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    for (i = 0; i < count; i++) {
        uint64_t held = 1;
        CHECK_OK(tcuda_memory_reserved(&held, i));
        CHECK_EQUAL(held, 0);
    }
    CHECK_OK(tcuda_event_destroy(common_event));
    CHECK_OK(tcuda_stream_destroy(common_stream));
    return CHECK_DONE();
}
