/* Snapshots and the history from C: while threads allocate, with few entries kept, and read in every way. */

#include <pthread.h>

#include "check.h"

#define THREADS 8
#define PAIRS 1000
#define MOST 500

static tcuda_stream_t streams[THREADS];

static void *work(void *argument)
{
    int number = (int)(size_t)argument, i;
    char text[32];

    snprintf(text, sizeof text, "thread %d", number);
    CHECK_OK(tcuda_memory_annotate(text));
    for (i = 0; i < PAIRS; i++) {
        void *small, *large;
        CHECK_OK(tcuda_malloc_cached(&small, (size_t)(512 + i % 7 * 1000), streams[number]));
        CHECK_OK(tcuda_malloc_cached(&large, (size_t)(2 + i % 3) << 20, streams[number]));
        CHECK_OK(tcuda_free_cached(large));
        CHECK_OK(tcuda_free_cached(small));
    }
    return NULL;
}

/* Blocks cover their segments, which have their sums. */
static void look(tcuda_snapshot_t snapshot)
{
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    uint64_t i, k, last = 0;

    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    CHECK(info.devices >= 1 && info.entries <= MOST);
    for (i = 0; i < info.segments; i++) {
        tcuda_snapshot_segment_t segment = TCUDA_SNAPSHOT_SEGMENT_INIT;
        uint64_t at, in_use = 0;
        CHECK_OK(tcuda_snapshot_segment(snapshot, &segment, i));
        CHECK(segment.struct_size == sizeof segment && segment.device == 0 && segment.address >= last);
        at = segment.address;
        for (k = 0; k < segment.block_count; k++) {
            tcuda_snapshot_block_t block = TCUDA_SNAPSHOT_BLOCK_INIT;
            CHECK_OK(tcuda_snapshot_block(snapshot, &block, segment.first_block + k));
            CHECK(block.address == at && block.requested_size <= block.size);
            CHECK(block.state != TCUDA_BLOCK_ALLOCATED || strncmp(block.annotation, "thread ", 7) == 0);
            at += block.size;
            in_use += block.state == TCUDA_BLOCK_ALLOCATED ? block.size : 0;
        }
        last = segment.address + segment.total_size;
        CHECK(at == last && in_use == segment.allocated_size);
    }
}

static void read_entries(tcuda_snapshot_t snapshot)
{
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    int64_t time = 0;
    uint64_t i;

    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    CHECK(info.entries == MOST && info.lost_entries >= (uint64_t)THREADS * PAIRS * 6 - MOST);
    for (i = 0; i < info.entries; i++) {
        tcuda_snapshot_entry_t entry = TCUDA_SNAPSHOT_ENTRY_INIT;
        CHECK_OK(tcuda_snapshot_entry(snapshot, &entry, 0, i));
        CHECK(entry.time_us >= time && entry.device == 0 && entry.action[0] != '\0');
        time = entry.time_us;
    }
}

static void read_bytes(tcuda_snapshot_t snapshot)
{
    const void *data, *again;
    size_t size, i;

    CHECK_OK(tcuda_snapshot_data(snapshot, &data, &size, TCUDA_SNAPSHOT_PICKLE));
    CHECK(size > 1000 && memcmp(data, "\x80\x02", 2) == 0 && ((const char *)data)[size - 1] == '.');
    CHECK_OK(tcuda_snapshot_data(snapshot, &again, &i, TCUDA_SNAPSHOT_PICKLE));
    CHECK(again == data && i == size);
    CHECK_OK(tcuda_snapshot_data(snapshot, &data, &size, TCUDA_SNAPSHOT_JSON));
    CHECK(memcmp(data, "{\"segments\":[", 13) == 0 && ((const char *)data)[size - 1] == '}');
    CHECK_OK(tcuda_snapshot_data(snapshot, &data, &size, TCUDA_SNAPSHOT_HTML));
    CHECK(memcmp(data, "<!DOCTYPE html>", 15) == 0);
}

int main(void)
{
    pthread_t threads[THREADS];
    tcuda_snapshot_t snapshot;
    size_t i;

    for (i = 0; i < THREADS; i++)
        CHECK_OK(tcuda_stream_create(streams + i, 0, 0));
    CHECK_OK(tcuda_memory_record_history(TCUDA_HISTORY_ALL, MOST, true, 0));
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_create(threads + i, NULL, work, (void *)i) == 0);
    for (i = 0; i < 20; i++) {
        CHECK_OK(tcuda_memory_snapshot(&snapshot, 0));
        look(snapshot);
        CHECK_OK(tcuda_snapshot_destroy(snapshot));
    }
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_OK(tcuda_memory_snapshot(&snapshot, TCUDA_DEVICE_ALL));
    look(snapshot);
    read_entries(snapshot);
    read_bytes(snapshot);
    CHECK_OK(tcuda_snapshot_destroy(snapshot));
    /* One that outlives the library is read and ended all the same. */
    CHECK_OK(tcuda_memory_snapshot(&snapshot, 0));
    CHECK_OK(tcuda_shutdown());
    look(snapshot);
    read_entries(snapshot);
    read_bytes(snapshot);
    CHECK_OK(tcuda_snapshot_write(snapshot, "/dev/null"));
    CHECK_OK(tcuda_snapshot_destroy(snapshot));
    return CHECK_DONE();
}
