/* Running out of memory is an answer like any other: nothing breaks, the message says who holds what, and the program goes on. The
 * limit is the program's own, so this needs no full device. */

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

#define MIB ((size_t)1 << 20)

/* A working area of up to `most` bytes: half as much as long as there is no room. */
static size_t as_much_as_there_is(void **ptr, size_t most, tcuda_stream_t stream)
{
    size_t size;

    for (size = most; size >= MIB; size /= 2) {
        tcuda_status_t status = tcuda_malloc_cached(ptr, size, stream);
        if (status == TCUDA_SUCCESS)
            return size;
        if (status != TCUDA_ERROR_OUT_OF_MEMORY)
            TRY(status);
        printf("%4d MiB: %s\n\n", (int)(size / MIB), tcuda_last_error_message());
    }
    return 0;
}

int main(void)
{
    tcuda_error_info_t info = TCUDA_ERROR_INFO_INIT;
    tcuda_stream_t stream;
    void *model, *area;
    int64_t ooms;
    size_t size;

    TRY(tcuda_stream_from_pool(&stream, TCUDA_DEVICE_CURRENT, 0));
    TRY(tcuda_set_memory_limit(256 * MIB, TCUDA_DEVICE_CURRENT));
    TRY(tcuda_malloc_cached(&model, 100 * MIB, stream));

    size = as_much_as_there_is(&area, 400 * MIB, stream);
    TRY(tcuda_last_error(&info));
    TRY(tcuda_memory_stat_get(&ooms, TCUDA_DEVICE_CURRENT, "num_ooms"));
    printf("%4d MiB: found, after %d refusals; the last one, of %s, was for %d MiB\n", (int)(size / MIB), (int)ooms, info.function,
           (int)(info.bytes / MIB));

    TRY(tcuda_free_cached(area));
    TRY(tcuda_free_cached(model));
    TRY(tcuda_malloc_cached(&area, 200 * MIB, stream)); /* what two blocks held is room for one */
    TRY(tcuda_free_cached(area));
    printf(" 200 MiB: found, once the model was gone\n");
    return size == 100 * MIB && ooms == 2 ? 0 : 1;
}
