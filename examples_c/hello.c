#include <stdio.h>
#include <string.h>
#include "tcuda.h"

#define TRY(call) if ((call) != TCUDA_SUCCESS) return fprintf(stderr, "%s\n", tcuda_last_error_message()), 1

int main(void)
{
    char name[256], back[32] = "", text[32] = "hello from the device";
    tcuda_stream_t stream;
    int64_t peak;
    void *block;

    TRY(tcuda_get_device_name(name, sizeof name, NULL, 0));
    printf("%s\n", name);

    TRY(tcuda_stream_create(&stream, 0, 0));
    TRY(tcuda_malloc_cached(&block, sizeof text, stream));
    TRY(tcuda_copy_async(block, text, sizeof text, stream));
    TRY(tcuda_copy_async(back, block, sizeof back, stream));
    TRY(tcuda_free_cached(block)); /* in the stream's order: no need to wait for the copies */
    TRY(tcuda_stream_synchronize(stream));
    TRY(tcuda_memory_stat_get(&peak, 0, "allocated_bytes.all.peak"));
    printf("%s, and back: %d bytes at most\n", back, (int)peak);

    TRY(tcuda_stream_destroy(stream));
    return strcmp(back, text);
}
