#!/usr/bin/env python3
"""Runs dieharder on tcuda's random words, many tests side by side, and prints a table.

    battery.py                      every test, as `dieharder -a` has them; some 15 minutes of one processor
    battery.py --short              the few that find most for their time
    battery.py --only 203,17 --jobs 8 --seed 5

`make test-random` and `make test-random-all` run it here, on the simulated device. `make battery` packs it into target/battery for a
machine with a GPU. Each test draws from a seed of its own. FAILED (p within 1e-6 of 0 or 1) is a failure. One p of a hundred is WEAK by
chance (0.005): such a test is run again once, with another seed, and the same p has to be better then.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import List, NamedTuple, Optional

HERE = pathlib.Path(__file__).resolve().parent
ROW = re.compile(r"^ *(\w+)\| *(\d+)\| *(\d+)\| *(\d+)\|([0-9.]+)\| *(PASSED|WEAK|FAILED) *$", re.M)
# The second attempt's seed is so much further.
AGAIN = 1_000_000


class Test(NamedTuple):
    number: int
    ntup: Optional[int] = None
    psamples: Optional[int] = None  # None: dieharder's own
    cost: float = 1                 # seconds of a processor, about

    def arguments(self):
        options = [("-d", self.number), ("-n", self.ntup), ("-p", self.psamples)]
        return [str(part) for name, value in options if value is not None for part in (name, value)]


class Row(NamedTuple):
    name: str
    ntup: int
    tsamples: int
    psamples: int
    p: float
    verdict: str  # PASSED, WEAK, FAILED, or "PASSED after WEAK"

    def good(self):
        return self.verdict.startswith("PASSED")

    def line(self):
        return f"{self.name:<22}{self.ntup:>5}{self.tsamples:>10}{self.psamples:>10}{self.p:>13.8f}  {self.verdict}"


HEAD = f"{'test':<22}{'ntup':>5}{'tsamples':>10}{'psamples':>10}{'p':>13}"


def every():
    """What `dieharder -a` runs, the longest first."""
    plain = {0: 1, 1: 3, 2: 12, 3: 2, 4: 1, 5: 2, 6: 1, 7: 8, 8: 1, 9: 1, 10: 2, 11: 1, 12: 2, 13: 4, 14: 1, 15: 1, 16: 2, 17: 68, 100: 1, 101: 5,
             102: 5, 204: 6, 205: 1, 206: 1, 207: 2, 208: 2, 209: 2}
    tests = [Test(number, cost=cost) for number, cost in plain.items()]
    tests += [Test(200, n, cost=n) for n in range(1, 13)]
    tests += [Test(201, n, cost=4 * n) for n in range(2, 6)]
    tests += [Test(202, n, cost=n / 2) for n in range(2, 6)]
    tests += [Test(203, n, cost=1 + 0.7 * n) for n in range(33)]
    return sorted(tests, key=lambda test: -test.cost)


def short():
    """Those that see what bad generators have in common (planted_words.c), on few samples: some 30 s of a processor.
    Fewer than 8 are too few: then even the worst p is only WEAK."""
    few = {0: 100, 1: 30, 2: 20, 3: 50, 4: 50, 8: 50, 9: 50, 12: 50, 13: 30, 15: 50, 16: 50, 17: 8, 102: 50, 205: 1, 206: 1, 207: 1, 208: 1, 209: 1}
    tests = [Test(number, psamples=psamples) for number, psamples in few.items()]
    tests += [Test(200, 2, 100), Test(200, 8, 20), Test(201, 3, 100), Test(202, 5, 50)]
    return tests + [Test(203, n, 20, cost=n) for n in (0, 1, 7, 31)]


class Battery:
    def __init__(self, dieharder, words, env=None):
        """`words` is a program that takes a seed as its last argument and writes words without end."""
        self.dieharder, self.words, self.env = dieharder, words, env

    def once(self, test, seed) -> List[Row]:
        words = subprocess.Popen([*map(str, self.words), str(seed)], stdout=subprocess.PIPE, env=self.env)
        command = [str(self.dieharder), "-g", "200", *test.arguments()]
        answer = subprocess.run(command, stdin=words.stdout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        words.stdout.close()
        rows = [Row(name, *map(int, numbers), float(p), verdict) for name, *numbers, p, verdict in ROW.findall(answer.stdout)]
        if words.wait() != 0 or answer.returncode != 0 or not rows:
            raise RuntimeError(f"{' '.join(command)}: ended with {answer.returncode}, the words with {words.returncode}\n{answer.stdout}")
        return rows

    def judged(self, test, seed) -> List[Row]:
        """What is WEAK is tried again with another seed, unless something FAILED."""
        rows = self.once(test, seed)
        if not any(row.verdict == "WEAK" for row in rows) or any(row.verdict == "FAILED" for row in rows):
            return rows
        again = self.once(test, seed + AGAIN)
        return [second._replace(verdict=f"{second.verdict} after WEAK") if first.verdict == "WEAK" or second.verdict == "FAILED" else first
                for first, second in zip(rows, again)]

    def run(self, tests, seed, jobs, told):
        """All tests, `jobs` at a time, the longest first; told(rows) after each. True if all are good. A test's seed is by its place."""
        good = True
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            order = sorted(enumerate(tests), key=lambda place: -place[1].cost)
            futures = [pool.submit(self.judged, test, seed + at) for at, test in order]
            try:
                for future in concurrent.futures.as_completed(futures):
                    rows = future.result()
                    told(rows)
                    good = good and all(row.good() for row in rows)
            finally:  # one that breaks off ends the rest
                for future in futures:
                    future.cancel()
        return good


def table(battery, tests, seed, jobs):
    """Runs them and prints; the exit code."""
    started, rows = time.monotonic(), []

    def told(more):
        rows.extend(more)
        for row in more:
            print(f"{time.monotonic() - started:5.0f} s  {row.line()}", flush=True)

    print(f"{'after':>7}  {HEAD}")
    good = battery.run(tests, seed, jobs, told)
    bad = [row for row in rows if not row.good()]
    weak = [row for row in rows if row.verdict == "PASSED after WEAK"]
    for row in bad:
        print(f"FAILED   {row.line()}")
    print(f"battery: {len(tests)} tests, seed {seed}: {len(rows) - len(bad)} p-values passed ({len(weak)} of them at the second attempt), "
          f"{len(bad)} failed ({time.monotonic() - started:.0f} s)")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", help="numbers of tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dieharder", default=HERE / "dieharder/run")
    parser.add_argument("--words", default=HERE / "random_words")
    options = parser.parse_args()
    tests = short() if options.short else every()
    if options.only:
        numbers = [int(number) for number in options.only.split(",")]
        tests = [test for test in tests if test.number in numbers]
    try:
        return table(Battery(options.dieharder, [options.words]), tests, options.seed, options.jobs)
    except RuntimeError as error:
        sys.exit(f"battery: {error}")


if __name__ == "__main__":
    sys.exit(main())
