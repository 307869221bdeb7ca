/* What a user's first program does. */

#include <stdio.h>
#include <string.h>
#include <tcuda.h>

int main(void)
{
    tcuda_stream_t stream = NULL;
    int32_t count = 0;
    void *block = NULL;

    if (tcuda_device_count(&count) != TCUDA_SUCCESS || count < 1 || tcuda_stream_create(&stream, 0, 0) != TCUDA_SUCCESS ||
        tcuda_malloc_cached(&block, 1 << 20, stream) != TCUDA_SUCCESS || tcuda_memset_async(block, 0, 1 << 20, stream) != TCUDA_SUCCESS ||
        tcuda_free_cached(block) != TCUDA_SUCCESS || tcuda_stream_synchronize(stream) != TCUDA_SUCCESS ||
        tcuda_stream_destroy(stream) != TCUDA_SUCCESS) {
        fprintf(stderr, "%s\n", tcuda_last_error_message());
        return 1;
    }
    printf("consumer: %s, %d devices\n", tcuda_backend_name(), (int)count);
    return strcmp(tcuda_backend_name(), "sim") != 0;
}
