/* A fake libcuda.so.1: -DVERSION=12040. Contexts are real in one respect: a thread has none until fake_bind gives it one. */
#define FAKE_CALLS fake_driver_calls
#include "fake.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} prop_t;

static __thread int bound = -1;

/* For the fake runtime: which device's context the calling thread has. */
void fake_bind(int device) {
    note(__func__);
    bound = device;
}

#define NEEDS_CONTEXT \
    do { \
        if (bound < 0) { \
            note(__func__); \
            return 201; \
        } \
    } while (0)

int cuDriverGetVersion(int *version) {
#ifdef STUB
    (void)version;
    return 34;
#else
    GIVE(1, *version = VERSION);
#endif
}

int cuMemGetAllocationGranularity(size_t *granularity, const prop_t *p, int option) {
    GIVE(p->type == 1 && p->handle_types == 9 && p->location_type == 1 && p->location_id == 1 && p->compression == 2 && p->rdma == 1 &&
             p->usage == 3 && !p->win32 && option == 0,
         *granularity = SIZE);
}
int cuMemAddressReserve(void **address, size_t size, size_t alignment, void *wish, unsigned long long flags) {
    GIVE(size == SIZE && alignment == 0x200000 && !wish && flags == 0, *address = TO);
}
int cuMemAddressFree(void *address, size_t size) { CHECK(address == TO && size == SIZE); }
int cuMemCreate(unsigned long long *handle, size_t size, const prop_t *p, unsigned long long flags) {
    GIVE(size == SIZE && p->location_id == 1 && flags == 0, *handle = 0x123456789abcdefULL);
}
int cuMemRelease(unsigned long long handle) { CHECK(handle == 0x123456789abcdefULL); }
int cuMemMap(void *address, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
    CHECK(address == TO && size == SIZE && offset == 0 && handle == 0x123456789abcdefULL && flags == 0);
}
int cuMemUnmap(void *address, size_t size) { CHECK(address == TO && size == SIZE); }
int cuMemSetAccess(void *address, size_t size, const access_t *access, size_t count) {
    CHECK(address == TO && size == SIZE && count == 2 && access[0].location_type == 1 && access[0].location_id == 0 &&
          access[0].flags == 3 && access[1].location_id == 1 && access[1].flags == 1);
}
int cuMemExportToShareableHandle(void *shareable, unsigned long long handle, int type, unsigned long long flags) {
    GIVE(handle == 0x123456789abcdefULL && type == 1 && flags == 0, *(int *)shareable = open("/dev/null", O_RDWR));
}
int cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int type) {
    GIVE(fcntl((int)(intptr_t)shareable, F_GETFD) >= 0 && type == 1, *handle = 0x123456789abcdefULL);
}
int cuMemGetAddressRange_v2(void **base, size_t *size, void *address) {
    NEEDS_CONTEXT;
    GIVE(address == FROM, (*base = TO, *size = SIZE));
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { GIVE(device == 1, (*flags = 4, *active = 1)); }
int cuDevicePrimaryCtxRetain(void **context, int device) { GIVE(device == 1, *context = OTHER); }
int cuStreamGetCtx(stream_t stream, void **context) {
    NEEDS_CONTEXT;
    GIVE(stream == STREAM, *context = OTHER);
}
int cuCtxPushCurrent_v2(void *context) { GIVE(context == OTHER, bound = 1); }
int cuCtxPopCurrent_v2(void **context) { GIVE(bound == 1, (*context = OTHER, bound = 0)); }
int cuCtxGetDevice(int *device) {
    NEEDS_CONTEXT;
    GIVE(1, *device = bound);
}
int cuModuleLoadData(void **module, const void *image) {
    NEEDS_CONTEXT;
    if (getenv("FAKE_LOAD")) return atoi(getenv("FAKE_LOAD"));
    /* What the fake NVRTC makes, or tcuda's own. */
    GIVE(!strcmp(image, "ptx") || strstr(image, ".visible .entry"), *module = (void *)(0x7f0000006000 + bound));
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    NEEDS_CONTEXT;
    /* Comes back when the test says so. */
    const char *gate = getenv("FAKE_GATE");
    if (gate && open(gate, O_CREAT | O_RDWR, 0600) >= 0)
        while (!access(gate, F_OK)) usleep(1000);
    if (getenv("FAKE_FUNCTION")) return note(__func__), atoi(getenv("FAKE_FUNCTION"));
    int elements = !strcmp(name, "tcuda_jit");
    GIVE(module == (void *)(0x7f0000006000 + bound) && (elements || !strcmp(name, "kernel")), *function = (char *)OTHER + elements);
}
int cuModuleUnload(void *module) {
    NEEDS_CONTEXT;
    CHECK(module == (void *)(0x7f0000006000 + bound));
}
/* What a launch of OTHER may have: of the 48 KiB that all have it takes 10 itself. */
static int allowed = 49152 - 10;

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   stream_t stream, void **parameters, void **extra) {
    NEEDS_CONTEXT;
    /* An element-wise function of two inputs, in place, over 5,000 floats, with one extra argument: 2,048 of them a block. */
    if (function == (char *)OTHER + 1) {
        const struct {
            void *data[3];
            unsigned count, dims;
            double a[2];
        } *args = parameters[0];
        CHECK(gx == 3 && gy == 1 && gz == 1 && bx == 256 && by == 1 && bz == 1 && shared == 0 && stream == STREAM && !extra &&
              args->data[0] == TO && args->data[1] == TO && args->data[2] == TO && args->count == 5000 && args->dims == 1 && args->a[0] == 2.5);
    }
    CHECK(function == OTHER && gx == 1 && gy == 2 && gz == 3 && bx == 4 && by == 5 && bz == 6 && (shared == 7 || (shared > 48 << 10 && shared <= (unsigned)allowed)) && stream == STREAM &&
          *(int *)parameters[0] == 8 && !extra);
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    NEEDS_CONTEXT;
    GIVE(function == OTHER, *value = attribute ? attribute * 10 : 1024);
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    NEEDS_CONTEXT;
    if (function != OTHER || attribute != 8 || value > 232448 - 10) return 1;
    GIVE(1, allowed = value);
}
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    NEEDS_CONTEXT;
    GIVE(function == OTHER && index < 2, (*offset = index * 8, *size = index ? 4 : 8));
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block, size_t shared) {
    NEEDS_CONTEXT;
    GIVE(function == OTHER && block == 256, *blocks = (int)shared > allowed ? 0 : 3);
}
int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, size_t (*shared_of_block)(int), size_t shared, int limit) {
    NEEDS_CONTEXT;
    GIVE(function == OTHER && !shared_of_block && (shared == 2048 || (int)shared <= allowed) && limit == 512, (*grid = 264, *block = 384));
}
int cuStreamGetCaptureInfo_v2(stream_t stream, int *status, unsigned long long *id, void **graph, const void ***nodes, size_t *count) {
    NEEDS_CONTEXT;
    GIVE(stream == STREAM && !graph && !nodes && !count, (*status = 1, *id = 0x123456789abcdefULL));
}
/* FROM: a graph that differs in more than arguments. */
int cuGraphExecUpdate(void *exec, void *graph, void **node, int *result) {
    NEEDS_CONTEXT;
    note(__func__);
    if (exec != TO || (graph != OTHER && graph != FROM)) return 1;
    *node = 0;
    *result = graph == OTHER ? 0 : 2;
    return graph == OTHER ? 0 : 910;
}

/* CUdevResource. */
typedef struct {
    int type;
    unsigned char internal[92];
    union {
        unsigned multiprocessors;
        unsigned char oversize[48];
    } of;
} resource_t;

int cuDeviceGetDevResource(int device, resource_t *resource, int type) {
    GIVE(device == 1 && type == 1,
         (memset(resource, 0, sizeof *resource), resource->type = 1, resource->internal[91] = 5, resource->of.multiprocessors = 132));
}
/* 66: what there is no group for, 67: what the driver calls so. */
int cuDevSmResourceSplitByCount(resource_t *result, unsigned *count, const resource_t *input, resource_t *rest, unsigned flags, unsigned least) {
    note(__func__);
    if (*count != 1 || input->internal[91] != 5 || input->of.multiprocessors != 132 || rest || flags || !least) return 1;
    if (least == 67) return 915;
    *result = *input;
    result->internal[0] = 6;
    result->of.multiprocessors = (least + 7) / 8 * 8;
    *count = least != 66;
    return 0;
}
int cuDevResourceGenerateDesc(void **description, resource_t *resources, unsigned count) {
    GIVE(count == 1 && resources->internal[0] == 6 && resources->internal[91] == 5 && resources->of.multiprocessors == 24, *description = FROM);
}
int cuGreenCtxCreate(void **context, void *description, int device, unsigned flags) {
    NEEDS_CONTEXT;
    GIVE(description == FROM && device == 1 && flags == 1, *context = OTHER);
}
int cuGreenCtxStreamCreate(stream_t *stream, void *context, unsigned flags, int priority) {
    GIVE(context == OTHER && flags == 1 && priority == 0, *stream = STREAM);
}
int cuGreenCtxDestroy(void *context) { CHECK(context == OTHER); }
