/* Stamps: a block of memory is filled with a number of its own by its stream, and looked at by a stream before it is freed. What is handed
 * out twice or too early holds somebody else's number by then. Nothing here waits for the device before stamps_wrong.
 *
 * On a GPU kernels do it, which also take a time in proportion to the size, and count what is wrong on the device. On the simulated device,
 * which runs no kernels, copies of the number to the start, the middle and the end do. Valid as C99 and as C++. */

#ifndef TCUDA_STAMP_H
#define TCUDA_STAMP_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include "check.h"

typedef int (*stamp_launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

struct stamps {
    uint32_t most; /* stamps have the numbers 0 to most - 1 */
    int32_t device;
    /* CUDA's driver; NULL on the simulated device */
    void *driver;
    stamp_launch_fn launch;
    int (*enter)(void *context);
    void *context, *write, *verify;
    uint64_t slow;   /* cycles that every fourth kernel takes longer */
    uint64_t errors; /* on the device: how many words are wrong, one that was found, one that was expected */
    /* The simulated device: what is to be read, what was read, and which were looked at. */
    uint32_t *tags, *seen;
    unsigned char *looked_at;
};

enum { STAMP_SPOTS = 3, STAMP_THREADS = 256, STAMP_GRID = 32, STAMP_WHOLE = 64 << 10, STAMP_STRIDE = 512 };

/* The first and the last word, the first of the words in between, their distance and how many they are; what they hold; where errors are
 * counted; how long it takes. */
#define STAMP_KERNEL(name, each)                                                                                                           \
    ".visible .entry " name "(.param .u64 low, .param .u64 high, .param .u64 first, .param .u32 stride, .param .u32 count,\n"              \
    "    .param .u32 value, .param .u64 errors, .param .u64 cycles)\n"                                                                     \
    "{\n"                                                                                                                                  \
    "    .reg .pred %p<6>; .reg .b32 %r<12>; .reg .b64 %d<12>;\n"                                                                          \
    "    ld.param.u64 %d1, [low]; ld.param.u64 %d2, [high]; ld.param.u64 %d3, [first]; ld.param.u32 %r1, [stride];\n"                      \
    "    ld.param.u32 %r2, [count]; ld.param.u32 %r3, [value]; ld.param.u64 %d4, [errors]; ld.param.u64 %d9, [cycles];\n"                  \
    "    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ntid.x; mov.u32 %r6, %tid.x; mad.lo.u32 %r7, %r4, %r5, %r6;\n"                               \
    "    mov.u32 %r8, %nctaid.x; mul.lo.u32 %r8, %r8, %r5;\n"                                                                              \
    "    mov.u64 %d7, %clock64;\n"                                                                                                         \
    "SPIN: mov.u64 %d8, %clock64; sub.u64 %d8, %d8, %d7; setp.lt.u64 %p1, %d8, %d9; @%p1 bra SPIN;\n"                                      \
    "    setp.ne.u32 %p3, %r7, 0; @%p3 bra LOOP;\n" each                                                                                   \
    "}\n"

/* Word %d5 is wrong: count it. */
#define STAMP_LOOK(label)                                                                                                                  \
    "    ld.volatile.global.u32 %r9, [%d5]; setp.eq.u32 %p4, %r9, %r3; @%p4 bra " label ";\n"                                              \
    "    red.global.add.u32 [%d4], 1; st.global.u32 [%d4+4], %r9; st.global.u32 [%d4+8], %r3;\n" label ":\n"

#define STAMP_LOOP(work)                                                                                                                   \
    "LOOP: setp.ge.u32 %p2, %r7, %r2; @%p2 bra DONE;\n"                                                                                     \
    "    mul.wide.u32 %d6, %r7, %r1; add.u64 %d5, %d3, %d6;\n" work "    add.u32 %r7, %r7, %r8; bra LOOP;\n"                                \
    "DONE: ret;\n"

static const char stamp_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    STAMP_KERNEL("stamp_write", "    st.global.u32 [%d1], %r3; st.global.u32 [%d2], %r3;\n" STAMP_LOOP("    st.global.u32 [%d5], %r3;\n"))
    STAMP_KERNEL("stamp_verify", "    mov.u64 %d5, %d1;\n" STAMP_LOOK("LOW")
                                 "    mov.u64 %d5, %d2;\n" STAMP_LOOK("HIGH") STAMP_LOOP(STAMP_LOOK("SAME")));

/* A function of a library, where the compiler lets no pointer to data become one. */
static inline int stamp_find(void *library, const char *name, void *function)
{
    void *found = library != NULL ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof found);
    return CHECK(found != NULL);
}

/* Not the same for any two stamps: the factor is odd. */
static inline uint32_t stamp_value(uint32_t stamp)
{
    return (stamp + 1) * UINT32_C(2654435761);
}

static inline int stamps_open_cuda(struct stamps *stamps)
{
    int (*retain)(void **, int), (*load)(void **, const void *), (*function)(void **, void *, const char *);
    int (*allocate)(uint64_t *, size_t), (*set)(uint64_t, unsigned char, size_t);
    void *module = NULL;

    stamps->driver = dlopen("libcuda.so.1", RTLD_NOW);
    return stamp_find(stamps->driver, "cuDevicePrimaryCtxRetain", &retain) && stamp_find(stamps->driver, "cuCtxSetCurrent", &stamps->enter) &&
           stamp_find(stamps->driver, "cuModuleLoadData", &load) && stamp_find(stamps->driver, "cuModuleGetFunction", &function) &&
           stamp_find(stamps->driver, "cuMemAlloc_v2", &allocate) && stamp_find(stamps->driver, "cuMemsetD8_v2", &set) &&
           stamp_find(stamps->driver, "cuLaunchKernel", &stamps->launch) && CHECK_EQUAL(retain(&stamps->context, stamps->device), 0) &&
           CHECK_EQUAL(stamps->enter(stamps->context), 0) && CHECK_EQUAL(load(&module, stamp_ptx), 0) &&
           CHECK_EQUAL(function(&stamps->write, module, "stamp_write"), 0) &&
           CHECK_EQUAL(function(&stamps->verify, module, "stamp_verify"), 0) && CHECK_EQUAL(allocate(&stamps->errors, 12), 0) &&
           CHECK_EQUAL(set(stamps->errors, 0, 12), 0);
}

static inline int stamps_open_sim(struct stamps *stamps)
{
    size_t size = (size_t)stamps->most * sizeof(uint32_t);
    uint32_t *tags = (uint32_t *)malloc(size + 1), i;

    stamps->looked_at = (unsigned char *)calloc(stamps->most, 1);
    if (!CHECK(tags != NULL && stamps->looked_at != NULL))
        return 0;
    for (i = 0; i < stamps->most; i++)
        tags[i] = stamp_value(i);
    if (CHECK_OK(tcuda_malloc_cached((void **)&stamps->tags, size, TCUDA_STREAM_DEFAULT(stamps->device))) &&
        CHECK_OK(tcuda_malloc_cached((void **)&stamps->seen, STAMP_SPOTS * size, TCUDA_STREAM_DEFAULT(stamps->device))))
        CHECK_OK(tcuda_copy(stamps->tags, tags, size, false));
    free(tags);
    return stamps->seen != NULL;
}

/* For streams of a device, which becomes the current one. 0 after a failed check. */
static inline int stamps_open(struct stamps *stamps, uint32_t most, int32_t device)
{
    memset(stamps, 0, sizeof *stamps);
    stamps->most = most;
    stamps->device = device;
    if (!CHECK_OK(tcuda_set_device(device)) || !CHECK_OK(tcuda_synchronize(device)))
        return 0;
    return strcmp(tcuda_backend_name(), "cuda") == 0 ? stamps_open_cuda(stamps) : stamps_open_sim(stamps);
}

/* Once on each other thread that stamps. */
static inline void stamps_enter(const struct stamps *stamps)
{
    CHECK_OK(tcuda_set_device(stamps->device));
    if (stamps->driver != NULL)
        CHECK_EQUAL(stamps->enter(stamps->context), 0);
}

static inline void stamp_kernel(const struct stamps *stamps, void *kernel, uint32_t stamp, void *ptr, size_t size, tcuda_stream_t stream)
{
    /* A block has 512 bytes at least, and starts at a multiple of that: one word of each 512 bytes, and no two overlap unseen. */
    size_t words = size > 4 ? size / 4 : 1;
    uint32_t stride = size <= STAMP_WHOLE ? 4 : STAMP_STRIDE, value = stamp_value(stamp), count;
    uint64_t low = (uint64_t)(uintptr_t)ptr, high = low + 4 * (words - 1), first = (low + stride - 1) / stride * stride;
    /* About what a kernel needs that does something with all of it. */
    uint64_t errors = stamps->errors, cycles = size / 6000 + (stamp % 4 == 0 ? stamps->slow : 0);
    void *parameters[] = {&low, &high, &first, &stride, &count, &value, &errors, &cycles};
    unsigned grid;

    count = first <= high ? (uint32_t)((high - first) / stride + 1) : 0;
    grid = count / STAMP_THREADS + 1;
    if (grid > STAMP_GRID)
        grid = STAMP_GRID;
    CHECK_EQUAL(stamps->launch(kernel, grid, 1, 1, STAMP_THREADS, 1, 1, 0, (void *)stream, parameters, NULL), 0);
}

static inline char *stamp_spot(void *ptr, size_t size, int spot)
{
    size_t words = size > 4 ? size / 4 : 1;
    return (char *)ptr + 4 * (spot == 0 ? 0 : spot == 1 ? words / 2 : words - 1);
}

/* The stream fills the block. */
static inline void stamp_write(struct stamps *stamps, uint32_t stamp, void *ptr, size_t size, tcuda_stream_t stream)
{
    int spot;

    if (stamps->driver != NULL) {
        stamp_kernel(stamps, stamps->write, stamp, ptr, size, stream);
        return;
    }
    for (spot = 0; spot < STAMP_SPOTS; spot++)
        CHECK_OK(tcuda_copy_async(stamp_spot(ptr, size, spot), stamps->tags + stamp, 4, stream));
}

/* The stream looks whether the block still holds what was written. */
static inline void stamp_verify(struct stamps *stamps, uint32_t stamp, void *ptr, size_t size, tcuda_stream_t stream)
{
    int spot;

    if (stamps->driver != NULL) {
        stamp_kernel(stamps, stamps->verify, stamp, ptr, size, stream);
        return;
    }
    stamps->looked_at[stamp] = 1;
    for (spot = 0; spot < STAMP_SPOTS; spot++)
        CHECK_OK(tcuda_copy_async(stamps->seen + (size_t)stamp * STAMP_SPOTS + spot, stamp_spot(ptr, size, spot), 4, stream));
}

/* Waits for the device. How many words did not hold what was written. */
static inline uint32_t stamps_wrong(struct stamps *stamps)
{
    uint32_t found[3] = {1, 0, 0}, wrong = 0, i;
    int (*read_back)(void *, uint64_t, size_t);
    uint32_t *seen;

    CHECK_OK(tcuda_synchronize(stamps->device));
    if (stamps->driver != NULL) {
        if (stamp_find(stamps->driver, "cuMemcpyDtoH_v2", &read_back))
            CHECK_EQUAL(read_back(found, stamps->errors, sizeof found), 0);
        if (found[0] != 0)
            fprintf(stderr, "    a word holds %08x, not %08x\n", (unsigned)found[1], (unsigned)found[2]);
        return found[0];
    }
    seen = (uint32_t *)malloc((size_t)stamps->most * STAMP_SPOTS * 4 + 1);
    if (!CHECK(seen != NULL))
        return 1;
    CHECK_OK(tcuda_copy(seen, stamps->seen, (size_t)stamps->most * STAMP_SPOTS * 4, false));
    for (i = 0; i < stamps->most * STAMP_SPOTS; i++)
        wrong += stamps->looked_at[i / STAMP_SPOTS] != 0 && seen[i] != stamp_value(i / STAMP_SPOTS);
    free(seen);
    return wrong;
}

static inline void stamps_close(struct stamps *stamps)
{
    int (*give_back)(uint64_t);

    if (stamps->driver != NULL && stamp_find(stamps->driver, "cuMemFree_v2", &give_back))
        CHECK_EQUAL(give_back(stamps->errors), 0);
    CHECK_OK(tcuda_free_cached(stamps->tags));
    CHECK_OK(tcuda_free_cached(stamps->seen));
    free(stamps->looked_at);
}

#endif
