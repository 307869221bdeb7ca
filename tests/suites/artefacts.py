"""The libraries as `make lib` leaves them: names, exports, needs, size, and that link-time optimisation was on."""

import os
import re

import kit


def run(suite):
    shared, static = kit.LIB / f"libtcuda.so.{kit.VERSION}", kit.LIB / "libtcuda.a"
    names(suite, shared)
    exports(suite, shared)
    optimisation(suite)
    unwinding(suite)
    static_library(suite, static)
    # Its value would have cargo put them elsewhere.
    _, output = kit.run(["make", "--no-print-directory", "--eval=asked: ; @echo \"[$$CARGO_BUILD_TARGET]\"", "asked"], env=dict(os.environ, CARGO_BUILD_TARGET="none"))
    suite.check("make builds for this machine", output == "[]\n", output)


def names(suite, shared):
    for link, to in ((f"libtcuda.so.{kit.ABI}", shared.name), ("libtcuda.so", f"libtcuda.so.{kit.ABI}")):
        suite.check(f"{link} points to {to}", (kit.LIB / link).is_symlink() and os.readlink(kit.LIB / link) == to)
    dynamic = suite.runs("readelf -d", ["readelf", "-d", "-W", shared]) or ""
    suite.check("SONAME", f"Library soname: [libtcuda.so.{kit.ABI}]" in dynamic, dynamic)
    suite.check("stays loaded (NODELETE)", re.search(r"FLAGS_1.*NODELETE", dynamic), dynamic)
    suite.check("binds at load (NOW)", re.search(r"FLAGS_1.*NOW", dynamic), dynamic)
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    allowed = re.compile(r"libc\.so\.6|ld-linux[-\w]*\.so\.\d+")
    suite.check("needs libc and its loader only", needed and all(allowed.fullmatch(name) for name in needed), needed)
    suite.check("no search path is built in", "RPATH" not in dynamic and "RUNPATH" not in dynamic, dynamic)
    size = shared.stat().st_size
    suite.check("under 4 MB", size < 4_000_000, f"{size} bytes")
    sections = suite.runs("readelf -S", ["readelf", "-S", "-W", shared]) or ""
    suite.check("stripped", ".symtab" not in sections and ".debug_info" not in sections and ".dynsym" in sections, sections)
    segments = suite.runs("readelf -l", ["readelf", "-l", "-W", shared]) or ""
    # All of it lies in the room for static storage, of which glibc has some 1.6 KiB for libraries that are opened late.
    storage = re.search(r"TLS +\S+ \S+ \S+ \S+ (\S+)", segments)
    suite.check("at most 960 bytes of storage for each thread", storage and int(storage[1], 16) <= 960, segments)
    suite.check("no stack that can be executed", re.search(r"GNU_STACK.*RW ", segments), segments)


def exports(suite, shared):
    listed = set((kit.ROOT / "tests/tcuda.symbols").read_text().split())
    output = suite.runs("nm -D", ["nm", "-D", "--defined-only", shared]) or ""
    exported = {line.split()[-1] for line in output.splitlines()}
    suite.check("exports nothing that is not listed", not exported - listed, sorted(exported - listed))
    suite.check("exports all that is listed", not listed - exported, sorted(listed - exported))


def files_of(path):
    """The names of the translation units that a library's symbol table mentions."""
    _, output = kit.run(["readelf", "-s", "-W", path])
    return {line.split()[-1] for line in output.splitlines() if re.search(r"\bFILE\b", line)}


def optimisation(suite):
    """With fat LTO all Rust code is one unit, named after the crate. compiler_builtins is never part of it."""
    units = {name for name in files_of(kit.TARGET / "release/libtcuda.so") if "-cgu." in name}
    others = {name for name in units if not name.startswith(("tcuda.", "compiler_builtins"))}
    suite.check("link-time optimisation was on", units and not others, sorted(others) or "no unit found")
    # The same look at a library without it must find other units, or the check above proves nothing.
    kit.rust_test("symbols")
    plain = {name for name in files_of(kit.TARGET / "debug/deps/libtcuda.so") if name.startswith(("std.", "core.", "alloc."))}
    suite.check("the look at units tells a library without link-time optimisation", plain)


def unwinding(suite):
    """A crate with our build.rs panics inside catch_unwind, below a C program: the unwinder linked in must find its way."""
    crate, target = kit.ROOT / "tests/unwind", kit.TARGET / "unwind"
    suite.runs("build a library that panics", [kit.CARGO, "build", "--locked", "--release", "--manifest-path", crate / "Cargo.toml",
                                                "--target-dir", target])
    program = kit.BUILD / "tests/unwind"
    program.parent.mkdir(parents=True, exist_ok=True)
    suite.runs("compile its caller", [*kit.CC, crate / "main.c", "-o", program, target / "release/libunwind_probe.so",
                                      f"-Wl,-rpath,{program.parent}"])
    link = program.parent / f"libtcuda.so.{kit.ABI}"
    link.unlink(missing_ok=True)
    link.symlink_to(target / "release/libunwind_probe.so")
    _, needed = kit.run(["readelf", "-d", target / "release/libunwind_probe.so"])
    suite.check("the unwinder is linked in", "NEEDED" in needed and "libgcc_s" not in needed, needed)
    output = suite.runs("a panic is caught below C", [program]) or ""
    suite.check("with its value, on two threads", output.endswith("caught 1000 panics, dropped 1000\n"), output)


def static_library(suite, static):
    output = suite.runs("nm of the static library", ["nm", "--defined-only", "-g", static]) or ""
    defined = {line.split()[-1] for line in output.splitlines() if " T " in line}
    listed = set((kit.ROOT / "tests/tcuda.symbols").read_text().split())
    suite.check("the static library defines all that is listed", listed and listed <= defined, sorted(listed - defined))
