"""CuPy's memory pool: what a program in Python pays."""

import pathlib
import struct
import sys
import time

import cupy

import anchor_python

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import pack_trace  # noqa: E402

POOL = cupy.cuda.MemoryPool()


def on_a_stream(measure):
    def measured(*numbers):
        with cupy.cuda.Stream(non_blocking=True):
            return measure(POOL.malloc, *map(int, numbers))

    return measured


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


if __name__ == "__main__":
    cupy.cuda.Device(0).use()
    POOL.malloc(512)
    anchor_python.serve({"pair": on_a_stream(anchor_python.pair), "set": on_a_stream(anchor_python.working_set), "replay": replay},
                        cupy.cuda.memory.OutOfMemoryError, POOL.free_all_blocks)
