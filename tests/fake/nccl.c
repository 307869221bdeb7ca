/* A fake libnccl: every communicator has its ranks in this process and works alone. It checks what it is given, and keeps what was called in
   a list of texts. FAKE_NCCL=FUNCTION:CODE has a function answer that code (ncclCommGetAsyncError: tell it); FAKE_NCCL_BUSY=N has each
   communicator be in progress for so many questions after its start and after each group. With FAKE_NCCL_WAITS a split that blocks
   waits until its communicator is aborted. -DVERSION=22809. */
#define FAKE_CALLS fake_nccl_calls
#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct id {
    char bytes[128];
};
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, rest;
};
struct comm {
    int rank, size, busy, device;
    struct comm *parent;
    /* Where a split is to write, when it is over. */
    struct comm **later, *part;
    /* Some thread waits in it; it was aborted. */
    volatile int waits, aborted;
};

static char said[1 << 16];
static int depth, posted;
static __thread char failure[64];

/* What was called since the last time, a line each. */
const char *fake_nccl_said(void) {
    static char copy[sizeof said];
    strcpy(copy, said);
    said[0] = 0;
    return copy;
}

#define SAY(...) snprintf(said + strlen(said), sizeof said - strlen(said), __VA_ARGS__)

/* 0, or what the variable wants. */
static int wanted(const char *name) {
    const char *text = getenv("FAKE_NCCL"), *colon = text ? strchr(text, ':') : 0;
    note(name);
    if (!colon || strlen(name) != (size_t)(colon - text) || strncmp(text, name, colon - text)) return 0;
    snprintf(failure, sizeof failure, "%s went wrong", name);
    return atoi(colon + 1);
}

static int busy(void) { return getenv("FAKE_NCCL_BUSY") ? atoi(getenv("FAKE_NCCL_BUSY")) : 0; }

static int current(void) {
    int (*ask)(int *) = (int (*)(int *))dlsym(RTLD_DEFAULT, "cudaGetDevice"), device = -1;
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    if (!ask && runtime) ask = (int (*)(int *))dlsym(runtime, "cudaGetDevice");
    if (ask) ask(&device);
    return device;
}

const char *ncclGetErrorString(int code) { return code == 2 ? "unhandled system error" : code == 6 ? "remote process exited" : "some other error"; }
const char *ncclGetLastError(void *comm) { return comm ? "a communicator was given" : failure; }
int ncclGetVersion(int *version) {
    *version = VERSION;
    return wanted(__func__);
}
int ncclGetUniqueId(struct id *id) {
    int code = wanted(__func__);
    if (code) return code;
    static int last;
    id->bytes[0] = (char)__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    for (int i = 1; i < 128; i++) id->bytes[i] = (char)(i * 3);
    return 0;
}
int ncclCommInitRankConfig(struct comm **out, int size, struct id id, int rank, struct config *config) {
    int code = wanted(__func__);
    if (config->size != 24 || config->magic != 0xcafebeef || config->version != 21400) return 4;
    for (int i = 1; i < 128; i++)
        if (id.bytes[i] != (char)(i * 3)) return 4;
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    SAY("init %d of %d on %d, nvls %s%s\n", rank, size, current(), nvls ? nvls : "unset", config->blocking ? ", blocking" : "");
    struct comm *comm = calloc(1, sizeof *comm);
    *comm = (struct comm){rank, size, busy(), current(), 0, 0, 0, 0, 0};
    *out = comm;
    return code ? code : 7;
}
int ncclCommSplit(struct comm *comm, int color, int key, struct comm **out, struct config *config) {
    int code = wanted(__func__);
    if (config->magic != 0xcafebeef) return 4;
    SAY("split %d: color %d, key %d%s\n", comm->rank, color, key, config->blocking ? ", blocking" : "");
    if (code) return code;
    if (config->blocking && getenv("FAKE_NCCL_WAITS")) {
        for (comm->waits = 1; !comm->aborted;) usleep(1000);
        return 3;
    }
    comm->busy = busy();
    if (color >= 0) {
        struct comm *part = calloc(1, sizeof *part);
        *part = (struct comm){0, 1, busy(), comm->device, comm, 0, 0, 0, 0};
        if (comm->busy) {
            comm->later = out;
            comm->part = part;
        } else {
            *out = part;
        }
    }
    return 7;
}
int ncclCommGetAsyncError(struct comm *comm, int *code) {
    int told = wanted(__func__);
    *code = told;
    if (told) return 0;
    if (comm->busy > 0) {
        comm->busy--;
        *code = 7;
    } else if (comm->later) {
        *comm->later = comm->part;
        comm->later = 0;
    }
    return 0;
}
int ncclCommUserRank(struct comm *comm, int *rank) { GIVE(comm, *rank = comm->rank); }
int ncclCommCount(struct comm *comm, int *size) { GIVE(comm, *size = comm->size); }
int ncclCommAbort(struct comm *comm) {
    SAY("abort %d\n", comm->rank);
    comm->aborted = 1;
    if (!comm->waits) free(comm);
    return wanted(__func__);
}
int ncclCommDestroy(struct comm *comm) {
    SAY("destroy %d\n", comm->rank);
    free(comm);
    return wanted(__func__);
}
int ncclGroupStart(void) {
    SAY("group\n");
    int code = wanted(__func__);
    depth += code == 0;
    return code;
}
int ncclGroupEnd(void) {
    SAY("end\n");
    depth--;
    int code = wanted(__func__);
    return code ? code : posted ? (posted = 0, 7) : 0;
}

/* The body of a call: its line, and whether the device of the rank is current. */
#define POST(...) \
    do { \
        int code = wanted(__func__); \
        if (code) return code; \
        if (depth != 1 || current() != comm->device) return 5; \
        SAY(__VA_ARGS__); \
        comm->busy = busy(); \
        posted = 1; \
        return 0; \
    } while (0)

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, struct comm *comm, void *stream) {
    POST("all_reduce %p %p %zu type %d op %d rank %d stream %p\n", in, out, count, type, op, comm->rank, stream);
}
int ncclAllGather(const void *in, void *out, size_t count, int type, struct comm *comm, void *stream) {
    POST("all_gather %p %p %zu type %d rank %d stream %p\n", in, out, count, type, comm->rank, stream);
}
int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, struct comm *comm, void *stream) {
    POST("reduce_scatter %p %p %zu type %d op %d rank %d stream %p\n", in, out, count, type, op, comm->rank, stream);
}
int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, struct comm *comm, void *stream) {
    POST("broadcast %p %p %zu type %d root %d rank %d stream %p\n", in, out, count, type, root, comm->rank, stream);
}
int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, struct comm *comm, void *stream) {
    POST("reduce %p %p %zu type %d op %d root %d rank %d stream %p\n", in, out, count, type, op, root, comm->rank, stream);
}
int ncclSend(const void *in, size_t count, int type, int peer, struct comm *comm, void *stream) {
    POST("send %p %zu type %d peer %d rank %d stream %p\n", in, count, type, peer, comm->rank, stream);
}
int ncclRecv(void *out, size_t count, int type, int peer, struct comm *comm, void *stream) {
    POST("recv %p %zu type %d peer %d rank %d stream %p\n", out, count, type, peer, comm->rank, stream);
}
