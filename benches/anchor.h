/* What is measured: a shared object with these functions around one allocator, the same for tcuda and for what stands beside it. */

#ifndef TCUDA_BENCHES_ANCHOR_H
#define TCUDA_BENCHES_ANCHOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Before anything is allocated; again after bench_end. */
void bench_begin(void);
/* All that is free goes back to the device; nothing is in use. */
void bench_end(void);
/* Once in each thread. */
void bench_thread(void);

/* A stream that lives as long as the process: memory is bound to it. */
void *bench_stream_create(void);

/* NULL: there is no memory. */
void *bench_alloc(size_t size, void *stream);
void bench_free(void *ptr, size_t size, void *stream);

/* Bytes held from the device at most, since bench_reset_peak; 0 where the allocator does not say. */
uint64_t bench_reserved_peak(void);
void bench_reset_peak(void);
/* Calls of the driver so far, as far as they can be counted there (docs/BENCHMARKS.md); UINT64_MAX: they cannot. */
uint64_t bench_driver_calls(void);

/* Optional: keeps so many entries of what happens from now on, 0 ends that. 0: it cannot. */
int bench_history(size_t entries);
/* Optional: what this thread allocates comes from a memory pool from now on, 0: no more, and what that holds goes back. 0: it cannot. */
int bench_pool(int open);

#ifdef __cplusplus
}
#endif

#endif
