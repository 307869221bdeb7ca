"""CuPy's memory pool in the place of `bench ANCHOR.so SECONDS` (benches/bench.cpp has the measures and the answers): what a program in
Python pays. Threads are not measured: they take turns at the interpreter."""

import pathlib
import random
import struct
import sys
import time

import cupy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import pack_trace  # noqa: E402

SECONDS = float(sys.argv[1])
POOL = cupy.cuda.MemoryPool()


def enough(one, least, most):
    return int(min(max(SECONDS * 1e9 / max(one, 1), least), most))


def pairs(size, count):
    malloc = POOL.malloc
    start = time.perf_counter_ns()
    for _ in range(count):
        malloc(size)  # freed at once: nobody keeps it
    return (time.perf_counter_ns() - start) / count


def pair(size):
    with cupy.cuda.Stream(non_blocking=True):
        pairs(int(size), 200)
        return {"ns": pairs(int(size), enough(pairs(int(size), 500), 1000, 1_000_000))}


def random_size(most):
    doublings = max(1, (most // 512).bit_length() - 1)
    least = 512 << random.randrange(doublings)
    return least + random.randrange(least)


def working_set(count, most):
    count, most, malloc = int(count), int(most), POOL.malloc
    with cupy.cuda.Stream(non_blocking=True):
        blocks = [malloc(random_size(most)) for _ in range(count)]

        def replace(turns):
            plan = [(random.randrange(count), random_size(most)) for _ in range(turns)]
            start = time.perf_counter_ns()
            for at, size in plan:
                blocks[at] = None
                blocks[at] = malloc(size)
            return (time.perf_counter_ns() - start) / turns

        rough = replace(max(2 * count, 5000))
        return {"ns": replace(enough(rough, 2000, 200_000))}


def replay(path):
    data = pack_trace.unpack(pathlib.Path(path).read_bytes())
    events = list(struct.iter_unpack("<QQII", data[8:]))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(1 + max(event[3] for event in events))]
    live, requested, now = {}, 0, 0
    for ident, size, op, _ in events:
        now += -size if op else size
        requested = max(requested, now)
    answer = {"events": len(events), "requested": requested}
    malloc = POOL.malloc

    def one_pass(taken=None):
        clock, current = time.perf_counter_ns, None
        start = clock()
        for ident, size, op, stream in events:
            before = clock() if taken is not None else 0
            if op:
                live.pop(ident, None)
            else:
                if stream != current:
                    streams[stream].use()
                    current = stream
                live[ident] = malloc(size)
            if taken is not None:
                taken.append((clock() - before, op))
        spent = clock() - start
        live.clear()
        return spent / len(events)

    cold, warm = [], []
    try:
        one_pass(cold)
        answer["reserved1"] = POOL.total_bytes()
        for i in (2, 3):
            warm.append(one_pass())
            answer[f"reserved{i}"] = POOL.total_bytes()
    finally:
        live.clear()
        cupy.cuda.Stream.null.use()
    allocations = sorted(spent for spent, op in cold if not op)
    answer |= {"cold": sum(spent for spent, _ in cold) / len(cold), "warm": min(warm), "longest": allocations[-1],
               "p999": allocations[len(allocations) * 999 // 1000], "fails": 0}
    return answer


MEASURES = {"pair": pair, "set": working_set, "replay": replay}


def main():
    cupy.cuda.Device(0).use()
    POOL.malloc(512)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            answer = MEASURES[name](*arguments)
            print(" ".join(f"{key} {value}" for key, value in answer.items()), flush=True)
        except KeyError:
            print("error not measured from Python", flush=True)
        except cupy.cuda.memory.OutOfMemoryError:
            print("error no memory", flush=True)
        POOL.free_all_blocks()


if __name__ == "__main__":
    main()
