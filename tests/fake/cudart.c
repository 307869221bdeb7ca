/* A fake libcudart: -DVERSION=13000; with -DANSWER=802 cudaGetDeviceCount answers that. As the real one it wants a driver of its own
   major version or a newer one (else 35), leaves outputs alone when it fails, and fills structs of the size of its version.
   FAKE_ORDER=201 makes it a machine of boards with UUIDs of their own, which CUDA_VISIBLE_DEVICES chooses from: the driver's numbers in
   CUDA's order. */
#define FAKE_CALLS fake_runtime_calls
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>


static __thread int device, last_error;

typedef struct {
    char bytes[64];
} ipc_t;

static int is_handle(const ipc_t *handle, int byte) {
    for (int i = 0; i < 64; i++)
        if (handle->bytes[i] != byte) return 0;
    return 1;
}

static void *driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : 0;
}

/* 0, or what every call answers without a driver that is new enough. */
static int start(void) {
    int (*version)(int *) = (int (*)(int *))driver("cuDriverGetVersion");
    int number = 0;
    if (!version || version(&number) || number / 1000 < VERSION / 1000) return last_error = 35;
    return 0;
}

/* What the first call that needs a context does. */
static int bind(void) {
    if (start()) return 35;
    void (*give)(int) = (void (*)(int))driver("fake_bind");
    if (give) give(device);
    return 0;
}

/* The first bytes of the visible devices' UUIDs: 10, 20, ... are boards by the driver's numbers, a0, a1 instances of MIG. */
static int visible(int *first) {
    const char *order = getenv("FAKE_ORDER"), *list = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0, all = strlen(order);
    for (; !list && count < all; count++) first[count] = 0x10 * (order[count] - '0' + 1);
    while (list && *list && count < 8) {
        unsigned byte = 0;
        if (*list >= '0' && *list < '0' + all) byte = 0x10 * (order[*list - '0'] - '0' + 1);
        else if (!strncmp(list, "GPU-", 4) || !strncmp(list, "MIG-", 4)) sscanf(list + 4, "%2x", &byte);
        if (!byte) break;
        first[count++] = byte;
        list = strchr(list, ',');
        list = list ? list + 1 : "";
    }
    return count;
}

static int devices(void) {
    const char *text = getenv("FAKE_DEVICES");
    int first[8];
    if (getenv("FAKE_ORDER")) return visible(first);
    return text ? atoi(text) : 2;
}

int cudaDriverGetVersion(int *version) {
    int (*ask)(int *) = (int (*)(int *))driver("cuDriverGetVersion");
    note(__func__);
    *version = 0;
    return ask ? ask(version) * 0 : 0;
}
int cudaRuntimeGetVersion(int *version) {
    note(__func__);
    if (VERSION < 12000 && start()) return 35;
    *version = VERSION;
    return 0;
}
int cudaGetLastError(void) {
    note(__func__);
    int answer = last_error;
    last_error = 0;
    return answer;
}
int cudaPeekAtLastError(void) { GIVE(last_error == 0, last_error = 1); }
int cudaGetDeviceCount(int *count) {
    note(__func__);
#ifdef ANSWER
    return last_error = ANSWER;
#endif
    if (start()) return 35;
    if (devices() == 0) return last_error = 100;
    *count = devices();
    return 0;
}
int cudaGetDevice(int *out) {
    if (getenv("FAKE_LOST")) return last_error = 700;
    GIVE(1, *out = device);
}
int cudaSetDevice(int wanted) {
    note(__func__);
    if (wanted < 0 || wanted >= devices()) return last_error = 101;
    device = wanted;
    /* Before CUDA 12 the context is made later. */
    return VERSION < 12000 ? 0 : bind();
}
int cudaDeviceSynchronize(void) { CHECK(1); }
int cudaDeviceGetAttribute(int *value, int attribute, int of) {
    /* Multiprocessors, compute capability, shared memory of a block. */
    int known = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 97 ? 232448 : 0;
    GIVE((known || attribute == 76) && of == 1, *value = known);
}
int cudaGetDeviceProperties(void *properties, int of) {
    size_t size = VERSION >= 13000 ? 1008 : 728;
    note(__func__);
    if (of != 1 && !getenv("FAKE_ORDER")) return 101;
    memset(properties, 0xa5, size);
    memcpy(properties, "Fake", 5);
    memcpy((char *)properties + 256, "0123456789abcdef", 16);
    if (getenv("FAKE_ORDER")) {
        int first[8];
        if (of < 0 || of >= visible(first)) return 101;
        /* Older drivers give the board's for an instance of it. */
        memset((char *)properties + 256, getenv("FAKE_BOARD_UUID") && first[of] >= 0xa0 ? 0x10 : first[of], 16);
    }
    *(size_t *)((char *)properties + 288) = SIZE;
    *(int *)((char *)properties + 360) = 9;
    *(int *)((char *)properties + 364) = 1;
    return 0;
}
int cudaDeviceGetPCIBusId(char *text, int length, int of) { GIVE(length >= 13 && of == 1, memcpy(text, "0000:3b:00.0", 13)); }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    note(__func__);
    *least = 0;
    *greatest = -5;
    return bind();
}
int cudaDeviceCanAccessPeer(int *can, int from, int to) { GIVE(from == 0 && to == 1, *can = 1); }
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    note(__func__);
    return last_error = peer == 1 && flags == 0 ? 704 : 1;
}
int cudaDeviceDisablePeerAccess(int peer) { CHECK(peer == 1); }
int cudaMemGetInfo(size_t *free_bytes, size_t *total) { GIVE(1, (*free_bytes = SIZE, *total = SIZE + 1)); }
int cudaMalloc(void **address, size_t size) {
    note(__func__);
    if (size != SIZE) return last_error = 2;
    *address = TO;
    return 0;
}
int cudaFree(void *address) { CHECK(address == TO); }
int cudaHostAlloc(void **address, size_t size, unsigned flags) { GIVE(size == SIZE && flags == 1, *address = FROM); }
int cudaFreeHost(void *address) { CHECK(address == FROM); }
int cudaHostRegister(void *address, size_t size, unsigned flags) { CHECK(address == FROM && size == SIZE && flags == 2); }
int cudaHostUnregister(void *address) { CHECK(address == FROM); }
int cudaPointerGetAttributes(void *attributes, const void *address) {
    note(__func__);
    memset(attributes, 0xa5, VERSION >= 13000 ? 88 : 24);
    /* Tensors begin at TO, of any size. */
    int here = address == FROM || address == OTHER, there = !here && (char *)address >= (char *)TO && (char *)address < (char *)TO + 0x10000;
    ((int *)attributes)[0] = there ? 2 : address == FROM ? 1 : address == OTHER ? 3 : 0;
    ((int *)attributes)[1] = there ? 1 : here ? 0 : -2;
    return 0;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { CHECK(to == TO && from == FROM && size == SIZE && kind == 4); }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, stream_t stream) {
    CHECK(to == TO && from == FROM && size == SIZE && kind == 4 && stream == STREAM);
}
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, stream_t stream) {
    CHECK(to == TO && to_device == 1 && from == FROM && from_device == 0 && size == SIZE && stream == STREAM);
}
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, stream_t stream) {
    CHECK(to == TO && to_pitch == 32 && from == FROM && from_pitch == 16 && width == 8 && height == 4 && kind == 4 && stream == STREAM);
}
int cudaMemset(void *address, int value, size_t size) { CHECK(address == TO && value == -7 && size == SIZE); }
int cudaMemsetAsync(void *address, int value, size_t size, stream_t stream) {
    CHECK(address == TO && value == -7 && size == SIZE && stream == STREAM);
}
int cudaStreamCreateWithPriority(stream_t *stream, unsigned flags, int priority) { GIVE(flags == 1 && priority == -3, *stream = STREAM); }
int cudaStreamDestroy(stream_t stream) { CHECK(stream == STREAM); }
int cudaStreamSynchronize(stream_t stream) {
    note(__func__);
    return stream == STREAM ? 0 : (last_error = 400);
}
int cudaStreamQuery(stream_t stream) {
    note(__func__);
    return stream == STREAM ? 0 : (last_error = 600);
}
int cudaStreamWaitEvent(stream_t stream, event_t event, unsigned flags) { CHECK(stream == STREAM && event == EVENT && flags <= 1); }
int cudaStreamGetPriority(stream_t stream, int *priority) { GIVE(stream == STREAM, *priority = -3); }
int cudaStreamGetFlags(stream_t stream, unsigned *flags) { GIVE(stream == STREAM, *flags = 1); }
int cudaStreamIsCapturing(stream_t stream, int *status) { GIVE(stream == STREAM, *status = 1); }
int cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current;
    int old = current;
    GIVE(*mode >= 0 && *mode <= 2, (current = *mode, *mode = old));
}
int cudaLaunchHostFunc(stream_t stream, void (*function)(void *), void *data) { GIVE(stream == STREAM, function(data)); }
int cudaEventCreateWithFlags(event_t *event, unsigned flags) { GIVE(flags == 2, *event = EVENT); }
int cudaEventDestroy(event_t event) { CHECK(event == EVENT); }
int cudaEventRecord(event_t event, stream_t stream) { CHECK(event == EVENT && stream == STREAM); }
int cudaEventRecordWithFlags(event_t event, stream_t stream, unsigned flags) { CHECK(event == EVENT && stream == STREAM && flags == 1); }
int cudaProfilerStart(void) { CHECK(1); }
int cudaProfilerStop(void) { CHECK(1); }
int cudaEventQuery(event_t event) {
    note(__func__);
    return event == EVENT ? 0 : (last_error = 600);
}
int cudaEventSynchronize(event_t event) { CHECK(event == EVENT); }
int cudaEventElapsedTime(float *milliseconds, event_t start_event, event_t end) {
    GIVE(start_event == EVENT && end == OTHER, *milliseconds = 1.5f);
}
int cudaStreamGetId(stream_t stream, unsigned long long *id) { GIVE(stream == STREAM, *id = 0x123456789abcdefULL); }
int cudaStreamGetDevice(stream_t stream, int *out) { GIVE(stream == STREAM, *out = 1); }
int cudaMallocAsync(void **address, size_t size, stream_t stream) { GIVE(size == SIZE && stream == STREAM, *address = TO); }
int cudaFreeAsync(void *address, stream_t stream) { CHECK(address == TO && stream == STREAM); }
int cudaDeviceGetDefaultMemPool(void **pool, int of) { GIVE(of == 1, *pool = OTHER); }
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) { CHECK(pool == OTHER && attribute == 4 && *(uint64_t *)value == SIZE); }
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    GIVE(pool == OTHER && attribute >= 4 && attribute <= 8, *(uint64_t *)value = SIZE + attribute);
}
int cudaMemPoolSetAccess(void *pool, const access_t *access, size_t count) {
    CHECK(pool == OTHER && count == 2 && access[0].location_type == 1 && access[0].location_id == 0 && access[0].flags == 3 &&
          access[1].location_id == 1 && access[1].flags == 1);
}
int cudaMemPoolTrimTo(void *pool, size_t keep) { CHECK(pool == OTHER && keep == SIZE); }
int cudaIpcGetMemHandle(ipc_t *handle, void *address) { GIVE(address == TO, memset(handle, 7, 64)); }
int cudaIpcOpenMemHandle(void **address, ipc_t handle, unsigned flags) { GIVE(is_handle(&handle, 7) && flags == 1, *address = OTHER); }
int cudaIpcCloseMemHandle(void *address) { CHECK(address == OTHER); }
int cudaIpcGetEventHandle(ipc_t *handle, event_t event) { GIVE(event == EVENT, memset(handle, 8, 64)); }
int cudaIpcOpenEventHandle(event_t *event, ipc_t handle) { GIVE(is_handle(&handle, 8), *event = EVENT); }
int cudaStreamBeginCapture(stream_t stream, int mode) { CHECK(stream == STREAM && mode == 2); }
int cudaStreamEndCapture(stream_t stream, void **graph) { GIVE(stream == STREAM, *graph = OTHER); }
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) { GIVE(graph == OTHER && !nodes, *count = SIZE); }
int cudaGraphLaunch(void *exec, stream_t stream) { CHECK(exec == TO && stream == STREAM); }
int cudaGraphDestroy(void *graph) { CHECK(graph == OTHER); }
int cudaGraphExecDestroy(void *exec) { CHECK(exec == TO); }
int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    GIVE(graph == OTHER && flags == (VERSION < 12000 ? 1 : 9), *exec = TO);
}
int cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags) {
    CHECK(graph == OTHER && !strcmp(path, "graph.dot") && flags == 1);
}

const char *cudaGetErrorName(int code) {
    note(__func__);
    switch (code) {
    case 2: return "cudaErrorMemoryAllocation";
    case 802: return "cudaErrorSystemNotReady";
    default: return "unrecognized error code";
    }
}
const char *cudaGetErrorString(int code) {
    note(__func__);
    switch (code) {
    case 2: return "out of memory";
    case 802: return "system not yet initialized";
    default: return "unrecognized error code";
    }
}
