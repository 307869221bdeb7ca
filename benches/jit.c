/* Element-wise functions compiled at run time beside a copy on the device: bytes read and written in a second, in one run.
 *
 *     jit           64 MiB and 1 GiB a tensor
 *     jit --quick   1 MiB, to see that it runs
 *
 * Each figure is the median of rounds in which all take turns; a round is as many launches as move some GiB, between two events. What is
 * held against the copy is bandwidth: a copy of N bytes moves 2 N, a * x + y moves 3 N. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tcuda.h"

#define TRY(call) \
    if ((call) != TCUDA_SUCCESS) { \
        fprintf(stderr, "%s\n", tcuda_last_error_message()); \
        exit(1); \
    }
#define ROUNDS 15

static const char *const AXPY = "template <typename T> T axpy(T x, T y, T a) { return a * x + y; }";
static const char *const SQUARE = "template <typename T> T square(T x) { return x * x; }";

struct work {
    const char *name;
    int inputs, code, bits;
    tcuda_jit_t jit;
    double seconds[ROUNDS];
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_size);
    return values[ROUNDS / 2];
}

/* One call on the three tensors: the last one is the output. */
static void launch(const struct work *work, char *const data[3], size_t bytes, tcuda_stream_t stream)
{
    int64_t shape[1];
    tcuda_tensor_t tensors[3];
    const tcuda_tensor_t *inputs[2], *output = &tensors[2];
    int i;

    if (!work->jit) {
        TRY(tcuda_copy_async(data[2], data[0], bytes, stream));
        return;
    }
    memset(tensors, 0, sizeof tensors);
    shape[0] = (int64_t)(bytes * 8) / work->bits;
    for (i = 0; i < 3; i++) {
        tensors[i].data = data[i];
        tensors[i].device.device_type = 2;
        tensors[i].ndim = 1;
        tensors[i].dtype.code = (uint8_t)work->code;
        tensors[i].dtype.bits = (uint8_t)work->bits;
        tensors[i].dtype.lanes = 1;
        tensors[i].shape = shape;
    }
    inputs[0] = &tensors[0];
    inputs[1] = &tensors[1];
    TRY(tcuda_jit_call_out(work->jit, &output, 1, inputs, (size_t)work->inputs, NULL, 0, stream));
}

static double measure(size_t bytes, size_t moved)
{
    const tcuda_jit_scalar_t a = {"a", TCUDA_SCALAR_REAL, 0, 0.5, 0.0};
    struct work works[] = {{"copy", 1, 0, 8, NULL, {0}},
                           {"a * x + y, float32", 2, 2, 32, NULL, {0}},
                           {"a * x + y, float16", 2, 2, 16, NULL, {0}},
                           {"a * x + y, bfloat16", 2, 4, 16, NULL, {0}},
                           {"a * x + y, float64", 2, 2, 64, NULL, {0}},
                           {"x * x, float32", 1, 2, 32, NULL, {0}},
                           {"x * x, float16", 1, 2, 16, NULL, {0}},
                           {"x * x, uint8", 1, 1, 8, NULL, {0}}};
    const int count = (int)(sizeof works / sizeof *works), launches = moved > bytes ? (int)(moved / bytes) : 1;
    double least = 1e9, copy = 0;
    tcuda_event_t start, end;
    tcuda_stream_t stream;
    char *data[3];
    int i, round, n;

    TRY(tcuda_stream_create(&stream, 0, 0));
    TRY(tcuda_event_create(&start, TCUDA_EVENT_DEFAULT));
    TRY(tcuda_event_create(&end, TCUDA_EVENT_DEFAULT));
    for (i = 0; i < 3; i++) {
        void *block;
        TRY(tcuda_malloc_cached(&block, bytes, stream));
        TRY(tcuda_memset_async(block, 0, bytes, stream));
        data[i] = (char *)block;
    }
    for (i = 1; i < count; i++)
        TRY(tcuda_jit_create(&works[i].jit, works[i].inputs == 2 ? AXPY : SQUARE, &a, works[i].inputs == 2));
    for (round = -1; round < ROUNDS; round++)
        for (i = 0; i < count; i++) {
            float milliseconds;
            /* Compiled, and the clocks up. */
            launch(&works[i], data, bytes, stream);
            TRY(tcuda_event_record(start, stream));
            for (n = 0; n < launches; n++)
                launch(&works[i], data, bytes, stream);
            TRY(tcuda_event_record(end, stream));
            TRY(tcuda_event_synchronize(end));
            TRY(tcuda_event_elapsed_time(&milliseconds, start, end));
            if (round >= 0)
                works[i].seconds[round] = milliseconds / 1e3 / launches;
        }
    printf("%zu MiB a tensor, %d launches a round\n", bytes >> 20, launches);
    for (i = 0; i < count; i++) {
        const double speed = (double)bytes * (works[i].inputs + 1) / median(works[i].seconds) / 1e9;
        if (i == 0)
            copy = speed;
        printf("  %-22s %8.0f GB/s   %.3f of the copy\n", works[i].name, speed, speed / copy);
        if (i > 0 && speed / copy < least)
            least = speed / copy;
        TRY(tcuda_jit_destroy(works[i].jit));
    }
    for (i = 0; i < 3; i++)
        TRY(tcuda_free_cached(data[i]));
    TRY(tcuda_event_destroy(start));
    TRY(tcuda_event_destroy(end));
    TRY(tcuda_stream_destroy(stream));
    return least;
}

int main(int argc, char **argv)
{
    const int quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    char name[256];
    double least, large;

    TRY(tcuda_get_device_name(name, sizeof name, NULL, 0));
    printf("%s\n", name);
    least = quick ? measure((size_t)1 << 20, 0) : measure((size_t)64 << 20, (size_t)4 << 30);
    large = quick ? least : measure((size_t)1 << 30, (size_t)8 << 30);
    printf("jit: %.3f of the copy at least\n", large < least ? large : least);
    return 0;
}
