/* A fake libcublas.so.13, or with -DFFT a fake libcufft.so.12: what it is told of each handle or plan can be read. FAKE_MATH=FUNCTION:CODE:COUNT has
   a function answer that code so many times. */
#define FAKE_CALLS fake_math_calls
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static char now[128];
static int refused;

/* 0, or what the variable wants. */
static int wanted(const char *name) {
    const char *text = getenv("FAKE_MATH"), *colon = text ? strchr(text, ':') : 0;
    int code, count;
    note(name);
    if (!colon || strlen(name) != (size_t)(colon - text) || strncmp(text, name, colon - text)) return 0;
    if (strcmp(now, text)) {
        snprintf(now, sizeof now, "%s", text);
        refused = 0;
    }
    if (sscanf(colon, ":%d:%d", &code, &count) != 2) abort();
    return refused++ < count ? code : 0;
}

static int device(void) {
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    int now = -1;
    if (!runtime || ((int (*)(int *))dlsym(runtime, "cudaGetDevice"))(&now)) abort();
    return now;
}

#define DO(condition, assignment) \
    do { \
        int code = wanted(__func__); \
        if (code) return code; \
        if (!(condition)) return 7; \
        assignment; \
        return 0; \
    } while (0)

#ifndef FFT
/* Never freed, so that a dead one can be told. */
struct handle {
    size_t alive, device;
    void *stream, *workspace;
    size_t size;
};

int cublasCreate_v2(struct handle **handle) {
    int code = wanted(__func__);
    if (code) return code;
    *handle = calloc(1, sizeof **handle);
    (*handle)->alive = 1;
    (*handle)->device = (size_t)device();
    return 0;
}
int cublasDestroy_v2(struct handle *h) { DO(h->alive && h->device == (size_t)device(), h->alive = 0); }
int cublasSetStream_v2(struct handle *h, void *stream) { DO(h->alive, (h->stream = stream, h->workspace = 0, h->size = 0)); }
int cublasSetWorkspace_v2(struct handle *h, void *workspace, size_t size) {
    DO(h->alive && (size_t)workspace % 256 == 0, (h->workspace = workspace, h->size = size));
}
#else
struct plan {
    size_t alive, device;
    void *stream, *work;
    size_t size;
    int64_t n[3], embed[2][3], stride[2], distance[2], batch, type, rank;
};
static struct plan plans[100000];
static int last;

__attribute__((visibility("default"))) struct plan *fake_fft_plan(int plan) { return &plans[plan]; }

int cufftCreate(int *plan) {
    int code = wanted(__func__);
    if (code) return code;
    *plan = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    plans[*plan].alive = 1;
    return 0;
}
int cufftDestroy(int plan) { DO(plans[plan].alive && (!plans[plan].size || plans[plan].device == (size_t)device()), plans[plan].alive = 0); }
int cufftSetAutoAllocation(int plan, int on) { DO(plans[plan].alive && !on && !plans[plan].size, (void)0); }
int cufftMakePlanMany64(int plan, int rank, int64_t *n, int64_t *in, int64_t in_stride, int64_t in_distance, int64_t *out, int64_t out_stride,
                        int64_t out_distance, int type, int64_t batch, size_t *size) {
    struct plan *p = &plans[plan];
    int code = wanted(__func__);
    if (code) return code;
    if (!p->alive || p->size) return 7;
    *size = 16 * (size_t)batch;
    for (int i = 0; i < rank; i++) {
        p->n[i] = n[i];
        p->embed[0][i] = in ? in[i] : 0;
        p->embed[1][i] = out ? out[i] : 0;
        *size *= (size_t)n[i];
    }
    p->stride[0] = in_stride, p->stride[1] = out_stride, p->distance[0] = in_distance, p->distance[1] = out_distance;
    p->batch = batch, p->type = type, p->rank = rank;
    p->size = *size;
    p->device = (size_t)device();
    return 0;
}
int cufftSetStream(int plan, void *stream) { DO(plans[plan].alive && plans[plan].size, plans[plan].stream = stream); }
int cufftSetWorkArea(int plan, void *work) { DO(plans[plan].alive && work, plans[plan].work = work); }
#endif
