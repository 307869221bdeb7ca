// Comm family: stretches of memory from one place to many, or from device to device, copied or added to, and sums of many in one place. Any of
// them may be on another device.
//
// A kernel takes a table of segments by value, the same as `Table` in src/runtime/kernels/comm.rs, and goes through it tile by tile, so
// that hundreds of small tensors are one launch.

#include "common.cuh"

#define WORDS 240
// Loads of a thread under way at once.
#define UNROLL 4

struct Table {
    uint32_t tiles, segments;
    // Addresses on the side of many, and bytes that a block does before it looks for the next.
    uint32_t many, tile;
    // For each segment: its first tile, its bytes, the one address, the many.
    uint64_t words[WORDS];
};

struct alignas(16) Word16 {
    uint64_t low, high;
};

struct Piece {
    // The segment's place in `words`.
    uint32_t at;
    uint64_t offset;
    uint32_t size;
    // Of all addresses together.
    uint32_t misaligned;
};

__device__ __forceinline__ Piece find(const Table &table, uint32_t tile) {
    const uint32_t stride = table.many + 3;
    uint32_t low = 0, high = table.segments;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (table.words[middle * stride] <= tile) low = middle; else high = middle;
    }
    Piece piece;
    piece.at = low * stride;
    piece.offset = (tile - table.words[piece.at]) * table.tile;
    const uint64_t left = table.words[piece.at + 1] - piece.offset;
    piece.size = left < table.tile ? (uint32_t)left : table.tile;
    uint64_t bits = 0;
    for (uint32_t i = 0; i <= table.many; ++i) bits |= table.words[piece.at + 2 + i];
    piece.misaligned = (uint32_t)bits & 15;
    return piece;
}

// By a block of T threads.
template <int T, typename Word> __device__ __forceinline__ void spread(const Table &table, const Piece &piece, uint32_t start) {
    const Word *from = (const Word *)(table.words[piece.at + 2] + piece.offset);
    const uint32_t count = piece.size / sizeof(Word);
    for (uint32_t index = start + threadIdx.x; index < count; index += T * UNROLL) {
        Word words[UNROLL];
        #pragma unroll
        for (int i = 0; i < UNROLL; ++i)
            if (index + i * T < count) words[i] = from[index + i * T];
        for (uint32_t m = 0; m < table.many; ++m) {
            Word *to = (Word *)(table.words[piece.at + 3 + m] + piece.offset);
            #pragma unroll
            for (int i = 0; i < UNROLL; ++i)
                if (index + i * T < count) to[index + i * T] = words[i];
        }
    }
}

template <int T> __device__ __forceinline__ void spread(const Table &table, const Piece &piece) {
    if (piece.misaligned == 0) {
        spread<T, Word16>(table, piece, 0);
        spread<T, uint8_t>(table, piece, piece.size & ~15u);
    } else if (((piece.misaligned | piece.size) & 3) == 0) {
        spread<T, uint32_t>(table, piece, 0);
    } else {
        spread<T, uint8_t>(table, piece, 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) tcuda_comm_spread(const Table table) {
    for (uint32_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) spread<THREADS>(table, find(table, tile));
}

// ---- from device to device: a tile goes on as soon as it is here

// Counters of a relay lie on cache lines of their own.
#define COUNTER_STEP 32
// Many in few blocks: less is under way, and the next device waits less.
#define RELAY_THREADS 512

struct Relay {
    Table table;
    // On this device: of each block, how many tiles came, in all launches of the call. On the next one: where the same is told. 0: nobody.
    uint64_t came, tell;
    // On this device: how many tiles the next one has taken out of a window. On the one before: where the same is told. 0: no window.
    uint64_t taken, give;
    // Tiles of each block in the launches before, at the most; tiles by which it may be ahead of the next device.
    uint32_t before, ahead;
};

__device__ __forceinline__ uint32_t look(const uint32_t *counter) {
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

__device__ __forceinline__ uint32_t acquire(const uint32_t *counter) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// What this block did before is there for who sees the value.
__device__ __forceinline__ void release(uint32_t *counter, uint32_t *other, uint32_t value) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    if (counter) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
    if (other) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(other), "r"(value) : "memory");
}

__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Until the counter has come so far; how far it came. What comes from a device that is lost never does: after ten minutes this one gives up too.
__device__ __forceinline__ uint32_t await(const uint32_t *counter, uint32_t value) {
    const uint64_t begin = nanoseconds();
    for (uint32_t asked = 1; (int32_t)(look(counter) - value) < 0; ++asked)
        if (asked % 65536 == 0 && nanoseconds() - begin > 600000000000) __trap();
    // Each look of this kind costs the processor what it has in its first cache.
    return acquire(counter);
}

// This block's, of counters.
__device__ __forceinline__ uint32_t *own(uint64_t counters) { return counters ? (uint32_t *)counters + blockIdx.x * COUNTER_STEP : 0; }

// A block takes the same tiles on every device. It waits for launches that were made before this one, and for none that comes after.
template <typename Move> __device__ __forceinline__ void hand_on(const Relay &relay, Move move) {
    const uint32_t *came = own(relay.came), *taken = own(relay.taken);
    uint32_t *tell = own(relay.tell), *give = own(relay.give);
    uint32_t done = relay.before, known = relay.before - relay.ahead;
    for (uint32_t tile = blockIdx.x; tile < relay.table.tiles; tile += gridDim.x) {
        ++done;
        if (came || taken) {
            if (threadIdx.x == 0) {
                if (came) await(came, done);
                // Seldom: the next device is no more than a few tiles behind.
                if (taken && (int32_t)(known - (done - relay.ahead)) < 0) known = await(taken, done - relay.ahead);
            }
            __syncthreads();
        }
        move(find(relay.table, tile));
        if (tell || give) {
            __syncthreads();
            if (threadIdx.x == 0) release(tell, give, done);
        }
    }
}

extern "C" __global__ void __launch_bounds__(RELAY_THREADS) tcuda_comm_relay(const Relay relay) {
    hand_on(relay, [&](const Piece &piece) { spread<RELAY_THREADS>(relay.table, piece); });
}

// ---- sums: in the order of the table, halves in float until the end

struct Bool {
    using Value = uint8_t;
    static __device__ __forceinline__ uint32_t widen(Value v) { return v != 0; }
    static __device__ __forceinline__ uint32_t add(uint32_t a, uint32_t b) { return a | b; }
    static __device__ __forceinline__ Value narrow(uint32_t v) { return (Value)v; }
};
template <typename T> struct Plain {
    using Value = T;
    static __device__ __forceinline__ T widen(T v) { return v; }
    static __device__ __forceinline__ T add(T a, T b) { return a + b; }
    static __device__ __forceinline__ T narrow(T v) { return v; }
};
struct HalfSum {
    using Value = Half;
    static __device__ __forceinline__ float widen(Half v) { return ::widen(v); }
    static __device__ __forceinline__ float add(float a, float b) { return a + b; }
    static __device__ __forceinline__ Half narrow(float v) { return narrow_half(v); }
};
struct BFloatSum {
    using Value = BFloat;
    static __device__ __forceinline__ float widen(BFloat v) { return ::widen(v); }
    static __device__ __forceinline__ float add(float a, float b) { return a + b; }
    static __device__ __forceinline__ BFloat narrow(float v) { return narrow_bfloat(v); }
};

// Packs of N from pack `start` on.
template <typename Op, int N> __device__ __forceinline__ void sum(const Table &table, const Piece &piece, uint32_t start) {
    using Value = typename Op::Value;
    using Group = Pack<Value, N>;
    using Wide = decltype(Op::widen(Value()));
    const uint32_t count = piece.size / sizeof(Group);
    Group *to = (Group *)(table.words[piece.at + 2] + piece.offset);
    for (uint32_t index = start + threadIdx.x; index < count; index += THREADS) {
        Wide total[N];
        // Over a link each turn takes a microsecond or two.
        for (uint32_t m = 0; m < table.many; m += UNROLL) {
            Group next[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (m + u < table.many) next[u] = ((const Group *)(table.words[piece.at + 3 + m + u] + piece.offset))[index];
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (m + u >= table.many) break;
                #pragma unroll
                for (int i = 0; i < N; ++i) total[i] = m + u == 0 ? Op::widen(next[u].at[i]) : Op::add(total[i], Op::widen(next[u].at[i]));
            }
        }
        Group group;
        #pragma unroll
        for (int i = 0; i < N; ++i) group.at[i] = Op::narrow(total[i]);
        to[index] = group;
    }
}

template <typename Op> __device__ __forceinline__ void sums(const Table &table) {
    constexpr int N = 16 / sizeof(typename Op::Value);
    for (uint32_t tile = blockIdx.x; tile < table.tiles; tile += gridDim.x) {
        const Piece piece = find(table, tile);
        if (piece.misaligned == 0) {
            sum<Op, N>(table, piece, 0);
            sum<Op, 1>(table, piece, piece.size / 16 * N);
        } else {
            sum<Op, 1>(table, piece, 0);
        }
    }
}

// What came, and what is here, to the next device, all of it aligned. Packs of N from pack `start` on, U of them under way at once.
template <typename Op, int N, int U> __device__ __forceinline__ void add_two(const Table &table, const Piece &piece, uint32_t start) {
    using Group = Pack<typename Op::Value, N>;
    const uint32_t count = piece.size / sizeof(Group);
    Group *to = (Group *)(table.words[piece.at + 2] + piece.offset);
    const Group *first = (const Group *)(table.words[piece.at + 3] + piece.offset), *second = (const Group *)(table.words[piece.at + 4] + piece.offset);
    for (uint32_t index = start + threadIdx.x; index < count; index += RELAY_THREADS * U) {
        Group a[U], b[U];
        #pragma unroll
        for (int i = 0; i < U; ++i) {
            const uint32_t at = index + i * RELAY_THREADS;
            if (at < count) a[i] = first[at], b[i] = second[at];
        }
        #pragma unroll
        for (int i = 0; i < U; ++i) {
            #pragma unroll
            for (int n = 0; n < N; ++n) a[i].at[n] = Op::narrow(Op::add(Op::widen(a[i].at[n]), Op::widen(b[i].at[n])));
            const uint32_t at = index + i * RELAY_THREADS;
            if (at < count) to[at] = a[i];
        }
    }
}

template <typename Op> __device__ __forceinline__ void hand_on_sums(const Relay &relay) {
    constexpr int N = 16 / sizeof(typename Op::Value);
    hand_on(relay, [&](const Piece &piece) {
        add_two<Op, N, UNROLL>(relay.table, piece, 0);
        add_two<Op, 1, 1>(relay.table, piece, piece.size / 16 * N);
    });
}

extern "C" {
__global__ void __launch_bounds__(RELAY_THREADS) tcuda_comm_relay_add_i32(const Relay relay) { hand_on_sums<Plain<uint32_t>>(relay); }
__global__ void __launch_bounds__(RELAY_THREADS) tcuda_comm_relay_add_i64(const Relay relay) { hand_on_sums<Plain<uint64_t>>(relay); }
__global__ void __launch_bounds__(RELAY_THREADS) tcuda_comm_relay_add_f32(const Relay relay) { hand_on_sums<Plain<float>>(relay); }
__global__ void __launch_bounds__(RELAY_THREADS) tcuda_comm_relay_add_f64(const Relay relay) { hand_on_sums<Plain<double>>(relay); }

__global__ void __launch_bounds__(THREADS) tcuda_comm_add_bool(const Table table) { sums<Bool>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_i8(const Table table) { sums<Plain<uint8_t>>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_i16(const Table table) { sums<Plain<uint16_t>>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_i32(const Table table) { sums<Plain<uint32_t>>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_i64(const Table table) { sums<Plain<uint64_t>>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_f16(const Table table) { sums<HalfSum>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_bf16(const Table table) { sums<BFloatSum>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_f32(const Table table) { sums<Plain<float>>(table); }
__global__ void __launch_bounds__(THREADS) tcuda_comm_add_f64(const Table table) { sums<Plain<double>>(table); }
}
