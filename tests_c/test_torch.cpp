// What PyTorch calls: memory by device and stream, pools that a std::function steers, and words in the log where PyTorch is not loaded.

#include <functional>
#include <memory>
#include <string>

#include "check.h"

static const size_t MIB = 1 << 20;
static const uint64_t ID = 7;

struct Log {
    int lines;
    std::string last;
};

static void listen(int32_t, const char *message, void *log)
{
    static_cast<Log *>(log)->lines++;
    static_cast<Log *>(log)->last = message;
}

static int64_t reserved()
{
    uint64_t bytes = 0;
    CHECK_OK(tcuda_memory_reserved(&bytes, 0));
    return static_cast<int64_t>(bytes);
}

// Whether a pool's segment has the address.
static bool in_pool(void *ptr)
{
    tcuda_snapshot_info_t info = TCUDA_SNAPSHOT_INFO_INIT;
    tcuda_snapshot_segment_t segment = TCUDA_SNAPSHOT_SEGMENT_INIT;
    tcuda_snapshot_t snapshot = nullptr;
    bool found = false, is_pool = false;
    CHECK_OK(tcuda_memory_snapshot(&snapshot, 0));
    CHECK_OK(tcuda_snapshot_info(snapshot, &info));
    for (uint64_t at = 0; at < info.segments; at++) {
        CHECK_OK(tcuda_snapshot_segment(snapshot, &segment, at));
        uint64_t start = segment.address, address = reinterpret_cast<uint64_t>(ptr);
        if (address >= start && address < start + segment.total_size) {
            found = true;
            is_pool = segment.pool_id[0] != 0 || segment.pool_id[1] != 0;
        }
    }
    tcuda_snapshot_destroy(snapshot);
    CHECK(found);
    return is_pool;
}

static void *get(size_t size, tcuda_stream_t stream)
{
    return tcuda_torch_alloc(static_cast<ptrdiff_t>(size), 0, stream);
}

static void give(void *ptr, size_t size, tcuda_stream_t stream)
{
    tcuda_torch_free(ptr, static_cast<ptrdiff_t>(size), 0, stream);
}

static void memory(Log &log)
{
    uint64_t before = 0, now = 0;
    CHECK_OK(tcuda_memory_allocated(&before, 0));
    for (int round = 0; round < 3; round++) {
        void *a = get(1000, nullptr), *b = get(40 * MIB, nullptr);
        CHECK(a != nullptr && b != nullptr && a != b);
        CHECK_OK(tcuda_memory_allocated(&now, 0));
        CHECK_EQUAL(now - before, 1024 + 40 * MIB);
        give(a, 1000, nullptr);
        give(b, 40 * MIB, nullptr);
    }
    CHECK_OK(tcuda_memory_allocated(&now, 0));
    CHECK_EQUAL(now, before);
    CHECK(get(0, nullptr) == nullptr);
    give(nullptr, 0, nullptr);
    // Memory of somebody else, and none.
    int other = 0;
    tcuda_torch_record_stream(&other, nullptr);
    tcuda_torch_record_stream(nullptr, nullptr);
    CHECK_EQUAL(log.lines, 0);
    give(&other, 4, nullptr);
    CHECK_EQUAL(log.lines, 1);
    CHECK(log.last.find("tcuda_torch_free") != std::string::npos);
}

// The device is the one that is named, whichever is current.
static void devices(Log &log)
{
    int32_t count = 0, device = -1;
    CHECK_OK(tcuda_device_count(&count));
    // The thread has blocks of its default streams at hand.
    void *own = nullptr;
    for (int i = 0; i < 4; i++) {
        for (tcuda_stream_t stream : {tcuda_stream_t(nullptr), TCUDA_STREAM_PER_THREAD(0)}) {
            CHECK_OK(tcuda_malloc_cached(&own, 512, stream));
            CHECK_OK(tcuda_free_cached(own));
        }
    }
    for (int32_t none : {-300, -1, count, 0x3ff, 0x400, 0xf00, 5000, INT32_MAX}) {
        int lines = log.lines;
        CHECK(tcuda_torch_alloc(512, none, nullptr) == nullptr);
        tcuda_error_info_t info = TCUDA_ERROR_INFO_INIT;
        CHECK_OK(tcuda_last_error(&info));
        CHECK_EQUAL(info.status, none == -1 ? TCUDA_ERROR_INVALID_ARGUMENT : TCUDA_ERROR_INVALID_DEVICE);
        CHECK_EQUAL(log.lines, lines + 1);
    }
    if (count < 2)
        return;
    CHECK_OK(tcuda_set_device(0));
    void *ptr = tcuda_torch_alloc(3 * (1 << 20), 1, nullptr);
    CHECK_OK(tcuda_device_of(&device, ptr));
    CHECK_EQUAL(device, 1);
    tcuda_torch_free(ptr, 3 * (1 << 20), 1, nullptr);
}

static void streams()
{
    tcuda_stream_t a = nullptr, b = nullptr;
    CHECK_OK(tcuda_stream_create(&a, 0, 0));
    CHECK_OK(tcuda_stream_create(&b, 0, 0));
    void *ptr = get(5 * MIB, a);
    CHECK_OK(tcuda_memset_async(ptr, 1, 5 * MIB, b));
    tcuda_torch_record_stream(ptr, b);
    give(ptr, 5 * MIB, a);
    CHECK_OK(tcuda_synchronize(0));
    CHECK_OK(tcuda_stream_destroy(a));
    CHECK_OK(tcuda_stream_destroy(b));
}

static void pools(Log &log)
{
    tcuda_stream_t stream = nullptr, other = nullptr;
    CHECK_OK(tcuda_stream_create(&stream, 0, 0));
    CHECK_OK(tcuda_stream_create(&other, 0, 0));
    auto alive = std::make_shared<int>(0);
    auto of = [&alive](tcuda_stream_t wanted) {
        return std::function<bool(tcuda_stream_t)>([alive, wanted](tcuda_stream_t asked) { return asked == wanted; });
    };
    tcuda_torch_empty_cache();
    int64_t before = reserved();
    void *kept = nullptr;
    for (int round = 0; round < 3; round++) {
        {
            auto filter = of(stream);
            tcuda_torch_begin_allocate_to_pool(0, 0, ID, &filter);
        }
        CHECK(alive.use_count() > 1);
        void *in = get(30 * MIB, stream), *out = get(MIB, other);
        CHECK(in_pool(in) && !in_pool(out));
        // The same memory each time: it stays where it is.
        CHECK(kept == nullptr || in == kept);
        kept = in;
        give(in, 30 * MIB, stream);
        give(out, MIB, other);
        tcuda_torch_end_allocate_to_pool(0, 0, ID);
        CHECK_EQUAL(alive.use_count(), 1);
        void *after = get(30 * MIB, stream);
        CHECK(!in_pool(after));
        give(after, 30 * MIB, stream);
    }
    CHECK_OK(tcuda_synchronize(0));
    tcuda_torch_empty_cache();
    CHECK_EQUAL(reserved() - before, 30 * MIB);

    // The default stream, a pool within a pool, and a block that outlives its pool.
    auto outer = of(nullptr), inner = of(nullptr);
    tcuda_torch_begin_allocate_to_pool(0, ID, 0, &outer);
    void *first = get(2 * MIB, nullptr);
    tcuda_torch_begin_allocate_to_pool(0, 0, ID, &inner);
    void *second = get(30 * MIB, nullptr);
    CHECK(in_pool(first) && second == kept);
    tcuda_torch_end_allocate_to_pool(0, 0, ID);
    void *third = get(2 * MIB, nullptr);
    CHECK(in_pool(third));
    tcuda_torch_end_allocate_to_pool(0, ID, 0);
    tcuda_torch_release_pool(0, ID, 0);
    CHECK(in_pool(first));
    give(first, 2 * MIB, nullptr);
    give(second, 30 * MIB, nullptr);
    give(third, 2 * MIB, nullptr);
    for (int use = 0; use < 4; use++)
        tcuda_torch_release_pool(0, 0, ID);
    CHECK_OK(tcuda_synchronize(0));
    tcuda_torch_empty_cache();
    CHECK_EQUAL(reserved(), before);

    // What was never begun, or has no filter.
    int lines = log.lines;
    std::function<bool(tcuda_stream_t)> none;
    tcuda_torch_release_pool(0, 0, ID);
    CHECK(log.lines == lines + 1 && log.last.find("(0, 7)") != std::string::npos);
    tcuda_torch_end_allocate_to_pool(0, 0, ID);
    CHECK_EQUAL(log.lines, lines + 2);
    tcuda_torch_begin_allocate_to_pool(0, 0, ID, &none);
    CHECK(log.lines == lines + 3 && log.last.find("'filter' is empty") != std::string::npos);
    tcuda_torch_begin_allocate_to_pool(0, 0, ID, nullptr);
    CHECK_EQUAL(log.lines, lines + 4);
    CHECK_OK(tcuda_stream_destroy(stream));
    CHECK_OK(tcuda_stream_destroy(other));
}

static void limits(Log &log)
{
    double fraction = 0;
    tcuda_torch_set_memory_fraction(0.5, 0);
    CHECK_OK(tcuda_get_per_process_memory_fraction(&fraction, 0));
    CHECK(fraction == 0.5);
    int lines = log.lines;
    tcuda_torch_set_memory_fraction(2.0, 0);
    CHECK_EQUAL(log.lines, lines + 1);
    tcuda_torch_set_memory_fraction(1.0, 0);
    CHECK(get(size_t(1) << 50, nullptr) == nullptr);
    CHECK(log.last.find("CUDA out of memory") != std::string::npos);
}

// Tensors that go after tcuda_shutdown, and graphs, say nothing: their memory went with it.
static void late(Log &log)
{
    std::function<bool(tcuda_stream_t)> all = [](tcuda_stream_t) { return true; };
    void *block = get(MIB, nullptr);
    tcuda_torch_begin_allocate_to_pool(0, 0, ID, &all);
    tcuda_torch_end_allocate_to_pool(0, 0, ID);
    int lines = log.lines;
    CHECK_OK(tcuda_shutdown());
    give(block, MIB, nullptr);
    tcuda_torch_release_pool(0, 0, ID);
    CHECK_EQUAL(log.lines, lines);
}

int main()
{
    Log log = {0, ""};
    CHECK_OK(tcuda_set_log_callback(listen, &log));
    memory(log);
    devices(log);
    streams();
    pools(log);
    limits(log);
    late(log);
    return CHECK_DONE();
}
