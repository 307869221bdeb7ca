"""What the anchors in Python share: the measures of `bench ANCHOR.so SECONDS` (benches/bench.cpp has them and the answers) over a function
that allocates, and frees when nobody holds what it gave. Threads are not measured: they take turns at the interpreter."""

import random
import sys
import time

SECONDS = float(sys.argv[1])


def enough(one, least, most):
    return int(min(max(SECONDS * 1e9 / max(one, 1), least), most))


def pair(malloc, size):
    def pairs(count):
        start = time.perf_counter_ns()
        for _ in range(count):
            malloc(size)  # freed at once: nobody keeps it
        return (time.perf_counter_ns() - start) / count

    pairs(200)
    return {"ns": pairs(enough(pairs(500), 1000, 1_000_000))}


def random_size(most):
    doublings = max(1, (most // 512).bit_length() - 1)
    least = 512 << random.randrange(doublings)
    return least + random.randrange(least)


def working_set(malloc, count, most):
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


def serve(measures, no_memory=(), after=lambda: None):
    """Answers what is asked on standard input. `no_memory`: what is raised when there is none; `after` each measure."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            answer = measures[name](*arguments)
            print(" ".join(f"{key} {value}" for key, value in answer.items()), flush=True)
        except KeyError:
            print("error not measured from Python", flush=True)
        except no_memory:
            print("error no memory", flush=True)
        after()
