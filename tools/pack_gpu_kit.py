#!/usr/bin/env python3
"""Packs target/gpu-kit: what proves the library on a machine with a GPU, with no Rust and no compiler there. `make gpu-kit` calls it.

The shared library as it ships, the conformance suite, the C and C++ tests (those named test_sim_* need the simulated device and stay
here), the examples (the demo is one) with their traces, and run.sh, which runs them all and prints a table. The sources of `make bench`
too, which are compiled there, against what that machine has. With --rmm (`make gpu-kit RMM=1`) RMM's headers and library from PyPI, for a
machine without network. `speed/jit` is what times compiled functions beside a copy,
`speed/communicators` ranks of several processes over NCCL,
`speed/comm_call.so` calls of collectives for benches/torch_comm.py.
"""

import pathlib
import re
import shutil
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/suites"))
import kit  # noqa: E402
import need  # noqa: E402

KIT = kit.TARGET / "gpu-kit"
MOST = 64 << 20
RMM = ("librmm-cu13==26.10.0", "rapids-logger==0.3.0")


def must(command):
    code, output = kit.run(command, timeout=1800)
    if code != 0:
        sys.exit(f"{kit.show(command)}\nended with {code}\n{output}")
    return output


def compile_into(folder, source, standard):
    program = KIT / folder / source.stem
    must([*kit.compiler(standard), "-O2", f"-I{kit.ROOT}/include", f"-I{kit.ROOT}/tests_c", source, "-x", "none", f"-L{kit.LIB}", "-ltcuda",
          "-Wl,-rpath,$ORIGIN/../lib", "-pthread", "-lm", "-s", "-o", program])


def carry_rmm():
    """Headers and libraries, which benches/run.py finds."""
    folder = KIT / "rmm"
    must([*need.pip(), "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "-d", folder, *RMM])
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if re.fullmatch(r"\w+/(include/.*|lib64/\w+\.so)", name)])
        wheel.unlink()
    libraries = [folder / "rapids_logger/lib64/librapids_logger.so", folder / "librmm/lib64/librmm.so"]
    load = "import ctypes, sys; [ctypes.CDLL(name, ctypes.RTLD_GLOBAL) for name in sys.argv[1:]]"
    must([sys.executable, "-c", load, *libraries])


def main():
    shutil.rmtree(KIT, ignore_errors=True)
    for folder in ("lib", "tests", "examples", "examples_c", "speed"):
        (KIT / folder).mkdir(parents=True)
    # Not links: a copy of the kit need not keep them.
    shutil.copy(kit.LIB / f"libtcuda.so.{kit.VERSION}", KIT / "lib" / f"libtcuda.so.{kit.ABI}")
    for source, standard in [(s, "c11") for s in kit.c_sources()] + [(s, "c++17") for s in kit.cxx_sources()]:
        if not source.name.startswith("test_sim_"):
            compile_into("tests", source, standard)
    compile_into("tests", kit.ROOT / "tests_c/plugin_load.c", "gnu11")
    must([*kit.compiler("gnu11"), "-O2", "-fPIC", "-shared", kit.ROOT / "tests_c/plugin_arena.c", "-s", "-o", KIT / "lib/libarena.so"])
    for source in ("jit", "communicators", "watch", "many"):
        compile_into("speed", kit.ROOT / f"benches/{source}.c", "gnu11")
    must([*kit.compiler("gnu11"), "-O2", "-fPIC", "-shared", kit.ROOT / "benches/comm_call.c", "-s", "-o", KIT / "speed/comm_call.so"])
    must(["strip", "-o", KIT / "tests/conformance", kit.rust_test("conformance")])
    code, output = kit.planted_order(KIT / "planted")
    if code != 0:
        sys.exit(output)
    for source in sorted((kit.ROOT / "examples_c").glob("*.c*")):
        compile_into("examples", source, "c++17" if source.suffix == ".cpp" else "c11")
    for folder in ("benches", "include", "examples_c/cuda", "examples_c/data", "examples_c/python"):
        shutil.copytree(kit.ROOT / folder, KIT / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for source in ("examples_c/trace.h", "tools/pack_trace.py"):
        (KIT / source).parent.mkdir(exist_ok=True)
        shutil.copy(kit.ROOT / source, KIT / source)
    shutil.copy(kit.ROOT / "tools/run_gpu_kit.sh", KIT / "run.sh")
    shutil.copy(kit.ROOT / "tools/run_order.sh", KIT / "order.sh")
    shutil.copy(kit.ROOT / "tools/planted_order.sh", KIT / "tests/planted_order")
    (KIT / "tests/planted_order").chmod(0o755)
    shutil.copy(kit.ROOT / "tests_c/torch_allocator.cpp", KIT / "planted")
    if "--rmm" in sys.argv[1:]:
        carry_rmm()
    size = sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file())
    if size > MOST:
        sys.exit(f"{KIT} has {size} bytes; {MOST} is the most")
    print(f"{KIT}: {size >> 10} KiB. On the machine with the GPU: sh run.sh, sh run.sh --sanitize, or sh run.sh bench")


if __name__ == "__main__":
    main()
