/* What is in the memory of a device, and what happened there: a program that trains a little says what its blocks are for, and writes a page
 * that any browser opens.
 *
 *     snapshot [FILE]     NAME.html, NAME.json, or any other name for python -m torch.cuda._memory_viz; else it only says what it found */

#include "tcuda.h"

#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s\n", tcuda_last_error_message());                                         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

#define LAYERS 6
#define STEPS 4
#define KIB ((size_t)1024)

/* Each layer leaves what the way back needs. */
static void forward(void *activations[LAYERS], tcuda_stream_t stream, int step)
{
    int layer;
    TRY(tcuda_memory_annotate("forward"));
    for (layer = 0; layer < LAYERS; layer++) {
        void *scratch;
        TRY(tcuda_malloc_cached(activations + layer, (size_t)(900 + 300 * step + 200 * layer) * KIB, stream));
        TRY(tcuda_malloc_cached(&scratch, 700 * KIB, stream));
        TRY(tcuda_free_cached(scratch));
    }
}

static void backward(void *activations[LAYERS], tcuda_stream_t stream)
{
    int layer;
    TRY(tcuda_memory_annotate("backward"));
    for (layer = LAYERS - 1; layer >= 0; layer--) {
        void *gradient;
        TRY(tcuda_malloc_cached(&gradient, 1500 * KIB, stream));
        TRY(tcuda_free_cached(activations[layer]));
        TRY(tcuda_free_cached(gradient));
    }
}

/* The bytes in use, by what they are for. */
static void tell(tcuda_snapshot_t snapshot)
{
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    uint64_t i;

    TRY(tcuda_snapshot_info(snapshot, &info));
    printf("%llu segments, %llu blocks, %llu entries\n", (unsigned long long)info.segments, (unsigned long long)info.blocks,
           (unsigned long long)info.entries);
    for (i = 0; i < info.blocks; i++) {
        tcuda_snapshot_block_t block = TCUDA_SNAPSHOT_BLOCK_INIT;
        TRY(tcuda_snapshot_block(snapshot, &block, i));
        if (block.state == TCUDA_BLOCK_ALLOCATED)
            printf("  %8llu KiB  %s\n", (unsigned long long)(block.size / KIB), block.annotation);
    }
}

int main(int argc, char **argv)
{
    void *weights[LAYERS], *activations[LAYERS];
    tcuda_stream_t stream;
    tcuda_snapshot_t snapshot;
    int i;

    TRY(tcuda_stream_create(&stream, TCUDA_DEVICE_CURRENT, 0));
    TRY(tcuda_memory_record_history(TCUDA_HISTORY_ALL, 100000, true, TCUDA_DEVICE_CURRENT));
    TRY(tcuda_memory_annotate("weights"));
    for (i = 0; i < LAYERS; i++)
        TRY(tcuda_malloc_cached(weights + i, 2048 * KIB, stream));
    for (i = 0; i < STEPS; i++) {
        forward(activations, stream, i);
        if (i == STEPS - 1) {
            TRY(tcuda_memory_snapshot(&snapshot, TCUDA_DEVICE_CURRENT));
            tell(snapshot);
            if (argc > 1)
                TRY(tcuda_snapshot_write(snapshot, argv[1]));
            TRY(tcuda_snapshot_destroy(snapshot));
        }
        backward(activations, stream);
    }
    for (i = 0; i < LAYERS; i++)
        TRY(tcuda_free_cached(weights[i]));
    TRY(tcuda_shutdown());
    return 0;
}
