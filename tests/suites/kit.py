"""What the suites share: running programs, counting checks, compiling C."""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from need import Missing, need  # noqa: E402,F401  (suites take them from here)

BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve()
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
LIB = BUILD / "lib"
# What is compiled at run time: begun anew by each tests/run.py.
KERNELS = BUILD / "tests/kernels"
# Libraries of the dev profile go here: cargo keeps one of a profile in a place, and the tests would be built again. They run for seconds, so they
# are built as fast as can be.
DEV = TARGET / "dev"
DEV_PROFILE = {"CARGO_PROFILE_DEV_OPT_LEVEL": "0", "CARGO_PROFILE_DEV_DEBUG": "0"}
CARGO = os.environ.get("CARGO", "cargo")
CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
INCLUDE = [f"-I{ROOT}/include", f"-I{ROOT}/tests_c"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L", *INCLUDE]
# What `rustc --print native-static-libs` says, from its one home.
SYSTEM_LIBS = ["-l" + name for name in
               re.search(r"set\(TCUDA_SYSTEM_LIBS ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text()).group(1).split()]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
ABI = ".".join(VERSION.split(".")[:2]) if VERSION.startswith("0.") else VERSION.split(".")[0]


class Suite:
    """Counts checks; a failed one is printed at once, with what it has to say."""

    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.failed = 0
        self.unable = 0

    def check(self, what, holds, detail=""):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {self.name}: {what}" + (f"\n{indent(detail)}" if detail else ""), flush=True)
        return bool(holds)

    def absent(self, what):
        """A check that this machine cannot make, with the reason; it is said and counted, and is not passed."""
        self.unable += 1
        print(f"absent {self.name}: {what}", flush=True)

    def runs(self, what, command, **options):
        """One check: the command ends with 0. Returns its output, or None."""
        code, output = run(command, **options)
        return output if self.check(what, code == 0, f"{show(command)}\nended with {code}\n{output}") else None

    def each(self, jobs):
        """Runs functions side by side, one a processor."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for future in [pool.submit(job) for job in jobs]:
                future.result()


def indent(text):
    lines = str(text).rstrip().splitlines()
    if len(lines) > 60:
        # What failed first explains the rest.
        failed = [at for at in range(20, len(lines) - 40) if "panicked at" in lines[at]][:6]
        first = sorted({at for start in failed for at in range(start, min(start + 4, len(lines) - 40))})
        cut = f"... of {len(lines)} lines ..."
        lines = lines[:20] + [cut] + [lines[at] for at in first] + [cut] * bool(first) + lines[-40:]
    return "\n".join("    " + line for line in lines)


def show(command):
    return " ".join(shlex.quote(str(part)) for part in command)


def environment(**more):
    """The environment of a test: the simulated device, and nothing of the caller's that would change it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TCUDA_", "CUDA_"))}
    env["TCUDA_BACKEND"] = "sim"
    # A function is compiled once for all suites.
    env["TCUDA_JIT_CACHE_PATH"] = str(KERNELS)
    env.update({name: str(value) for name, value in more.items()})
    return env


def run(command, env=None, cwd=ROOT, timeout=300):
    """(exit code, output and errors together)."""
    try:
        answer = subprocess.run([str(part) for part in command], env=env or environment(), cwd=cwd, timeout=timeout,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return answer.returncode, answer.stdout
    except subprocess.TimeoutExpired as late:
        return 124, f"not done after {timeout} s\n{(late.stdout or b'').decode(errors='replace')}"
    except OSError as error:
        return 127, str(error)


def c_sources():
    return sorted((ROOT / "tests_c").glob("test_*.c"))


def cxx_sources():
    return sorted((ROOT / "tests_c").glob("test_*.cpp"))


def compiler(standard):
    """The compiler for a standard such as c99 or c++17; a .c file is compiled as C++ too."""
    return [*CXX, "-x", "c++", f"-std={standard}"] if "+" in standard else [*CC, "-x", "c", f"-std={standard}"]


def shared_link(folder=LIB):
    return ["-x", "none", f"-L{folder}", "-ltcuda", f"-Wl,-rpath,{folder}", "-pthread"]


def static_link():
    return ["-x", "none", LIB / "libtcuda.a", *SYSTEM_LIBS]


def rust_test(name):
    """The executable of a Rust test, built if need be."""
    command = [CARGO, "test", "--locked", "--no-run", "--test", name, "--message-format=json"]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    messages = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == name)


def planted_order(folder):
    """A shared library that gives memory to other streams too early (the feature `planted-order`): (exit code, output)."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [CARGO, "rustc", "--locked", "--lib", "--crate-type", "cdylib", "--features", "planted-order", "--target-dir", DEV]
    code, output = run(command, env=dict(os.environ, **DEV_PROFILE), timeout=900)
    if code == 0:
        code, output = run(["strip", "--strip-all", "-o", folder / f"libtcuda.so.{ABI}", DEV / "debug/libtcuda.so"])
    return code, output
