/* Replays the recorded allocations of a real PyTorch training run through tcuda's cache. `make demo` runs it.
 *
 *     replay             the largest recorded run that fits the device
 *     replay NAME        one of examples_c/data, from the root of the repository: gpt_varlen, resnet_varsize, gan_steps, ...
 *     replay FILE        any file that tools/pack_trace.py made
 *
 * Files named behind it get a snapshot of memory as it is late in the run, when it is full, with all that happened up to there: NAME.html for a
 * browser, NAME.json, or any other name for python -m torch.cuda._memory_viz. docs/SNAPSHOTS.md says more.
 *
 * The first pass touches the memory. The device holds a table with a number for each block of the run. A new block gets its number at
 * both ends, on its stream; right before it is freed both ends are copied to a second table, which is read back in the end. Two blocks
 * that overlap, memory handed out too early or a wrong pointer leave a wrong number there. The later passes only measure. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "tcuda.h"
#include "trace.h"

#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define MIB (1024.0 * 1024.0)
#define MOST_STREAMS 256
#define ROUNDS 5
#define MOST_ENTRIES 1000000
#define BAR 40

/* tcuda says what went wrong, and what to do. */
#define TRY(call)                                                                                        \
    do {                                                                                                 \
        if ((call) != TCUDA_SUCCESS)                                                                     \
            die("%s", tcuda_last_error_message());                                                       \
    } while (0)

struct run {
    char name[256];
    struct trace_event *events;
    uint64_t count, recorded; /* the blocks that the run never freed are freed behind it */
    uint32_t blocks, streams;
    uint64_t peak; /* bytes asked for at once, at most */
    uint64_t full; /* the last event behind which it is nearly that */
};

struct seen {
    uint64_t first, last;
};

/* The two tables on the device: what blocks are to hold, and what they held. */
struct touch {
    void *tags, *seen;
};

static int failures;

#define die(...) (putc('\n', stderr), fprintf(stderr, "replay: " __VA_ARGS__), putc('\n', stderr), exit(1))

static void *room(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (memory == NULL)
        die("the host has no memory for %lu bytes", (unsigned long)(count * size));
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* What two readings of the clock add to what lies between them, in nanoseconds. */
static double cost_of_clock(void)
{
    double start = now(), end = start;
    int i;
    for (i = 0; i < 10000; i++)
        end = now();
    return (end - start) / 10000;
}

/* The recorded run, decoded, so that reading it costs the replay nothing; 0 if there is no such file. */
static int load(struct run *run, const char *path)
{
    struct trace trace;
    struct trace_event event;
    uint64_t live = 0, i;

    if (access(path, R_OK) != 0)
        return 0;
    memset(run, 0, sizeof *run);
    snprintf(run->name, sizeof run->name, "%s", path);
    if (trace_open(&trace, path) && trace.events <= trace.length) {
        run->events = (struct trace_event *)room(2 * (size_t)trace.events, sizeof *run->events);
        while (trace_next(&trace, &event)) {
            run->events[run->count++] = event;
            live = event.free ? live - event.size : live + event.size;
            run->peak = live > run->peak ? live : run->peak;
        }
        for (i = 0, live = 0; i < run->count; i++) {
            live = run->events[i].free ? live - run->events[i].size : live + run->events[i].size;
            run->full = live >= run->peak / 10 * 9 ? i : run->full;
        }
    }
    run->recorded = run->count;
    for (; trace.live != 0; run->count++) {
        run->events[run->count] = trace.stack[--trace.live];
        run->events[run->count].free = 1;
    }
    if (trace.error != NULL || run->recorded != trace.events)
        die("%s: %s", path, trace.error != NULL ? trace.error : "the head of the trace is broken");
    if (trace.streams > MOST_STREAMS)
        die("%s: %u streams; %d are the most", path, (unsigned)trace.streams, MOST_STREAMS);
    run->blocks = trace.blocks;
    run->streams = trace.streams;
    trace_close(&trace);
    return 1;
}

static int load_by_name(struct run *run, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "examples_c/data/%s.trace", name);
    return load(run, path);
}

static void choose(struct run *run, const char *asked)
{
    static const char *const names[] = {"gpt_varlen", "resnet_varsize", "prefetch_streams"};
    size_t free_bytes, total_bytes, i;

    if (asked != NULL) {
        if (!load(run, asked) && !load_by_name(run, asked))
            die("there is no file %s, nor examples_c/data/%s.trace here", asked, asked);
        return;
    }
    TRY(tcuda_mem_get_info(&free_bytes, &total_bytes, TCUDA_DEVICE_CURRENT));
    for (i = 0; i < COUNT(names); i++) {
        if (!load_by_name(run, names[i]))
            die("there is no examples_c/data/%s.trace here; the repository has it", names[i]);
        if ((double)run->peak * 1.25 <= (double)free_bytes)
            return;
        free(run->events);
    }
    die("the device has %.0f MiB free; the smallest run wants %.0f", (double)free_bytes / MIB, (double)run->peak * 1.25 / MIB);
}

static int64_t figure(const char *key)
{
    int64_t value = 0;
    TRY(tcuda_memory_stat_get(&value, TCUDA_DEVICE_CURRENT, key));
    return value;
}

/* A bar on a terminal, else a line each quarter. */
static void show_progress(uint64_t done, uint64_t all)
{
    static const char hashes[] = "########################################", dots[] = "........................................";
    static int shown = -1;
    int percent = all != 0 ? (int)(100 * done / all) : 100, length = BAR * percent / 100;

    if (percent == shown)
        return;
    shown = percent;
    if (isatty(STDOUT_FILENO))
        printf("\r  replaying [%.*s%.*s] %3d %%  %8.1f MiB in use %s", length, hashes, BAR - length, dots, percent,
               (double)figure("allocated_bytes.all.current") / MIB, percent == 100 ? "\n" : "");
    else if (percent % 25 == 0)
        printf("  replaying %3d %%\n", percent);
    fflush(stdout);
}

/* The two ends of a block do not overlap; of one byte they are the same. */
static size_t tag_size(uint64_t size)
{
    size_t half = size > 1 ? (size_t)size / 2 : (size_t)size;
    return half < sizeof(uint64_t) ? half : sizeof(uint64_t);
}

static void tag(const struct touch *touch, uint32_t block, void *ptr, uint64_t size, tcuda_stream_t stream)
{
    size_t part = tag_size(size);
    TRY(tcuda_copy_async(ptr, (uint64_t *)touch->tags + block, part, stream));
    if (size > part)
        TRY(tcuda_copy_async((char *)ptr + size - part, (uint64_t *)touch->tags + block, part, stream));
}

static void look(const struct touch *touch, uint32_t block, const void *ptr, uint64_t size, tcuda_stream_t stream)
{
    struct seen *seen = (struct seen *)touch->seen + block;
    size_t part = tag_size(size);
    TRY(tcuda_copy_async(&seen->first, ptr, part, stream));
    TRY(tcuda_copy_async(&seen->last, (const char *)ptr + size - part, part, stream));
}

/* Not the same for any two blocks: the factor is odd. */
static uint64_t tag_of(uint32_t block)
{
    return ((uint64_t)block + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static void touch_start(struct touch *touch, const struct run *run)
{
    uint64_t *tags = (uint64_t *)room(run->blocks, sizeof *tags);
    uint32_t i;

    for (i = 0; i < run->blocks; i++)
        tags[i] = tag_of(i);
    TRY(tcuda_malloc_cached(&touch->tags, (run->blocks + 1) * sizeof *tags, TCUDA_STREAM_CURRENT));
    TRY(tcuda_malloc_cached(&touch->seen, (run->blocks + 1) * sizeof(struct seen), TCUDA_STREAM_CURRENT));
    TRY(tcuda_copy_async(touch->tags, tags, run->blocks * sizeof *tags, TCUDA_STREAM_CURRENT));
    TRY(tcuda_memset_async(touch->seen, 0, run->blocks * sizeof(struct seen), TCUDA_STREAM_CURRENT));
    TRY(tcuda_synchronize(TCUDA_DEVICE_CURRENT));
    free(tags);
}

/* How many blocks did not hold their number at both ends when they were freed. */
static uint32_t touch_end(struct touch *touch, const struct run *run)
{
    struct seen *seen = (struct seen *)room(run->blocks, sizeof *seen);
    uint32_t wrong = 0;
    uint64_t i;

    TRY(tcuda_synchronize(TCUDA_DEVICE_CURRENT));
    TRY(tcuda_copy(seen, touch->seen, run->blocks * sizeof *seen, false));
    for (i = 0; i < run->count; i++) {
        const struct trace_event *event = run->events + i;
        const struct seen *held = seen + event->block;
        uint64_t right = tag_of(event->block);
        if (!event->free)
            wrong += memcmp(&held->first, &right, tag_size(event->size)) != 0 || memcmp(&held->last, &right, tag_size(event->size)) != 0;
    }
    TRY(tcuda_free_cached(touch->tags));
    TRY(tcuda_free_cached(touch->seen));
    free(seen);
    return wrong;
}

/* With the figures of the same moment. */
static void write_snapshots(char **paths, int count)
{
    static const char *const keys[] = {"reserved_bytes.all.current", "allocated_bytes.all.current", "active_bytes.all.current",
                                       "requested_bytes.all.current"};
    tcuda_snapshot_t snapshot;
    size_t i;

    if (count == 0)
        return;
    TRY(tcuda_memory_snapshot(&snapshot, TCUDA_DEVICE_ALL));
    for (i = 0; i < COUNT(keys); i++)
        printf("  snapshot %s %lld\n", keys[i], (long long)figure(keys[i]));
    for (; count > 0; count--, paths++)
        TRY(tcuda_snapshot_write(snapshot, *paths));
    TRY(tcuda_snapshot_destroy(snapshot));
}

/* Nanoseconds inside the allocator, the touching left out. */
static double replay_touching(const struct run *run, void **ptrs, const tcuda_stream_t *streams, const struct touch *touch, char **paths,
                              int path_count)
{
    double clock = cost_of_clock(), spent = 0, start;
    uint64_t i;

    for (i = 0; i < run->count; i++) {
        const struct trace_event *event = run->events + i;
        tcuda_stream_t stream = streams[event->stream];
        void **ptr = ptrs + event->block;
        show_progress(i, run->count);
        if (i == run->full)
            write_snapshots(paths, path_count);
        if (event->free)
            look(touch, event->block, *ptr, event->size, stream);
        start = now();
        if (event->free)
            TRY(tcuda_free_cached(*ptr));
        else
            TRY(tcuda_malloc_cached(ptr, (size_t)event->size, stream));
        spent += now() - start - clock;
        if (!event->free)
            tag(touch, event->block, *ptr, event->size, stream);
    }
    show_progress(run->count, run->count);
    return spent;
}

/* Nanoseconds for the whole run. */
static double replay_only(const struct run *run, void **ptrs, const tcuda_stream_t *streams)
{
    double start = now();
    uint64_t i;

    for (i = 0; i < run->count; i++) {
        const struct trace_event *event = run->events + i;
        if (event->free) {
            TRY(tcuda_free_cached(ptrs[event->block]));
        } else {
            TRY(tcuda_malloc_cached(ptrs + event->block, (size_t)event->size, streams[event->stream]));
        }
    }
    return now() - start;
}

/* A text in lines of up to 90 characters, indented. */
static void print_wrapped(const char *text)
{
    while (*text != '\0') {
        int length = (int)strlen(text), cut = length > 90 ? 90 : length;
        while (cut < length && cut > 1 && text[cut] != ' ')
            cut--;
        printf("          %.*s\n", cut, text);
        text += cut + (text[cut] == ' ');
    }
}

static void print_summary(void)
{
    size_t needed;
    char *text;

    TRY(tcuda_memory_summary(NULL, 0, &needed, TCUDA_DEVICE_CURRENT, false));
    text = (char *)room(needed, 1);
    TRY(tcuda_memory_summary(text, needed, NULL, TCUDA_DEVICE_CURRENT, false));
    printf("\n%s\n", text);
    free(text);
}

static void check(int holds, const char *what)
{
    printf("  %s  %s\n", holds ? "ok    " : "FAILED", what);
    failures += !holds;
}

int main(int argc, char **argv)
{
    tcuda_device_properties_t device = TCUDA_DEVICE_PROPERTIES_INIT;
    struct run run;
    struct touch touch;
    tcuda_stream_t streams[MOST_STREAMS];
    void **ptrs;
    double first, best = 0, reserved, events;
    uint32_t i, wrong;

    TRY(tcuda_get_device_properties(&device, TCUDA_DEVICE_CURRENT));
    choose(&run, argc > 1 ? argv[1] : NULL);
    printf("tcuda %s\n\n  device  %s, %.1f GiB\n", tcuda_version_string(), device.name, (double)device.total_memory / MIB / 1024);
    print_wrapped(tcuda_backend_reason());
    printf("  run     %s: %llu events, %u blocks, %u stream%s\n\n", run.name, (unsigned long long)run.recorded, (unsigned)run.blocks,
           (unsigned)run.streams, run.streams == 1 ? "" : "s");
    for (i = 0; i < run.streams; i++)
        TRY(tcuda_stream_create(streams + i, TCUDA_DEVICE_CURRENT, 0));
    ptrs = (void **)room(run.blocks, sizeof *ptrs);
    events = run.count != 0 ? (double)run.count : 1;

    if (argc > 2)
        TRY(tcuda_memory_record_history(TCUDA_HISTORY_ALL, MOST_ENTRIES, true, TCUDA_DEVICE_CURRENT));
    touch_start(&touch, &run);
    first = replay_touching(&run, ptrs, streams, &touch, argv + 2, argc > 2 ? argc - 2 : 0);
    wrong = touch_end(&touch, &run);
    TRY(tcuda_memory_record_history(TCUDA_HISTORY_OFF, 0, true, TCUDA_DEVICE_CURRENT)); /* the later passes are measured */
    TRY(tcuda_empty_cache(TCUDA_DEVICE_CURRENT));
    print_summary();
    reserved = (double)figure("reserved_bytes.all.peak");
    for (i = 0; i <= ROUNDS; i++) { /* one more: the first fills the cache */
        double spent = replay_only(&run, ptrs, streams);
        best = i <= 1 || spent < best ? spent : best;
    }
    TRY(tcuda_empty_cache(TCUDA_DEVICE_CURRENT));

    printf("  peak requested  %9.1f MiB   by the run\n", (double)run.peak / MIB);
    printf("  peak reserved   %9.1f MiB   held from the device\n", reserved / MIB);
    printf("  waste           %9.2f %%     more than requested\n", 100 * (reserved / (run.peak != 0 ? (double)run.peak : 1) - 1));
    printf("  time per event  %9.1f ns    the first time: the cache grows, the memory is touched in between\n", first / events);
    printf("                  %9.1f ns    from a warm cache, best of %d rounds\n\n", best / events, ROUNDS);

    check(wrong == 0, "every block held its own number at both ends when it was freed");
    check(figure("allocated_bytes.all.allocated") == figure("allocated_bytes.all.freed"), "every block was freed");
    check(figure("active_bytes.all.current") == 0 && figure("reserved_bytes.all.current") == 0, "every byte came back to the device");
    TRY(tcuda_shutdown()); /* ends the streams too */
    free(ptrs);
    free(run.events);
    return failures == 0 ? 0 : 1;
}
