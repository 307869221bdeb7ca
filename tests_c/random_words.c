/* Raw words of 32 bits on standard output, without end: what a battery of tests for random numbers reads.
 *
 *     random_words SEED | dieharder -g 200 ...
 *
 * They are those of tcuda_random_integers_all in the portable geometry, of one tensor of 16 MiB after the other, so they are the same
 * on every device. It ends well when nobody reads on. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tcuda.h"

#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "random_words: %s\n", tcuda_last_error_message());                           \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

enum { BYTES = 16 << 20 };

/* 1 while there is a reader. */
static int written(const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t now = write(1, bytes, size);
        if (now < 0 && errno == EPIPE)
            return 0;
        if (now < 0 && errno != EINTR) {
            perror("random_words");
            exit(1);
        }
        if (now > 0) {
            bytes += now;
            size -= (size_t)now;
        }
    }
    return 1;
}

int main(int count, char **arguments)
{
    const tcuda_dtype_t uint32 = {1, 32, 1};
    const int64_t words = BYTES / 4;
    tcuda_managed_tensor_t *tensor = NULL;
    tcuda_generator_t generator = NULL;
    void *host = NULL;
    char *end = NULL;
    unsigned long long seed;

    seed = count == 2 ? strtoull(arguments[1], &end, 0) : 0;
    if (end == NULL || *end != '\0' || end == arguments[1]) {
        fprintf(stderr, "usage: random_words SEED\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    TRY(tcuda_generator_create(&generator, 0));
    TRY(tcuda_generator_manual_seed(generator, seed));
    TRY(tcuda_generator_set_geometry(generator, TCUDA_GEOMETRY_PORTABLE, 0, 0));
    TRY(tcuda_tensor_empty(&tensor, 0, uint32, 1, &words, NULL));
    TRY(tcuda_host_malloc_cached(&host, BYTES));
    do {
        TRY(tcuda_random_integers_all(&tensor->tensor, generator, NULL));
        TRY(tcuda_copy_async(host, tensor->tensor.data, BYTES, NULL));
        TRY(tcuda_stream_synchronize(NULL));
    } while (written((const char *)host, BYTES));
    TRY(tcuda_host_free_cached(host));
    TRY(tcuda_tensor_destroy(tensor));
    TRY(tcuda_generator_destroy(generator));
    return 0;
}
