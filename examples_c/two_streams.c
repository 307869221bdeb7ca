/* A batch is copied on one stream while another computes on the one before: torch's prefetching. Two things keep it right:
 *
 *   an event                makes the computing stream wait for the copy, on the device; the host does not wait
 *   tcuda_record_stream     tells the cache that the computing stream uses a block of the copying stream, so the block can be freed
 *                           right away and is not handed out again before the work on it is done */

#include "tcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { BATCHES = 50, SIZE = 1 << 20 };

int main(void)
{
    tcuda_stream_t copying, computing;
    tcuda_event_t copied, start, end;
    char *host = (char *)malloc(SIZE);
    unsigned char results[BATCHES] = {0};
    void *sums;
    float milliseconds;
    int64_t reserved;
    int i;

    if (host == NULL)
        return 1;
    TRY(tcuda_stream_from_pool(&copying, TCUDA_DEVICE_CURRENT, 0));
    TRY(tcuda_stream_from_pool(&computing, TCUDA_DEVICE_CURRENT, 0));
    TRY(tcuda_event_create(&copied, TCUDA_EVENT_DISABLE_TIMING));
    TRY(tcuda_event_create(&start, TCUDA_EVENT_DEFAULT));
    TRY(tcuda_event_create(&end, TCUDA_EVENT_DEFAULT));
    TRY(tcuda_malloc_cached(&sums, BATCHES, computing));

    TRY(tcuda_event_record(start, computing));
    for (i = 0; i < BATCHES; i++) {
        void *batch;

        memset(host, i + 1, SIZE);
        TRY(tcuda_malloc_cached(&batch, SIZE, copying));
        TRY(tcuda_copy_async(batch, host, SIZE, copying));
        TRY(tcuda_event_record(copied, copying));

        TRY(tcuda_event_wait(copied, computing));
        TRY(tcuda_copy_async((char *)sums + i, (char *)batch + SIZE - 1, 1, computing)); /* stands for a kernel */
        TRY(tcuda_record_stream(batch, computing));
        TRY(tcuda_free_cached(batch));

        /* The host's buffer is used again: the copy out of it has to be done. */
        TRY(tcuda_event_synchronize(copied));
    }
    TRY(tcuda_event_record(end, computing));
    TRY(tcuda_copy_async(results, sums, BATCHES, computing));
    TRY(tcuda_free_cached(sums));
    TRY(tcuda_stream_synchronize(computing));

    for (i = 0; i < BATCHES; i++) {
        if (results[i] != i + 1) {
            fprintf(stderr, "batch %d was read as %d\n", i + 1, results[i]);
            return 1;
        }
    }
    TRY(tcuda_event_elapsed_time(&milliseconds, start, end));
    TRY(tcuda_memory_stat_get(&reserved, TCUDA_DEVICE_CURRENT, "reserved_bytes.all.peak"));
    printf("%d batches of 1 MiB on two streams in %.2f ms, all right; at most %d MiB of device memory held\n", (int)BATCHES,
           (double)milliseconds, (int)(reserved >> 20));

    TRY(tcuda_event_destroy(copied));
    TRY(tcuda_event_destroy(start));
    TRY(tcuda_event_destroy(end));
    free(host);
    return 0;
}
