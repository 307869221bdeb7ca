"""Every example compiles without a warning as C99 and C++17 (or C++17 alone) and runs to a good end on the simulated device."""

import kit


def one(suite, source, standard):
    folder = kit.BUILD / "tests/examples"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{source.stem}.{standard}"
    command = [*kit.compiler(standard), *kit.STRICT, "-O2", source, *kit.shared_link(), "-o", program]
    if suite.runs(f"{source.name} compiles as {standard}", command) is not None:
        output = suite.runs(f"{source.name} as {standard} runs", [program], env=kit.environment(TCUDA_BACKEND="auto"))
        suite.check(f"{source.name} as {standard} says something", output and output.strip())


def run(suite):
    folder = kit.ROOT / "examples_c"
    jobs = [(source, standard) for source in sorted(folder.glob("*.c")) for standard in ("c99", "c++17")]
    jobs += [(source, "c++17") for source in sorted(folder.glob("*.cpp"))]
    suite.each([lambda job=job: one(suite, *job) for job in jobs])
