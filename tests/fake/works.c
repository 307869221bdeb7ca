/* A fake libcudart.so.13 that works: memory of the host stands for that of two devices, and every stream is idle, but for what events tell with
   FAKE_BUSY. With -DDRIVER the libcuda.so.1
   beside it, which has no virtual memory. */
#define FAKE_CALLS fake_runtime_calls
#include "fake.h"
#include <stdio.h>
#include <stdlib.h>

#ifdef DRIVER
#include <dlfcn.h>
int cuDriverGetVersion(int *version) { GIVE(1, *version = 13000); }
int cuStreamGetCaptureInfo_v2(stream_t stream, int *status, unsigned long long *id, void **graph, const void ***nodes, size_t *count) {
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    stream_t captured = ((stream_t(*)(void))dlsym(runtime, "fake_captured"))();
    GIVE(!graph && !nodes && !count, (*status = captured && stream == captured, *id = (uintptr_t)captured));
}
#else

static __thread int device;
static __thread int mode;
/* The stream that is captured: one at a time. */
static stream_t captured;
__attribute__((visibility("default"))) stream_t fake_captured(void) { return captured; }

/* What is not freed. */
static struct {
    char *start;
    size_t size;
    int device;
} blocks[4096];

int cudaDriverGetVersion(int *version) { GIVE(1, *version = 13000); }
int cudaRuntimeGetVersion(int *version) { GIVE(1, *version = 13000); }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
int cudaGetDeviceCount(int *count) { GIVE(1, *count = 2); }
int cudaGetDevice(int *out) { GIVE(1, *out = device); }
int cudaSetDevice(int wanted) { GIVE(wanted >= 0 && wanted < 2, device = wanted); }
int cudaDeviceSynchronize(void) { CHECK(1); }
int cudaDeviceGetAttribute(int *value, int attribute, int of) {
    const char *major = getenv("FAKE_MAJOR");
    GIVE(of >= 0 && of < 2, *value = attribute == 75 ? (major ? atoi(major) : 9) : attribute == 16 ? 132 : attribute == 76 ? 0 : 1);
}
int cudaGetDeviceProperties(void *properties, int of) {
    const char *major = getenv("FAKE_MAJOR");
    note(__func__);
    if (of < 0 || of > 1) return 101;
    memset(properties, 0, 1008);
    memcpy(properties, "Fake", 5);
    memset((char *)properties + 256, of + 1, 16);
    *(size_t *)((char *)properties + 288) = (size_t)16 << 30;
    *(int *)((char *)properties + 360) = major ? atoi(major) : 9;
    return 0;
}
int cudaDeviceGetPCIBusId(char *text, int length, int of) { GIVE(length >= 13, snprintf(text, 13, "0000:%02x:00.0", of)); }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { GIVE(1, (*least = 0, *greatest = -5)); }
int cudaDeviceCanAccessPeer(int *can, int from, int to) { GIVE(from != to, *can = 0); }
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) { CHECK(peer >= 0 && !flags); }
int cudaDeviceDisablePeerAccess(int peer) { CHECK(peer >= 0); }
int cudaMemGetInfo(size_t *free_bytes, size_t *total) { GIVE(1, (*free_bytes = (size_t)15 << 30, *total = (size_t)16 << 30)); }
int cudaMalloc(void **address, size_t size) {
    note(__func__);
    char *start = aligned_alloc(1 << 21, (size + (1 << 21) - 1) >> 21 << 21);
    for (int i = 0; start && i < 4096; i++) {
        char *none = 0;
        if (__atomic_compare_exchange_n(&blocks[i].start, &none, start, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            blocks[i].size = size;
            blocks[i].device = device;
            *address = start;
            return 0;
        }
    }
    return 2;
}
int cudaFree(void *address) {
    note(__func__);
    for (int i = 0; i < 4096; i++)
        if (address && blocks[i].start == address) {
            free(address);
            blocks[i].start = 0;
            return 0;
        }
    return address ? 1 : 0;
}
int cudaHostAlloc(void **address, size_t size, unsigned flags) { GIVE(flags <= 1, *address = malloc(size)); }
int cudaFreeHost(void *address) { GIVE(1, free(address)); }
int cudaHostRegister(void *address, size_t size, unsigned flags) { CHECK(address && size && flags < 9); }
int cudaHostUnregister(void *address) { CHECK(address != 0); }
int cudaPointerGetAttributes(void *attributes, const void *address) {
    note(__func__);
    memset(attributes, 0, 88);
    for (int i = 0; i < 4096; i++)
        if (blocks[i].start && (const char *)address >= blocks[i].start && (const char *)address < blocks[i].start + blocks[i].size) {
            ((int *)attributes)[0] = 2;
            ((int *)attributes)[1] = blocks[i].device;
        }
    return 0;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { GIVE(kind == 4, memcpy(to, from, size)); }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, stream_t stream) { GIVE(kind == 4, (memcpy(to, from, size), (void)stream)); }
int cudaMemcpyPeerAsync(void *to, int t, const void *from, int f, size_t size, stream_t stream) { GIVE(t != f, (memcpy(to, from, size), (void)stream)); }
int cudaMemcpy2DAsync(void *to, size_t tp, const void *from, size_t fp, size_t width, size_t height, int kind, stream_t stream) {
    (void)to, (void)tp, (void)from, (void)fp, (void)width, (void)height, (void)kind, (void)stream;
    CHECK(0);
}
int cudaMemset(void *address, int value, size_t size) { GIVE(1, memset(address, value, size)); }
int cudaMemsetAsync(void *address, int value, size_t size, stream_t stream) { GIVE(1, (memset(address, value, size), (void)stream)); }
int cudaStreamCreateWithPriority(stream_t *stream, unsigned flags, int priority) {
    int *made = malloc(sizeof *made);
    *made = device;
    GIVE(flags == 1 && priority <= 0, *stream = made);
}
/* Whoever uses one that was destroyed reads what is not there. */
static void check_alive(stream_t stream) {
    if ((uintptr_t)stream > 2 && *(int *)stream < 0) abort();
}
int cudaStreamDestroy(stream_t stream) { GIVE(stream != 0, *(int *)stream = -1); }
int cudaStreamSynchronize(stream_t stream) { GIVE(1, (void)stream); }
int cudaStreamQuery(stream_t stream) { GIVE(1, (void)stream); }
int cudaStreamWaitEvent(stream_t stream, event_t event, unsigned flags) { GIVE(event && !flags, (void)stream); }
int cudaStreamGetPriority(stream_t stream, int *priority) { GIVE(1, (*priority = 0, (void)stream)); }
int cudaStreamGetFlags(stream_t stream, unsigned *flags) { GIVE(1, (*flags = 1, (void)stream)); }
int cudaStreamIsCapturing(stream_t stream, int *status) { GIVE(1, *status = captured && stream == captured); }
int cudaThreadExchangeStreamCaptureMode(int *wanted) {
    int old = mode;
    GIVE(1, (mode = *wanted, *wanted = old));
}
int cudaLaunchHostFunc(stream_t stream, void (*function)(void *), void *data) { GIVE(1, (function(data), (void)stream)); }
int cudaEventCreateWithFlags(event_t *event, unsigned flags) { GIVE(flags < 8, *event = malloc(8)); }
int cudaEventDestroy(event_t event) { GIVE(event != 0, free(event)); }
int cudaEventRecord(event_t event, stream_t stream) { GIVE(event != 0, check_alive(stream)); }
int cudaEventQuery(event_t event) {
    note(__func__);
    return !event ? 1 : getenv("FAKE_BUSY") ? 600 : 0;
}
int cudaEventSynchronize(event_t event) { CHECK(event != 0); }
int cudaEventElapsedTime(float *milliseconds, event_t start_event, event_t end) { GIVE(start_event && end, *milliseconds = 1); }
int cudaStreamGetDevice(stream_t stream, int *out) { GIVE(stream != 0, *out = *(int *)stream); }
int cudaStreamBeginCapture(stream_t stream, int how) { GIVE(stream && !captured && how <= 2, captured = stream); }
int cudaStreamEndCapture(stream_t stream, void **graph) { GIVE(stream == captured, (captured = 0, *graph = malloc(8))); }
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) { GIVE(graph && !nodes, *count = 1); }
int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { GIVE(graph && flags, *exec = malloc(8)); }
int cudaGraphLaunch(void *exec, stream_t stream) { GIVE(exec != 0, (void)stream); }
int cudaGraphDestroy(void *graph) { GIVE(graph != 0, free(graph)); }
int cudaGraphExecDestroy(void *exec) { GIVE(exec != 0, free(exec)); }
const char *cudaGetErrorName(int code) { return code == 2 ? "cudaErrorMemoryAllocation" : "an error"; }
const char *cudaGetErrorString(int code) { return code == 2 ? "out of memory" : "an error"; }
/* Memory is this process's alone. */
typedef struct {
    char bytes[64];
} ipc_t;
int cudaIpcGetMemHandle(ipc_t *handle, void *address) { GIVE(address == NULL, memset(handle, 0, 64)); }
int cudaIpcOpenMemHandle(void **address, ipc_t handle, unsigned flags) { GIVE(handle.bytes[0] && !flags, *address = NULL); }
int cudaIpcCloseMemHandle(void *address) { CHECK(address == NULL); }
int cudaIpcGetEventHandle(ipc_t *handle, void *event) { GIVE(event == NULL, memset(handle, 0, 64)); }
int cudaIpcOpenEventHandle(void **event, ipc_t handle) { GIVE(handle.bytes[0], *event = NULL); }
#endif
