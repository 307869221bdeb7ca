// Times one allocator (anchor.h): `bench ANCHOR.so SECONDS`, with about that many seconds for a figure. It reads a line, measures, and
// answers with one, so that run.py can let several allocators take turns:
//
//     pair BYTES                      one thread, one size: an allocation and its free
//     set BLOCKS MOST_BYTES           so many live blocks of random sizes from 512 bytes up; one is freed and another one allocated
//     threads COUNT own|same pairs|mixed|small    a stream each or one for all; pairs of 4 KiB, or sets of 64 blocks up to 32 MiB or to 1 MiB
//     remote BYTES                    one thread allocates, another one frees
//     pool BYTES                      the same pairs from a memory pool
//     history BYTES                   pairs of one size while the history is recorded, and what that adds for each of its three entries
//     replay FILE                     a packed trace (tools/pack_trace.py), three times from an empty cache, then warm
//
// The answer is `name value` in turn, times in nanoseconds, or `error` and why. Every measure starts from an empty cache.

#include "../examples_c/trace.h"
#include "anchor.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

constexpr size_t MiB = size_t{1} << 20;

double seconds = 0.1;

decltype(&bench_begin) begin_measure;
decltype(&bench_end) end_measure;
decltype(&bench_thread) begin_thread;
decltype(&bench_stream_create) stream_create;
decltype(&bench_alloc) alloc_block;
decltype(&bench_free) free_block;
decltype(&bench_reserved_peak) reserved_peak;
decltype(&bench_reset_peak) reset_peak;
decltype(&bench_driver_calls) driver_calls;
decltype(&bench_history) record_history; // NULL: it has none
decltype(&bench_pool) open_pool;         // NULL: it has none

double nanoseconds(Clock::time_point from, Clock::time_point to)
{
    return std::chrono::duration<double, std::nano>(to - from).count();
}

void *allocate(size_t size, void *stream)
{
    void *ptr = alloc_block(size, stream);
    if (ptr == nullptr)
        throw std::runtime_error("no memory for " + std::to_string(size) + " bytes");
    return ptr;
}

// The first so many of this process's streams.
std::vector<void *> streams_for(size_t count)
{
    static std::vector<void *> made;
    while (made.size() < count)
        made.push_back(stream_create());
    return {made.begin(), made.begin() + static_cast<std::ptrdiff_t>(count)};
}

void pairs(size_t size, void *stream, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free_block(allocate(size, stream), size, stream);
}

double time_of_pairs(size_t size, void *stream, size_t count)
{
    auto start = Clock::now();
    pairs(size, stream, count);
    return nanoseconds(start, Clock::now()) / static_cast<double>(count);
}

// Logarithms evenly spread: as many blocks from 512 to 1023 bytes as from 16 to 32 MiB.
size_t random_size(Random &random, size_t most)
{
    int doublings = 0;
    while (size_t{1024} << doublings <= most)
        doublings++;
    size_t least = size_t{512} << random() % static_cast<unsigned>(std::max(doublings, 1));
    return least + random() % least;
}

class Set {
    struct Block {
        void *ptr;
        size_t size;
    };
    std::vector<Block> blocks;
    size_t most;
    void *stream;
    Random random;

    Set(size_t most, void *stream, uint64_t seed) : most(most), stream(stream), random(seed) {}

public:
    // By way of the other one, so that blocks are freed when there is no memory for all.
    Set(size_t count, size_t most, void *stream, uint64_t seed) : Set(most, stream, seed)
    {
        for (size_t i = 0; i < count; i++) {
            size_t size = random_size(random, most);
            blocks.push_back({allocate(size, stream), size});
        }
    }
    ~Set()
    {
        for (Block &block : blocks)
            if (block.ptr != nullptr)
                free_block(block.ptr, block.size, stream);
    }
    // Which block gives way to which size: drawn beforehand, so that drawing is not timed.
    using Plan = std::vector<std::pair<size_t, size_t>>;
    Plan plan(size_t count)
    {
        Plan made(count);
        for (auto &step : made)
            step = {random() % blocks.size(), random_size(random, most)};
        return made;
    }
    void replace(const Plan &plan, size_t from, size_t count)
    {
        for (size_t i = from; i < from + count; i++) {
            auto [at, size] = plan[i];
            free_block(std::exchange(blocks[at].ptr, nullptr), blocks[at].size, stream);
            blocks[at] = {allocate(size, stream), size};
        }
    }
    double replace(size_t count)
    {
        Plan made = plan(count);
        auto start = Clock::now();
        replace(made, 0, count);
        return nanoseconds(start, Clock::now()) / static_cast<double>(count);
    }
};

// So many that they take as long as asked for, by what a few take.
size_t enough(double one, size_t least, size_t most)
{
    return static_cast<size_t>(std::clamp(seconds * 1e9 / std::max(one, 1.0), static_cast<double>(least), static_cast<double>(most)));
}

void measure_pair(std::istream &in, std::ostream &out)
{
    size_t size;
    in >> size;
    void *stream = streams_for(1)[0];
    pairs(size, stream, 200);
    size_t count = enough(time_of_pairs(size, stream, 500), 1000, 5'000'000);
    uint64_t calls = driver_calls();
    double taken = time_of_pairs(size, stream, count);
    out << "ns " << taken;
    if (calls != UINT64_MAX)
        out << " calls " << static_cast<double>(driver_calls() - calls) / static_cast<double>(count);
}

void measure_pool(std::istream &in, std::ostream &out)
{
    if (open_pool == nullptr || open_pool(1) == 0)
        throw std::runtime_error("it has no memory pools");
    measure_pair(in, out);
    open_pool(0);
}

void measure_history(std::istream &in, std::ostream &out)
{
    constexpr double ENTRIES = 3;
    constexpr size_t KEPT = 100'000;
    size_t size;
    in >> size;
    if (record_history == nullptr)
        throw std::runtime_error("no history is measured for it");
    void *stream = streams_for(1)[0];
    pairs(size, stream, 200);
    size_t count = enough(time_of_pairs(size, stream, 500), 1000, 5'000'000);
    double without = time_of_pairs(size, stream, count);
    if (record_history(KEPT) == 0)
        throw std::runtime_error("the history cannot be recorded");
    // Until the oldest entries are lost.
    pairs(size, stream, KEPT);
    double with = time_of_pairs(size, stream, count);
    record_history(0);
    out << "ns " << with << " event " << std::max(with - without, 0.0) / ENTRIES;
}

void measure_set(std::istream &in, std::ostream &out)
{
    size_t count, most;
    in >> count >> most;
    Set set(count, most, streams_for(1)[0], 1);
    // As often as it has blocks and more, so that what grows has grown.
    double rough = set.replace(std::max<size_t>(2 * count, 20'000));
    out << "ns " << set.replace(enough(rough, 5000, 500'000));
}

// All at it for the same time: with fewer processors than threads a fixed number of pairs would be done one thread after the other.
void measure_threads(std::istream &in, std::ostream &out)
{
    constexpr size_t LOT = 16, PLAN = 8192;
    size_t count;
    std::string whose, kind;
    in >> count >> whose >> kind;
    std::vector<void *> streams = streams_for(count);
    std::atomic<size_t> ready{0}, failed{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::pair<double, size_t>> done(count); // time and pairs
    std::vector<std::thread> threads;

    for (size_t t = 0; t < count; t++)
        threads.emplace_back([&, t] {
            void *stream = streams[whose == "same" ? 0 : t];
            auto run = [&](auto &&lot) {
                ready++;
                while (!go)
                    std::this_thread::yield();
                size_t pairs_done = 0;
                auto start = Clock::now();
                for (; !stop.load(std::memory_order_relaxed); pairs_done += LOT)
                    lot(pairs_done);
                done[t] = {nanoseconds(start, Clock::now()), pairs_done};
            };
            begin_thread();
            try {
                if (kind == "pairs") {
                    pairs(4096, stream, 500);
                    run([&](size_t) { pairs(4096, stream, LOT); });
                } else {
                    Set set(64, kind == "mixed" ? 32 * MiB : MiB, stream, t + 1);
                    auto plan = set.plan(PLAN);
                    set.replace(plan, 0, PLAN);
                    run([&](size_t from) { set.replace(plan, from % PLAN, LOT); });
                }
            } catch (const std::exception &) {
                failed++;
                ready++;
            }
        });
    while (ready < count)
        std::this_thread::yield();
    go = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
    for (auto &thread : threads)
        thread.join();
    if (failed != 0)
        throw std::runtime_error("no memory in a thread");
    double time = 0, number = 0;
    for (auto [one, made] : done) {
        time += one;
        number += static_cast<double>(made);
    }
    out << "ns " << time / std::max(number, 1.0);
}

void measure_remote(std::istream &in, std::ostream &out)
{
    constexpr size_t ROOM = 1024;
    size_t size;
    in >> size;
    void *stream = streams_for(1)[0];
    std::vector<void *> ring(ROOM);
    alignas(128) std::atomic<size_t> made{0};
    alignas(128) std::atomic<size_t> taken{0};

    auto pause = [](unsigned &turns) {
        if (++turns % 64 == 0)
            std::this_thread::yield();
    };
    auto lot = [&](size_t count) {
        made = taken = 0;
        std::thread other([&] {
            begin_thread();
            unsigned turns = 0;
            for (size_t i = 0; i < count; i++) {
                while (made.load(std::memory_order_acquire) == i)
                    pause(turns);
                free_block(ring[i % ROOM], size, stream);
                taken.store(i + 1, std::memory_order_release);
            }
        });
        auto start = Clock::now();
        unsigned turns = 0;
        for (size_t i = 0; i < count; i++) {
            while (i - taken.load(std::memory_order_acquire) == ROOM)
                pause(turns);
            ring[i % ROOM] = alloc_block(size, stream);
            made.store(i + 1, std::memory_order_release);
        }
        other.join();
        return nanoseconds(start, Clock::now()) / static_cast<double>(count);
    };
    out << "ns " << lot(enough(lot(5000), 20'000, 1'000'000));
}

struct Trace {
    std::vector<trace_event> events;
    uint32_t blocks = 0, streams = 0;
    uint64_t peak = 0; // bytes asked for at once, at most

    explicit Trace(const std::string &path)
    {
        struct trace trace;
        trace_event event;
        uint64_t live = 0;
        bool open = trace_open(&trace, path.c_str()) != 0;
        while (open && trace_next(&trace, &event)) {
            events.push_back(event);
            live = event.free ? live - event.size : live + event.size;
            peak = std::max(peak, live);
        }
        // What the run never freed is freed behind it.
        while (trace.live != 0) {
            event = trace.stack[--trace.live];
            event.free = 1;
            events.push_back(event);
        }
        blocks = trace.blocks;
        streams = trace.streams;
        std::string error = trace.error != nullptr ? trace.error : "";
        trace_close(&trace);
        if (!error.empty())
            throw std::runtime_error(path + ": " + error);
    }
};

struct Replay {
    const Trace &trace;
    std::vector<void *> streams, ptrs;
    size_t fails = 0; // allocations for which there was no memory

    explicit Replay(const Trace &trace) : trace(trace), streams(streams_for(trace.streams)), ptrs(trace.blocks) {}

    void one(const trace_event &event)
    {
        void *&ptr = ptrs[event.block];
        void *stream = streams[event.stream];
        if (!event.free) {
            ptr = alloc_block(event.size, stream);
            fails += ptr == nullptr && event.size != 0;
        } else if (ptr != nullptr) {
            free_block(ptr, event.size, stream);
        }
    }
    double pass()
    {
        auto start = Clock::now();
        for (const trace_event &event : trace.events)
            one(event);
        return nanoseconds(start, Clock::now()) / static_cast<double>(trace.events.size());
    }
    // Each event for itself, and what two readings of the clock take left out.
    std::vector<double> pass_in_single_steps()
    {
        std::vector<double> taken;
        taken.reserve(trace.events.size());
        auto before = Clock::now(), after = before;
        for (int i = 0; i < 10'000; i++)
            after = Clock::now();
        double clock = nanoseconds(before, after) / 10'000;
        for (const trace_event &event : trace.events) {
            before = Clock::now();
            one(event);
            taken.push_back(std::max(nanoseconds(before, Clock::now()) - clock, 0.0));
        }
        return taken;
    }
};

void measure_replay(std::istream &in, std::ostream &out)
{
    constexpr int PASSES = 3;
    std::string path;
    in >> std::ws;
    std::getline(in, path);
    Trace trace(path);
    Replay replay(trace);
    double cold = 0, longest = 0;
    std::vector<double> allocations, warm;
    uint64_t calls = 0;

    out << "events " << trace.events.size() << " requested " << trace.peak;
    for (int i = 1; i <= PASSES; i++) {
        reset_peak();
        if (i == 1) {
            std::vector<double> taken = replay.pass_in_single_steps();
            for (size_t k = 0; k < taken.size(); k++) {
                cold += taken[k];
                if (!trace.events[k].free)
                    allocations.push_back(taken[k]);
            }
            std::sort(allocations.begin(), allocations.end());
            longest = allocations.back();
        } else {
            uint64_t before = driver_calls();
            warm.push_back(replay.pass());
            calls = before == UINT64_MAX ? UINT64_MAX : driver_calls() - before;
        }
        out << " reserved" << i << ' ' << reserved_peak();
    }
    for (size_t more = enough(warm.back() * static_cast<double>(trace.events.size()), 1, 20); more > 0; more--)
        warm.push_back(replay.pass());
    std::sort(warm.begin(), warm.end());
    out << " cold " << cold / static_cast<double>(trace.events.size()) << " warm " << warm[warm.size() / 2] << " longest " << longest
        << " p999 " << allocations[allocations.size() * 999 / 1000] << " fails " << replay.fails;
    if (calls != UINT64_MAX)
        out << " calls " << calls;
}

template <class Function> void find(void *library, Function &function, const char *name)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr)
        throw std::runtime_error(dlerror());
}

void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr)
        throw std::runtime_error(dlerror());
    find(library, begin_measure, "bench_begin");
    find(library, end_measure, "bench_end");
    find(library, begin_thread, "bench_thread");
    find(library, stream_create, "bench_stream_create");
    find(library, alloc_block, "bench_alloc");
    find(library, free_block, "bench_free");
    find(library, reserved_peak, "bench_reserved_peak");
    find(library, reset_peak, "bench_reset_peak");
    find(library, driver_calls, "bench_driver_calls");
    record_history = reinterpret_cast<decltype(&bench_history)>(dlsym(library, "bench_history"));
    open_pool = reinterpret_cast<decltype(&bench_pool)>(dlsym(library, "bench_pool"));
}

const std::pair<const char *, void (*)(std::istream &, std::ostream &)> MEASURES[] = {
    {"pair", measure_pair}, {"set", measure_set}, {"threads", measure_threads}, {"remote", measure_remote}, {"pool", measure_pool},
    {"history", measure_history}, {"replay", measure_replay}};

void answer(const std::string &line)
{
    std::istringstream in(line);
    std::ostringstream out;
    std::string name;

    in >> name;
    auto measure = std::find_if(std::begin(MEASURES), std::end(MEASURES), [&](auto &one) { return name == one.first; });
    try {
        if (measure == std::end(MEASURES))
            throw std::runtime_error("there is no measure " + name);
        begin_measure();
        measure->second(in, out);
        end_measure();
        std::cout << out.str() << std::endl;
    } catch (const std::exception &error) {
        end_measure();
        std::cout << "error " << error.what() << std::endl;
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::cerr << "bench ANCHOR.so SECONDS\n";
        return 2;
    }
    try {
        load(argv[1]);
        seconds = std::stod(argv[2]);
        begin_thread();
        begin_measure();
        std::cout << "ready" << std::endl;
        for (std::string line; std::getline(std::cin, line);)
            answer(line);
    } catch (const std::exception &error) {
        std::cout << "error " << error.what() << std::endl;
        return 1;
    }
}
