"""Memory between streams, and between threads: no block goes to another stream before its work is done. The recorded two-stream run, many
threads at once, and pinned memory on its way, on the simulated device with shuffled streams; and with a library in which that defect is
planted, which all must find."""

import re

import kit

PROGRAMS = {"test_order": ["2", "0"], "test_overlap": [], "test_pinned_order": []}
SEEDS = range(1, 6)
# Sixteen threads of 300 rounds hand out memory of a live block every 30 rounds.
PLANTED_OVERLAPS = 16 * 300 // 30


def wrong_words(output):
    found = re.search(r"(\d+) words reused too early", output)
    return int(found.group(1)) if found else 0


def run(suite):
    folder = kit.BUILD / "tests/order"
    folder.mkdir(parents=True, exist_ok=True)
    code, output = kit.planted_order(folder / "planted")
    if not suite.check("build the library with the planted defect", code == 0, output):
        return
    for name, arguments in PROGRAMS.items():
        program = folder / name
        command = [*kit.compiler("c11"), *kit.STRICT, "-O2", kit.ROOT / f"tests_c/{name}.c", *kit.shared_link(), "-o", program]
        if suite.runs(f"compile {name}", command) is None:
            continue
        for seed in SEEDS:
            # On virtual memory and on plain segments in turn.
            options = ("", "expandable_segments:False")[seed % 2]
            env = kit.environment(TCUDA_SIM_SEED=seed, TCUDA_ALLOC_CONF=options)
            suite.runs(f"{name}, seed {seed} {options}", [program, *arguments], env=env)
            env = kit.environment(TCUDA_SIM_SEED=seed, LD_LIBRARY_PATH=folder / "planted")
            code, output = kit.run([program, *arguments], env=env)
            suite.check(f"{name} finds the planted defect, seed {seed}", code != 0 and wrong_words(output) > 0, output)
    # Twenty rounds of two streams with work on them, the host an iteration ahead: what is held stays what the streams have in use at once.
    output = suite.runs("twenty rounds of test_order", [folder / "test_order", "20", "0", "122"], env=kit.environment())
    found = re.search(r"peak reserved ([\d.]+) of peak requested", output or "")
    suite.check("twenty rounds hold at most 1.6 of what is in use", found and float(found.group(1)) <= 1.6, output)
    for seed in SEEDS:
        code, output = kit.run([folder / "test_overlap", "planted"], env=kit.environment(TCUDA_SIM_SEED=seed))
        found = f"overlap: {PLANTED_OVERLAPS} live blocks overlap, 0 words" in output
        suite.check(f"test_overlap finds every planted overlap, seed {seed}", code != 0 and found, output)
