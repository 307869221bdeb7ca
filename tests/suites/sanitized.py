"""Builds the library and the C tests with a sanitizer and runs them. Not a suite: `address` and `thread` are.

The stable toolchain brings the sanitizers' runtimes for Rust; the C part is compiled by the system's compiler and linked with the same
runtime, so that there is one. Bugs planted in tests_c/planted.c prove that the sanitizer watches both sides.
"""

import os
import pathlib
import re
import shutil

import kit
from c import counted


def host():
    _, output = kit.run(["rustc", "-vV"])
    return re.search(r"host: (\S+)", output).group(1)


def runtime_of(sanitizer, triple):
    """The sanitizer's runtime that comes with the Rust toolchain."""
    _, sysroot = kit.run(["rustc", "--print", "sysroot"])
    folder = pathlib.Path(sysroot.strip(), "lib/rustlib", triple, "lib")
    short = {"address": "asan", "thread": "tsan"}[sanitizer]
    found = sorted(folder.glob(f"librustc*_rt.{short}.a"))
    if not found:
        raise kit.Missing(f"{folder} has no librustc*_rt.{short}.a. The toolchains of rustup bring it; install one and run again.")
    return found[0]


def build_library(suite, sanitizer, triple):
    """The static library with the sanitizer in it, or None."""
    flags = f"-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer -Copt-level=1 -Cforce-frame-pointers=yes"
    # The sanitizers are the compiler's own but not yet behind a stable flag.
    env = dict(os.environ, RUSTC_BOOTSTRAP="1", RUSTFLAGS=flags)
    target = kit.TARGET / sanitizer
    # --target keeps the flags away from build scripts.
    note = target / "static-libs.txt"
    if not note.exists():  # rustc writes it only when it compiles
        shutil.rmtree(target, ignore_errors=True)
    command = [kit.CARGO, "rustc", "--locked", "--lib", "--crate-type", "staticlib", "--target", triple, "--target-dir", target, "--",
               f"--print=native-static-libs={note}"]
    if suite.runs(f"build the library with -Zsanitizer={sanitizer}", command, env=env, timeout=900) is None:
        return None
    # A static library is built for this anyhow, so it is here that rustc is asked what every one of them needs.
    needs = note.read_text().split() if note.exists() else []
    suite.check("TCUDA_SYSTEM_LIBS in CMakeLists.txt is what rustc says", needs == kit.SYSTEM_LIBS, f"{needs}, {kit.SYSTEM_LIBS}")
    return target / triple / "debug/libtcuda.a"


def shared(suite, library, folder):
    """A shared library of the static one: each program would take two seconds to link with that. The runtime is the program's."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "libtcuda.so"
    command = [*kit.CC, "-shared", "-o", made, "-Wl,--whole-archive", library, "-Wl,--no-whole-archive", *kit.SYSTEM_LIBS]
    return made if suite.runs("link it as a shared library", command) is not None else None


def compile_with(flags, standard, source, library, runtime, program):
    link = ["-x", "none", library, f"-Wl,-rpath,{library.parent}", "-Wl,--whole-archive", runtime, "-Wl,--no-whole-archive", "-Wl,--export-dynamic",
            *kit.SYSTEM_LIBS]
    made = program.with_suffix(".o")
    # The generated program is held to less: it passes what no program should.
    warnings = kit.STRICT if source.parent.name == "tests_c" else kit.INCLUDE
    code, output = kit.run([*kit.compiler(standard), *warnings, "-O1", "-g", "-fno-omit-frame-pointer", *flags, "-c", source, "-o", made])
    if code == 0:
        driver = kit.CXX if "+" in standard else kit.CC
        code, output = kit.run([*driver, made, *link, "-o", program])
    return code, output


def run(suite, sanitizer, flags, env, planted):
    """Gives a function that compiles a source with the sanitizer, or None when the library could not be built."""
    triple = host()
    folder = kit.BUILD / "tests" / sanitizer
    archive, runtime = build_library(suite, sanitizer, triple), runtime_of(sanitizer, triple)
    library = archive and shared(suite, archive, folder)
    if library is None:
        return None

    program = folder / "planted"
    code, output = compile_with(flags, "c11", kit.ROOT / "tests_c/planted.c", library, runtime, program)
    suite.check("compile the planted bugs", code == 0, output)
    for letter, words in planted.items():
        code, output = kit.run([program, letter], env=env)
        if words:
            suite.check(f"finds the planted bug '{letter}'", code != 0 and re.search(words, output), f"ended with {code}\n{output}")
        else:
            suite.check("is content without a bug", code == 0 and "WARNING" not in output and "ERROR" not in output, output)

    def one(source, standard):
        program = folder / source.stem
        code, output = compile_with(flags, standard, source, library, runtime, program)
        if code == 0:
            code, output = kit.run([program], env=env, timeout=600)
        suite.check(source.name, code == 0 and counted(output) > 0, f"ended with {code}\n{output}")

    suite.each([lambda s=source: one(s, "c11") for source in kit.c_sources()] +
               [lambda s=source: one(s, "c++17") for source in kit.cxx_sources()])
    return lambda source, program: compile_with(flags, "gnu11", source, library, runtime, program)
