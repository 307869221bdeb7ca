"""What a pair of allocation and free costs in instructions, counted by single steps with the library as it ships.

tests/instruction_limits.txt has the limits. A machine on which nothing can be counted is told as such, check by check.
"""

import re

import kit

FIGURES = ("instructions", "locked", "syscalls", "shared", "shared_locked")
ABSENT = 77
# What the comments of tests_c/planted_anchor.c say.
PLANTED = {"pair_512": (14, 3, 1, 0, 0), "own_streams_4KiB": (14, 3, 1, 2, 1), "remote_free_512": (14, 3, 1, 0, 0)}


def limits():
    lines = (kit.ROOT / "tests/instruction_limits.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {row[0]: tuple(map(float, row[1:])) for row in rows}


def parse(output):
    """{case: figures} of what benches/count.c prints."""
    counted = {}
    for line in output.splitlines():
        words = line.split()
        if words[1::2] == list(FIGURES):
            counted[words[0]] = tuple(map(float, words[2::2]))
    return counted


def build(suite, name, source, *link):
    anchor = kit.BUILD / f"tests/instructions/{name}.so"
    command = [*kit.CC, "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-I{kit.ROOT}/include", source, *link, "-o", anchor]
    return anchor if suite.runs(f"compile the anchor {name}", command) is not None else None


def run(suite):
    folder = kit.BUILD / "tests/instructions"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "count"
    command = [*kit.CC, "-O2", "-Wall", "-Wextra", "-Werror", kit.ROOT / "benches/count.c", "-o", program, "-ldl", "-pthread"]
    if suite.runs("compile the counting program", command) is None:
        return
    planted = build(suite, "planted", kit.ROOT / "tests_c/planted_anchor.c")
    anchor = kit.ROOT / "benches/anchor_tcuda.c"
    tcuda = build(suite, "tcuda", anchor, *kit.shared_link())
    pinned = build(suite, "pinned", anchor, "-DBENCH_PINNED", *kit.shared_link())
    nvtx = build(suite, "nvtx", kit.ROOT / "benches/anchor_nvtx.c", *kit.shared_link())
    most = limits()
    if None in (planted, tcuda, pinned, nvtx):
        return

    code, output = kit.run([program, planted])
    if code == ABSENT:
        for case in [*PLANTED, "a limit that is passed", "each case has limits", *most]:
            suite.absent(f"{case}: {output.strip().removeprefix('absent: ')}")
        return
    found = parse(output)
    for case, right in PLANTED.items():
        suite.check(f"the planted instructions, {case}", code == 0 and found.get(case) == right, f"{right} is right\n{output}")
    suite.check("a limit that is passed", any(beyond(found.get("own_streams_4KiB", ()), (14, 2, 1, 2, 1))), output)

    code, output = kit.run([program, tcuda], env=kit.environment(TCUDA_SIM_MEMORY="64GiB"))
    code_pinned, of_pinned = kit.run([program, pinned], env=kit.environment())
    code_nvtx, of_nvtx = kit.run([program, nvtx], env=kit.environment())
    code, output = code or code_pinned or code_nvtx, output + re.sub("^(?=.)", "pinned_", of_pinned, flags=re.MULTILINE)
    output += "".join(line.replace("pair_512", "nvtx_pair") for line in of_nvtx.splitlines(keepends=True) if line.startswith("pair_512 "))
    found = parse(output)
    suite.check("each case has limits", code == 0 and set(found) == set(most), f"ended with {code}; limits are for {list(most)}\n{output}")
    for case, limit in most.items():
        figures = found.get(case, ())
        wrong = [f"{name} {figure:g}, {at_most:g} at most"
                 for name, figure, at_most, over in zip(FIGURES, figures, limit, beyond(figures, limit)) if over]
        suite.check(f"{case} stays in its limits", figures and not wrong, "; ".join(wrong))
    print(output, end="", flush=True)


def beyond(figures, limit):
    return [figure > at_most for figure, at_most in zip(figures, limit)]
