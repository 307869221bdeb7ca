/* Memory of the cache behaves like the driver's own for others: a kernel of another device reads and writes it, be it allocated before
 * or after the devices became peers; network cards reach it where they reach the driver's; NCCL registers it and works on it. With virtual
 * memory, also where pieces of it are mapped a second time side by side, and with plain segments. (On the simulated device, which has no kernels, copies go another way; tests/conformance/memory.rs writes
 * directly.) NCCL is what TCUDA_TEST_NCCL names, else what the loader finds. */

#include "stamp.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 4, BEFORE = 2, PIECES = 16, MOST_DEVICES = 2 };

static const size_t sizes[BLOCKS] = {1000, (size_t)40 << 20, (size_t)3 << 20, (size_t)200 << 20};
/* A piece that begins in the middle of a handle of the driver's has 18 MiB in whole ones, which is what can be mapped again. */
static const size_t piece = (size_t)20 << 20, stitched_size = PIECES / 2 * ((size_t)18 << 20);
static int32_t devices;
static void *nccl;

static void *take(size_t size, int32_t device)
{
    void *block = NULL;
    CHECK_OK(tcuda_malloc_cached(&block, size, TCUDA_STREAM_DEFAULT(device)));
    return block;
}

struct stitched {
    void *block;
    /* What keeps the pieces apart. */
    void *between[PIECES / 2];
};

/* A block that the cache makes of free pieces which lie apart: they are mapped a second time, side by side. The driver gave no more for
 * it. */
static struct stitched take_stitched(int32_t device)
{
    const tcuda_stream_t stream = TCUDA_STREAM_DEFAULT(device);
    struct stitched stitched;
    void *pieces[PIECES], *block = NULL;
    uint64_t before = 0, after = 1;
    int64_t retries = -1;
    int i, inside = 0;

    /* In small handles, so that a free piece has some to itself. */
    CHECK_OK(tcuda_set_alloc_conf("tight:True"));
    CHECK_OK(tcuda_empty_cache(device));
    for (i = 0; i < PIECES; i++)
        CHECK_OK(tcuda_malloc_cached(&pieces[i], piece, stream));
    for (i = 0; i < PIECES; i += 2)
        CHECK_OK(tcuda_free_cached(pieces[i]));
    CHECK_OK(tcuda_synchronize(device));
    CHECK_OK(tcuda_memory_reserved(&before, device));
    CHECK_OK(tcuda_set_memory_limit(before, device));
    CHECK_OK(tcuda_malloc_cached(&block, stitched_size, stream));
    CHECK_OK(tcuda_memory_reserved(&after, device));
    CHECK_EQUAL(after, before);
    CHECK_OK(tcuda_memory_stat_get(&retries, device, "num_alloc_retries"));
    CHECK_EQUAL(retries, 0);
    for (i = 0; i < PIECES; i += 2)
        inside += block <= pieces[i] && (char *)pieces[i] < (char *)block + stitched_size;
    /* The others are there from elsewhere. */
    CHECK(inside <= 1);
    CHECK_OK(tcuda_set_memory_limit(UINT64_MAX, device));
    CHECK_OK(tcuda_set_alloc_conf("expandable_segments:True"));
    stitched.block = block;
    for (i = 0; i < PIECES / 2; i++)
        stitched.between[i] = pieces[2 * i + 1];
    return stitched;
}

static void free_stitched(const struct stitched *stitched)
{
    int i;

    CHECK_OK(tcuda_free_cached(stitched->block));
    for (i = 0; i < PIECES / 2; i++)
        CHECK_OK(tcuda_free_cached(stitched->between[i]));
}

/* Copies make devices peers. */
static void become_peers(int32_t owner, int32_t user)
{
    void *there = take(4096, owner), *here = take(4096, user);

    CHECK_OK(tcuda_memset_async(here, 1, 4096, TCUDA_STREAM_DEFAULT(user)));
    CHECK_OK(tcuda_copy(there, here, 4096, false));
    CHECK_OK(tcuda_copy(here, there, 4096, false));
    CHECK_OK(tcuda_free_cached(here));
    CHECK_OK(tcuda_free_cached(there));
}

/* The peer writes and reads it, and the owner sees that. */
static void used_by_a_peer(struct stamps *stamps, uint32_t number, void *block, size_t size, tcuda_stream_t stream)
{
    uint32_t value = 0;

    stamp_write(stamps, number, block, size, stream);
    stamp_verify(stamps, number, block, size, stream);
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_copy(&value, (char *)block + (size / 4 - 1) * 4, sizeof value, false));
    CHECK_EQUAL(value, stamp_value(number));
}

static void kernels_of_a_peer(int32_t owner, int32_t user, int is_virtual)
{
    struct stamps stamps;
    struct stitched before = {NULL, {NULL}}, after = {NULL, {NULL}};
    tcuda_stream_t stream = NULL;
    void *blocks[BLOCKS];
    bool can = false;
    uint32_t i;

    CHECK_OK(tcuda_can_device_access_peer(&can, user, owner));
    if (!can) {
        printf("absent: device %d has no access to device %d\n", (int)user, (int)owner);
        return;
    }
    for (i = 0; i < BEFORE; i++)
        blocks[i] = take(sizes[i], owner);
    if (is_virtual)
        before = take_stitched(owner);
    become_peers(owner, user);
    for (i = BEFORE; i < BLOCKS; i++)
        blocks[i] = take(sizes[i], owner);
    if (is_virtual)
        after = take_stitched(owner);
    CHECK_OK(tcuda_synchronize(owner));
    if (!stamps_open(&stamps, BLOCKS + 2, user))
        return;
    CHECK_OK(tcuda_stream_create(&stream, user, 0));
    for (i = 0; i < BLOCKS; i++)
        used_by_a_peer(&stamps, i, blocks[i], sizes[i], stream);
    if (is_virtual) {
        used_by_a_peer(&stamps, BLOCKS, before.block, stitched_size, stream);
        used_by_a_peer(&stamps, BLOCKS + 1, after.block, stitched_size, stream);
    }
    CHECK_EQUAL(stamps_wrong(&stamps), 0);
    for (i = 0; i < BLOCKS; i++)
        CHECK_OK(tcuda_free_cached(blocks[i]));
    if (is_virtual) {
        free_stitched(&before);
        free_stitched(&after);
    }
    stamps_close(&stamps);
    CHECK_OK(tcuda_stream_destroy(stream));
}

/* CUmemAllocationProp */
struct properties {
    int type, handle_types, location_type, location;
    void *unused;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};

/* The driver's own memory is what the cache's is compared with. */
static void network_cards(int32_t device, int is_virtual)
{
    enum { RDMA_CAPABLE = 15, RDMA_OF_VIRTUAL_MEMORY = 110 };
    int (*ask)(void *, int, uint64_t), (*device_has)(int *, int, int), (*retain)(void **, void *), (*properties_of)(void *, void *);
    int (*release)(void *);
    struct properties properties;
    struct stamps own;
    struct stitched stitched = {NULL, {NULL}};
    const size_t size = (size_t)6 << 20;
    char *blocks[2] = {(char *)take(size, device), NULL}, *at;
    void *handle = NULL;
    uint32_t there = 2, here = 3;
    int has = -1, i;

    if (!stamps_open(&own, 1, device))
        return;
    if (is_virtual) {
        stitched = take_stitched(device);
        blocks[1] = (char *)stitched.block;
    }
    if (own.driver == NULL) {
        printf("absent: the simulated device has no network cards\n");
    } else if (stamp_find(own.driver, "cuPointerGetAttribute", &ask) && stamp_find(own.driver, "cuDeviceGetAttribute", &device_has) &&
               stamp_find(own.driver, "cuMemRetainAllocationHandle", &retain) && stamp_find(own.driver, "cuMemRelease", &release) &&
               stamp_find(own.driver, "cuMemGetAllocationPropertiesFromHandle", &properties_of)) {
        there = 0;
        CHECK_EQUAL(ask(&there, RDMA_CAPABLE, own.errors), 0);
        CHECK_EQUAL(device_has(&has, RDMA_OF_VIRTUAL_MEMORY, device), 0);
        for (i = 0; i < 2 && blocks[i] != NULL; i++) {
            /* Each piece of it. */
            for (at = blocks[i]; at < blocks[i] + (i == 0 ? size : stitched_size); at += (size_t)2 << 20) {
                here = 0;
                CHECK_EQUAL(ask(&here, RDMA_CAPABLE, (uint64_t)(uintptr_t)at), 0);
                memset(&properties, 0, sizeof properties);
                if (is_virtual && CHECK_EQUAL(retain(&handle, at), 0)) {
                    CHECK_EQUAL(properties_of(&properties, handle), 0);
                    CHECK_EQUAL(properties.rdma, has != 0);
                    CHECK_EQUAL(release(handle), 0);
                }
                if (!is_virtual)
                    CHECK_EQUAL(here, there);
            }
            printf("device %d, %s: within reach of network cards: the driver's %d, the cache's %d; handles %d, the device says %d\n",
                   (int)device, !is_virtual ? "plain segments" : i == 0 ? "virtual memory" : "pieces side by side", (int)there, (int)here,
                   (int)properties.rdma, has);
        }
    }
    CHECK_OK(tcuda_free_cached(blocks[0]));
    if (is_virtual)
        free_stitched(&stitched);
    stamps_close(&own);
}

static void registered_with_nccl(int is_stitched)
{
    enum { UINT32 = 3, SUM = 0 };
    const size_t size = is_stitched ? stitched_size : (size_t)24 << 20;
    struct stitched stitched[MOST_DEVICES];
    int (*start)(void **, int, const int *), (*end)(void *), (*add)(void *, void *, size_t, void **), (*take_out)(void *, void *);
    int (*begin)(void), (*close)(void), (*reduce)(const void *, void *, size_t, int, int, void *, void *), i;
    void *communicators[MOST_DEVICES], *blocks[MOST_DEVICES], *registrations[MOST_DEVICES];
    tcuda_stream_t streams[MOST_DEVICES];
    uint32_t last;

    if (nccl == NULL)
        return;
    if (!stamp_find(nccl, "ncclCommInitAll", &start) || !stamp_find(nccl, "ncclCommDestroy", &end) ||
        !stamp_find(nccl, "ncclCommRegister", &add) || !stamp_find(nccl, "ncclCommDeregister", &take_out) ||
        !stamp_find(nccl, "ncclGroupStart", &begin) || !stamp_find(nccl, "ncclGroupEnd", &close) ||
        !stamp_find(nccl, "ncclAllReduce", &reduce) || !CHECK_EQUAL(start(communicators, devices, NULL), 0))
        return;
    for (i = 0; i < devices; i++) {
        CHECK_OK(tcuda_stream_create(streams + i, i, 0));
        if (is_stitched) {
            stitched[i] = take_stitched(i);
            blocks[i] = stitched[i].block;
        } else {
            CHECK_OK(tcuda_malloc_cached(blocks + i, size, streams[i]));
        }
        registrations[i] = NULL;
        CHECK_EQUAL(add(communicators[i], blocks[i], size, registrations + i), 0);
        CHECK_OK(tcuda_memset_async(blocks[i], i + 1, size, streams[i]));
    }
    CHECK_EQUAL(begin(), 0);
    for (i = 0; i < devices; i++)
        CHECK_EQUAL(reduce(blocks[i], blocks[i], size / 4, UINT32, SUM, communicators[i], (void *)streams[i]), 0);
    CHECK_EQUAL(close(), 0);
    for (i = 0; i < devices; i++) {
        CHECK_OK(tcuda_stream_synchronize(streams[i]));
        last = 0;
        CHECK_OK(tcuda_copy(&last, (char *)blocks[i] + size - 4, 4, false));
        CHECK_EQUAL(last, (uint32_t)(devices * (devices + 1) / 2) * 0x01010101u);
        CHECK_EQUAL(take_out(communicators[i], registrations[i]), 0);
        if (is_stitched)
            free_stitched(stitched + i);
        else
            CHECK_OK(tcuda_free_cached(blocks[i]));
    }
    for (i = 0; i < devices; i++) {
        CHECK_EQUAL(end(communicators[i]), 0);
        CHECK_OK(tcuda_stream_destroy(streams[i]));
    }
    printf("NCCL registered memory%s on %d devices and worked on it\n", is_stitched ? " of pieces side by side" : "", (int)devices);
}

static void *ends[2];

static void *copies(void *argument)
{
    (void)argument;
    CHECK_OK(tcuda_copy(ends[0], ends[1], 4096, false));
    return NULL;
}

static pthread_t copying;

/* Has no memory. Another thread, which makes the devices peers, waits for this one. */
static void *none(size_t size, int32_t device, tcuda_stream_t stream, void *user_data)
{
    const struct timespec moment = {0, 100000000};

    (void)size, (void)device, (void)stream;
    if (__atomic_fetch_add((int *)user_data, 1, __ATOMIC_RELAXED) == 0) {
        CHECK(pthread_create(&copying, NULL, copies, NULL) == 0);
        nanosleep(&moment, NULL);
        CHECK_STATUS(tcuda_copy(ends[0], ends[1], 4096, false), TCUDA_ERROR_INVALID_STATE);
    }
    return NULL;
}

static void never(void *ptr, size_t size, int32_t device, tcuda_stream_t stream, void *user_data)
{
    (void)ptr, (void)size, (void)device, (void)stream, (void)user_data;
}

/* A function of an allocator would wait for devices to become peers, and they for it. */
static int asked_by_an_allocator(void)
{
    tcuda_pluggable_allocator_t allocator = NULL;
    void *block = NULL;
    bool can = false;
    int calls = 0;

    CHECK_OK(tcuda_device_count(&devices));
    if (devices >= 2)
        CHECK_OK(tcuda_can_device_access_peer(&can, 1, 0));
    if (can) {
        ends[0] = take(4096, 1);
        ends[1] = take(4096, 0);
        CHECK_OK(tcuda_pluggable_allocator_create(&allocator, none, never, &calls));
        CHECK_OK(tcuda_change_current_allocator(allocator));
        CHECK_STATUS(tcuda_malloc_cached(&block, (size_t)30 << 20, TCUDA_STREAM_DEFAULT(1)), TCUDA_ERROR_OUT_OF_MEMORY);
        CHECK(calls > 0 && pthread_join(copying, NULL) == 0);
        CHECK_OK(tcuda_copy(ends[0], ends[1], 4096, false));
        CHECK_OK(tcuda_shutdown());
    }
    return CHECK_DONE();
}

static void all(const char *alloc_conf, int is_virtual)
{
    /* The other way round each time: two devices become peers once. */
    int32_t owner = is_virtual ? 0 : 1, i;
    tcuda_init_options_t options = TCUDA_INIT_OPTIONS_INIT;
    uint64_t held = 1;

    options.alloc_conf = alloc_conf;
    if (!CHECK_OK(tcuda_init(&options)))
        return;
    if (devices >= 2)
        kernels_of_a_peer(owner, 1 - owner, is_virtual);
    else
        printf("absent: a second device\n");
    network_cards(0, is_virtual);
    registered_with_nccl(0);
    if (is_virtual)
        registered_with_nccl(1);
    CHECK_OK(tcuda_empty_cache(TCUDA_DEVICE_ALL));
    for (i = 0; i < devices; i++) {
        CHECK_OK(tcuda_memory_reserved(&held, i));
        CHECK_EQUAL(held, 0);
    }
    CHECK_OK(tcuda_shutdown());
}

int main(void)
{
    const char *path = getenv("TCUDA_TEST_NCCL");
    /* Two devices become peers once in a process. */
    pid_t child = fork();
    int status = 1;

    if (child == 0) {
        alarm(60);
        exit(asked_by_an_allocator());
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(tcuda_device_count(&devices));
    if (!CHECK(devices >= 1))
        return CHECK_DONE();
    if (devices > MOST_DEVICES)
        devices = MOST_DEVICES;
    if (strcmp(tcuda_backend_name(), "cuda") == 0)
        nccl = dlopen(path != NULL ? path : "libnccl.so.2", RTLD_NOW);
    if (nccl == NULL)
        printf("absent: NCCL\n");
    all("expandable_segments:True", 1);
    all("expandable_segments:False", 0);
    return CHECK_DONE();
}
