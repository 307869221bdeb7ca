"""torch's cache of pinned memory in the place of `bench ANCHOR.so SECONDS` (benches/bench.cpp has the measures and the answers): what a program
in Python pays for torch.empty(..., pin_memory=True). Threads are not measured: they take turns at the interpreter."""

import random
import sys
import time

import torch

SECONDS = float(sys.argv[1])


def malloc(size):
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def enough(one, least, most):
    return int(min(max(SECONDS * 1e9 / max(one, 1), least), most))


def pairs(size, count):
    start = time.perf_counter_ns()
    for _ in range(count):
        malloc(size)  # freed at once: nobody keeps it
    return (time.perf_counter_ns() - start) / count


def pair(size):
    pairs(int(size), 50)
    return {"ns": pairs(int(size), enough(pairs(int(size), 500), 1000, 1_000_000))}


def random_size(most):
    doublings = max(1, (most // 512).bit_length() - 1)
    least = 512 << random.randrange(doublings)
    return least + random.randrange(least)


def working_set(count, most):
    count, most = int(count), int(most)
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


MEASURES = {"pair": pair, "set": working_set}


def main():
    torch.cuda.init()
    malloc(512)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            print(" ".join(f"{key} {value}" for key, value in MEASURES[name](*arguments).items()), flush=True)
        except KeyError:
            print("error not measured from Python", flush=True)


if __name__ == "__main__":
    main()
