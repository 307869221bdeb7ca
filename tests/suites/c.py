"""Every C test, as C99, C11, C++11 and C++17 with the shared library and as C11 with the static one; every C++ test as C++17 and C++20."""

import re

import kit

LINKS = {"shared": kit.shared_link, "static": kit.static_link}


def jobs():
    for source in kit.c_sources():
        for standard in ("c99", "c11", "c++11", "c++17"):
            yield source, standard, "shared"
        yield source, "c11", "static"
    for source in kit.cxx_sources():
        for standard in ("c++17", "c++20"):
            yield source, standard, "shared"
        yield source, "c++17", "static"


def counted(output):
    """How many checks a program says it passed."""
    found = re.findall(r"(\d+) passed, 0 failed", output)
    return int(found[-1]) if found else 0


def one(suite, source, standard, link):
    what = f"{source.name} as {standard}, {link}"
    folder = kit.BUILD / "tests/c"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{source.stem}.{standard}.{link}"
    command = [*kit.compiler(standard), *kit.STRICT, "-O1", "-g", source, *LINKS[link](), "-o", program]
    code, output = kit.run(command)
    if code == 0:
        code, output = kit.run([program])
    suite.check(what, code == 0 and counted(output) > 0, f"ended with {code}\n{output}")


def run(suite):
    # A check that fails must fail its program, or all the rest proves nothing.
    folder = kit.BUILD / "tests/c"
    folder.mkdir(parents=True, exist_ok=True)
    wrong = folder / "wrong.c"
    wrong.write_text('#include "check.h"\nint main(void) { CHECK(1); CHECK_EQUAL(1, 2); CHECK_TEXT("a", "a");\n'
                     '    CHECK_OK(tcuda_device_count(NULL)); return CHECK_DONE(); }\n')
    program = folder / "wrong"
    suite.runs("compile a test that fails", [*kit.compiler("c11"), *kit.STRICT, wrong, *kit.shared_link(), "-o", program])
    code, output = kit.run([program])
    suite.check("a test that fails says so", code == 1 and "wrong.c: 2 passed, 2 failed" in output, output)
    suite.each([lambda job=job: one(suite, *job) for job in jobs()])
