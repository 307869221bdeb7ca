/* A libcudart.so.13 with no GPU, on which the allocator of torch runs as it ships. It keeps account of memory, plain and virtual, and
 * counts the calls of each thread; every stream is always idle. FAKE_CUDART_MEMORY is the device's memory in GiB. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

/* The headers rename them; the library is asked for these names. */
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo
#undef cudaGraphNodeGetDependencies
#undef cudaGetDriverEntryPointByVersion

#define MIB2 ((uint64_t)2 << 20)
#define PLACES (1 << 20)

/* Of the calling thread, so that counting shares no line between threads. */
static __thread uint64_t calls;
static uint64_t total = (uint64_t)80 << 30, used;

uint64_t fake_cudart_calls(void)
{
    return calls;
}

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("FAKE_CUDART_MEMORY");
    if (text != NULL)
        total = strtoull(text, NULL, 10) << 30;
}

/* Sizes of what is allocated, by address or handle. The allocators call with their own lock held. */
static uint64_t keys[PLACES], sizes[PLACES];
#define GONE 1

static size_t place_of(uint64_t key)
{
    return (size_t)((key >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 44);
}

static void put(uint64_t key, uint64_t size)
{
    size_t at = place_of(key);
    while (keys[at] > GONE)
        at = (at + 1) % PLACES;
    keys[at] = key;
    sizes[at] = size;
}

static uint64_t take(uint64_t key)
{
    size_t at = place_of(key);
    while (keys[at] != key) {
        if (keys[at] == 0)
            return 0;
        at = (at + 1) % PLACES;
    }
    keys[at] = GONE;
    return sizes[at];
}

static uint64_t up(uint64_t size, uint64_t step)
{
    return (size + step - 1) / step * step;
}

/* ---- Memory */

static cudaError_t allocate(void **ptr, size_t size)
{
    static uint64_t address = 0x7f0000000000;
    uint64_t held = size <= 1 << 20 ? up(size, 512) : up(size, MIB2);

    calls++;
    *ptr = NULL;
    if (used + held > total)
        return cudaErrorMemoryAllocation;
    *ptr = (void *)address;
    put(address, held);
    address += up(held, MIB2);
    used += held;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t size) { return allocate(ptr, size); }
cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t s) { (void)s; return allocate(ptr, size); }
cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t p, cudaStream_t s) { (void)p, (void)s; return allocate(ptr, size); }
cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned flags) { (void)flags; return allocate(ptr, size); }

cudaError_t cudaFree(void *ptr)
{
    calls++;
    if (ptr != NULL)
        used -= take((uintptr_t)ptr);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t s) { (void)s; return cudaFree(ptr); }

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    calls++;
    *ptr = malloc(size);
    return *ptr != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned flags) { (void)flags; return cudaMallocHost(ptr, size); }
cudaError_t cudaFreeHost(void *ptr) { calls++; free(ptr); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) { calls++; *free_bytes = total - used; *total_bytes = total; return cudaSuccess; }

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p, unsigned long long f)
{
    static uint64_t next = 0x5000000;
    (void)p, (void)f;
    calls++;
    if (used + size > total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    used += size;
    *handle = next += 512;
    put(next, size);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) { calls++; used -= take(handle); return CUDA_SUCCESS; }

static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t a, CUdeviceptr at, unsigned long long f)
{
    static uint64_t next = 0x100000000000;
    (void)a, (void)at, (void)f;
    calls++;
    *ptr = next;
    next += up(size, MIB2);
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *size, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags f)
{
    (void)p, (void)f;
    calls++;
    *size = MIB2;
    return CUDA_SUCCESS;
}

static CUresult attribute(int *value, int a, int d) { (void)a, (void)d; calls++; *value = 0; return CUDA_SUCCESS; }
static CUresult device_get(CUdevice *device, int number) { calls++; *device = number; return CUDA_SUCCESS; }
static CUresult error_string(CUresult r, const char **text) { (void)r; *text = "fake"; return CUDA_SUCCESS; }
/* Map, unmap, set access, give an address range back. */
static CUresult fine(void) { calls++; return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned v, unsigned long long f,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    static const struct { const char *name; void *function; } known[] = {
        {"cuMemCreate", (void *)create}, {"cuMemRelease", (void *)release}, {"cuMemAddressReserve", (void *)reserve},
        {"cuMemGetAllocationGranularity", (void *)granularity}, {"cuDeviceGetAttribute", (void *)attribute},
        {"cuDeviceGet", (void *)device_get}, {"cuGetErrorString", (void *)error_string}};
    size_t i;

    (void)v, (void)f;
    calls++;
    *function = (void *)fine;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0)
            *function = known[i].function;
    if (result != NULL)
        *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- Devices, streams, events */

static __thread int current;

cudaError_t cudaGetDevice(int *device) { calls++; *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { calls++; current = device; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { calls++; *count = 1; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int d) { (void)a, (void)d; calls++; *value = 1; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { calls++; *version = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { calls++; *version = 13000; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int d)
{
    (void)d;
    calls++;
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "fake");
    properties->major = 9;
    properties->totalGlobalMem = total;
    properties->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { calls++; *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; calls++; *can = 0; return cudaSuccess; }

static uintptr_t next_stream(void)
{
    static uintptr_t last = 0x1000;
    return __atomic_add_fetch(&last, 0x100, __ATOMIC_RELAXED);
}

cudaError_t cudaStreamCreate(cudaStream_t *s) { calls++; *s = (cudaStream_t)next_stream(); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { (void)f; return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { (void)f, (void)p; return cudaStreamCreate(s); }
cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *id) { calls++; *id = (uintptr_t)s; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) { (void)s; calls++; *status = cudaStreamCaptureStatusNone; return cudaSuccess; }

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **n, const cudaGraphEdgeData **e, size_t *count)
{
    (void)s, (void)g, (void)n, (void)e, (void)count;
    calls++;
    *status = cudaStreamCaptureStatusNone;
    if (id != NULL)
        *id = 0;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t n, cudaGraphNode_t *d, cudaGraphEdgeData *e, size_t *count)
{
    (void)n, (void)d, (void)e;
    calls++;
    *count = 0;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned f) { (void)f; calls++; *event = (cudaEvent_t)malloc(64); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { calls++; free(event); return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { (void)a, (void)b; calls++; *ms = 0; return cudaSuccess; }

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, enum cudaMemPoolAttr a, void *value) { (void)p, (void)a; calls++; *(uint64_t *)value = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int d) { (void)d; calls++; *pool = (cudaMemPool_t)0x77; return cudaSuccess; }
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *p) { (void)p; calls++; *pool = (cudaMemPool_t)0x78; return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    (void)p;
    calls++;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeDevice;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t code) { return code == cudaSuccess ? "cudaSuccess" : "cudaError"; }
const char *cudaGetErrorString(cudaError_t code) { return code == cudaSuccess ? "no error" : "an error of the fake runtime"; }

/* ---- What there is nothing to do for */

/* Other names of one function, since their prototypes differ. */
cudaError_t fake_fine(void)
{
    calls++;
    return cudaSuccess;
}

#define FINE(name) __asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", fake_fine\n");

FINE(cudaDeviceEnablePeerAccess)
FINE(cudaDeviceSynchronize)
FINE(cudaEventQuery)
FINE(cudaEventRecord)
FINE(cudaEventRecordWithFlags)
FINE(cudaEventSynchronize)
FINE(cudaGetLastError)
FINE(cudaIpcCloseMemHandle)
FINE(cudaIpcGetMemHandle)
FINE(cudaIpcOpenMemHandle)
FINE(cudaMemPoolDestroy)
FINE(cudaMemPoolSetAccess)
FINE(cudaMemPoolSetAttribute)
FINE(cudaMemPoolTrimTo)
FINE(cudaMemPrefetchAsync)
FINE(cudaMemcpy)
FINE(cudaMemcpyAsync)
FINE(cudaMemcpyPeerAsync)
FINE(cudaMemsetAsync)
FINE(cudaPeekAtLastError)
FINE(cudaStreamDestroy)
FINE(cudaStreamQuery)
FINE(cudaStreamSynchronize)
FINE(cudaStreamWaitEvent)
FINE(cudaThreadExchangeStreamCaptureMode)
