"""What tcuda generates for run-time compiled functions, compiled by the NVRTC of several CUDA versions, for old and new devices, and
tcuda/philox.cuh by these and by nvcc. No GPU is needed for that; the compilers come as wheels from PyPI."""

import re
import subprocess
import sys

import kit

sys.path.insert(0, str(kit.ROOT / "kernels"))
import build  # noqa: E402

COMPILERS = {
    "11.8": "nvidia-cuda-nvrtc-cu11==11.8.89",
    "12.9": "nvidia-cuda-nvrtc-cu12==12.9.86",
    "13.5": "nvidia-cuda-nvrtc==13.5.37",
}


def library(version, wheel):
    """The compiler's file; the wheel is fetched once."""
    try:
        folder = build.install(f"nvrtc-{version}", [wheel])
    except (OSError, subprocess.SubprocessError) as error:
        raise kit.Missing(f"{wheel} is needed and could not be fetched ({error})") from error
    return next(path for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*")) if "alt" not in path.name)


def one(suite, version, library):
    code, output = kit.run([kit.CARGO, "test", "--locked", "--test", "nvrtc"], env=kit.environment(TCUDA_NVRTC_PATH=library), timeout=1800)
    suite.check(f"NVRTC {version} is the one that is used", f"NVRTC {version} " in output, output)
    counts = re.search(r"^nvrtc: (\d+) passed, (\d+) failed$", output, re.M)
    if suite.check(f"the tests of NVRTC {version} end", counts and (code == 0) == (counts[2] == "0"), output):
        suite.passed += int(counts[1])
        for line in output.splitlines():
            if line.startswith("FAILED"):
                suite.check(f"{version}: {line}", False)


def nvcc(suite):
    """A program that includes tcuda.h and tcuda/philox.cuh, both passes, with the warnings of the host's compiler."""
    try:
        folder = build.install("compiler", build.COMPILER)
    except (OSError, subprocess.SubprocessError) as error:
        raise kit.Missing(f"nvcc is needed and could not be fetched ({error})") from error
    out = kit.BUILD / "tests/nvcc"
    out.mkdir(parents=True, exist_ok=True)
    headers = next(folder.glob("nvidia/*/include/cuda_runtime.h")).parent
    for standard in ("c++14", "c++17", "c++20"):
        command = [build.tool(folder, "nvcc"), f"-std={standard}", "-arch=sm_75", f"-I{headers}", f"-I{kit.ROOT}/include", "-Xcompiler=-Wall,-Wextra,-Werror",
                   "-Werror=all-warnings", "-c", kit.ROOT / "tests/data/philox_program.cu", "-o", out / f"philox.{standard}.o"]
        suite.runs(f"nvcc compiles tcuda/philox.cuh as {standard}", command)


def run(suite):
    nvcc(suite)
    libraries = {version: library(version, wheel) for version, wheel in COMPILERS.items()}
    suite.each([lambda which=which: one(suite, *which) for which in libraries.items()])
