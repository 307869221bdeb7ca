"""The C tests with the library as it ships, under valgrind's memcheck."""

import re

import kit
from c import counted

# As long as it is told, in seconds: its rounds take a minute here.
ARGUMENTS = {"test_overlap": ["10"]}


def under_valgrind(suite, valgrind, program, *arguments):
    """(exit code, output of the program, valgrind's report)."""
    log = program.with_suffix(".valgrind")
    log.unlink(missing_ok=True)
    command = [valgrind, "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite", f"--log-file={log}"]
    code, output = kit.run([*command, program, *arguments], timeout=600)
    return code, output, log.read_text(errors="replace") if log.exists() else "valgrind wrote no report"


def build(suite, source, standard, folder):
    program = folder / source.stem
    command = [*kit.compiler(standard), *kit.STRICT, "-O1", "-g", source, *kit.shared_link(folder), "-o", program]
    code, output = kit.run(command)
    suite.check(f"compile {source.name}", code == 0, output)
    return program


def fetch():
    return kit.need("valgrind")


def run(suite):
    valgrind = fetch()
    folder = kit.BUILD / "tests/memcheck"
    folder.mkdir(parents=True, exist_ok=True)
    # The library as it was before `make lib` stripped it, so that a report has names in it.
    for name in ("libtcuda.so", f"libtcuda.so.{kit.ABI}"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(kit.TARGET / "release/libtcuda.so")

    planted = build(suite, kit.ROOT / "tests_c/planted.c", "c11", folder)
    for letter, words in {"f": r"Invalid write(.|\n)*tcuda_device_count", "h": "Invalid write", "l": "definitely lost"}.items():
        code, output, report = under_valgrind(suite, valgrind, planted, letter)
        suite.check(f"finds the planted bug '{letter}'", code == 99 and re.search(words, report), f"ended with {code}\n{output}\n{report}")

    def one(source, standard):
        program = build(suite, source, standard, folder)
        code, output, report = under_valgrind(suite, valgrind, program, *ARGUMENTS.get(source.stem, []))
        clean = code == 0 and counted(output) > 0 and re.search(r"ERROR SUMMARY: 0 errors", report)
        suite.check(source.name, clean, f"ended with {code}\n{output}\n{report}")

    suite.each([lambda s=source: one(s, "c11") for source in kit.c_sources()] +
               [lambda s=source: one(s, "c++17") for source in kit.cxx_sources()])
