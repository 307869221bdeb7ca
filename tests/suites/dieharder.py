"""The portable numbers before dieharder's tests, a short form on the simulated device. `make test-random` runs this, which is no part of
`make test` because dieharder comes from Debian's packages. `make test-random-all` runs every test once and prints the table."""

import shutil
import struct
import subprocess
import sys

import kit

sys.path.insert(0, str(kit.ROOT / "tools"))
import battery  # noqa: E402

FOLDER = kit.BUILD / "tests/dieharder"
SEED = 1
# Bad generators of planted_words.c, and tests of the short form that have to find them.
PLANTED = {"counter": (0, 2, 4), "lcg": (8, 102, 205), "rounds": (0, 16, 209), "again": (17, 208, 209)}
# The portable geometry: 128 multiprocessors of 2048 threads.
THREADS = 128 * 2048
TENSOR = 4 << 20


def compile_words(suite):
    """{name: program}, or None."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    programs = {name: FOLDER / name for name in ("random_words", "planted_words")}
    for name, program in programs.items():
        command = [*kit.compiler("c99"), *kit.STRICT, "-O2", kit.ROOT / f"tests_c/{name}.c", *kit.shared_link(), "-o", program]
        if suite.runs(f"compile {name}.c", command) is None:
            return None
    return programs


def philox(seed, sequence, block):
    """Four words, from the description of Philox 4x32-10."""
    low = 0xFFFFFFFF
    k0, k1, c = seed & low, seed >> 32, [block & low, block >> 32, sequence & low, sequence >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & low, p0 >> 32 ^ c[3] ^ k1, p0 & low]
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return c


def words_are_portable(suite, program):
    """Thread t of T has elements t, t + T, ... of a tensor; four of them are a block, and the next tensor goes on with the blocks."""
    seed, tensors = 0x123456789ABCDEF, 2
    reader = subprocess.Popen([program, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kit.environment())
    words = struct.unpack(f"<{tensors * TENSOR}I", reader.stdout.read(4 * tensors * TENSOR))
    reader.stdout.close()
    said = reader.stderr.read().decode()
    suite.check("random_words ends well when nobody reads on", reader.wait() == 0 and not said, f"{reader.returncode} {said}")
    places = [*range(8), THREADS - 1, THREADS, 4 * THREADS - 1, 4 * THREADS, TENSOR - 1, TENSOR, TENSOR + 12345, 2 * TENSOR - 1]
    wrong = [at for at in places if words[at] != philox(seed, at % THREADS, at // (4 * THREADS))[at // THREADS % 4]]
    suite.check("the words are those of the portable order", not wrong, wrong)
    code, said = kit.run([program, "12x"])
    suite.check("random_words refuses what is no seed", code == 2 and "usage" in said, said)


def verdicts_are_strict(suite):
    """WEAK counts only with a better second attempt, FAILED always."""
    def judged(*attempts):
        asked = iter(attempts)
        fake = battery.Battery(None, None)
        fake.once = lambda test, seed: [battery.Row("x", at, 1, 1, 0.5, verdict) for at, verdict in enumerate(next(asked))]
        return [row.good() for row in fake.judged(battery.Test(0), 1)]

    for attempts, good in [([["PASSED"]], [True]), ([["FAILED"]], [False]), ([["WEAK"], ["PASSED"]], [True]), ([["WEAK"], ["WEAK"]], [False]),
                           ([["WEAK"], ["FAILED"]], [False]), ([["WEAK", "PASSED"], ["PASSED", "WEAK"]], [True, True]),
                           ([["WEAK", "PASSED"], ["PASSED", "FAILED"]], [True, False]), ([["WEAK", "FAILED"]], [False, False])]:
        suite.check(f"{attempts} is judged", judged(*attempts) == good, judged(*attempts))


def words_that_break_off_fail(suite, dieharder):
    for what, words in (("an error", ["false"]), ("an early end", ["true"])):
        try:
            rows = battery.Battery(dieharder, words, kit.environment()).once(battery.Test(4), 1)
            suite.check(f"words that end with {what} are no words", False, rows)
        except RuntimeError as error:
            suite.check(f"words that end with {what} are no words", "dieharder" in str(error) or "run" in str(error), error)


def planted(suite, dieharder, program):
    tests = {test.number: test for test in battery.short()}

    def one(kind, number):
        rows = battery.Battery(dieharder, [program, kind], kit.environment()).once(tests[number], SEED)
        suite.check(f"test {number} finds '{kind}'", any(row.verdict == "FAILED" for row in rows), "\n".join(row.line() for row in rows))

    suite.each([lambda k=kind, n=number: one(k, n) for kind, numbers in PLANTED.items() for number in numbers])


def packed(suite):
    """The folder for the machine with a GPU, moved, and two of its tests."""
    if suite.runs("pack the battery", [sys.executable, kit.ROOT / "tools/pack_battery.py"]) is None:
        return
    copy = kit.BUILD / "tests/battery moved"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kit.TARGET / "battery", copy)
    output = suite.runs("it runs elsewhere", [sys.executable, copy / "battery.py", "--only", "4,8", "--jobs", "2"], cwd="/")
    suite.check("it prints its table", output and "battery: 2 tests, seed 1: 2 p-values passed" in output and "diehard_bitstream" in output, output)


def run(suite):
    dieharder = kit.need("dieharder")
    programs = compile_words(suite)
    if programs is None:
        return
    words_are_portable(suite, programs["random_words"])
    verdicts_are_strict(suite)
    words_that_break_off_fail(suite, dieharder)
    planted(suite, dieharder, programs["planted_words"])

    def told(rows):
        for row in rows:
            suite.check(f"{row.name}, {row.ntup}", row.good(), f"{battery.HEAD}\n{row.line()}")

    battery.Battery(dieharder, [programs["random_words"]], kit.environment()).run(battery.short(), SEED, 2, told)
    packed(suite)


def every():
    suite = kit.Suite("dieharder")
    programs = compile_words(suite)
    if programs is None:
        return 1
    return battery.table(battery.Battery(kit.need("dieharder"), [programs["random_words"]], kit.environment()), battery.every(), SEED, 2)


if __name__ == "__main__":
    sys.exit(every())
