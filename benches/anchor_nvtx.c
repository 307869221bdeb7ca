/* A range that is pushed and popped with no tool, in the place of an allocation and its free. */

#include "anchor.h"
#include "tcuda.h"

void bench_begin(void)
{
    tcuda_nvtx_range_pop();
}

void bench_thread(void)
{
}

void *bench_stream_create(void)
{
    static char stream;
    return &stream;
}

void *bench_alloc(size_t size, void *stream)
{
    (void)size;
    tcuda_nvtx_range_push("range");
    return stream;
}

void bench_free(void *ptr, size_t size, void *stream)
{
    (void)ptr;
    (void)size;
    (void)stream;
    tcuda_nvtx_range_pop();
}
