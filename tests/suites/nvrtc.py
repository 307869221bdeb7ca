"""What tcuda generates for run-time compiled functions, compiled by the NVRTC of several CUDA versions, for old and new devices, and
tcuda/philox.cuh by these and by nvcc; tcuda/cccl.hpp over several releases of CCCL, by nvcc and by the host's compiler. No GPU is needed for
that; compilers and headers come as wheels from PyPI."""

import os
import re

import kit
import toolkit

COMPILERS = {
    "11.8": "nvidia-cuda-nvrtc-cu11==11.8.89",
    "12.9": "nvidia-cuda-nvrtc-cu12==12.9.86",
    "13.5": "nvidia-cuda-nvrtc==13.5.37",
}


def library(version, wheel):
    """The compiler's file; the wheel is fetched once."""
    folder = toolkit.wheels(f"nvrtc-{version}", [wheel])
    return next(path for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*")) if "alt" not in path.name)


def one(suite, version, library):
    # Everything for each device by each compiler takes minutes: `make test-long` has it so.
    effort = ["--", "all"] if os.environ.get("TCUDA_NVRTC_EFFORT") == "all" else []
    code, output = kit.run([kit.CARGO, "test", "--locked", "--test", "nvrtc", *effort], env=kit.environment(TCUDA_NVRTC_PATH=library), timeout=1800)
    suite.check(f"NVRTC {version} is the one that is used", f"NVRTC {version} " in output, output)
    counts = re.search(r"^nvrtc: (\d+) passed, (\d+) failed$", output, re.M)
    if suite.check(f"the tests of NVRTC {version} end", counts and (code == 0) == (counts[2] == "0"), output):
        suite.passed += int(counts[1])
        if effort:
            suite.check(f"NVRTC {version} had every case", int(counts[1]) > 600, output)
        for line in output.splitlines():
            if line.startswith("FAILED"):
                suite.check(f"{version}: {line}", False)


def nvcc(suite, source, what, standard, *include):
    """A program that includes tcuda's headers, both passes, with the warnings of the host's compiler."""
    folder = kit.BUILD / "tests/nvcc"
    folder.mkdir(parents=True, exist_ok=True)
    root = toolkit.compiler()
    command = [root / "bin/nvcc", f"-std={standard}", "-arch=sm_75", f"-I{root}/include", f"-I{kit.ROOT}/include", f"-I{toolkit.STAND_INS}",
               *include, "-Xcompiler=-Wall,-Wextra,-Werror", "-Werror=all-warnings", "-c", source, "-o", folder / f"{source.stem}.{what}.o"]
    suite.runs(f"nvcc compiles {source.name} as {standard}, {what}", command)


def cccl(suite, version, standard):
    """tcuda/cccl.hpp over a release of CCCL by the host's compiler; what needs no kernel runs on the simulated device."""
    folder = kit.BUILD / "tests/cccl"
    folder.mkdir(parents=True, exist_ok=True)
    program, root = folder / f"cccl.{version}.{standard}", toolkit.compiler()
    command = [*kit.CXX, f"-std={standard}", *kit.STRICT, "-isystem", toolkit.cccl(version), "-isystem", root / "include",
               kit.ROOT / "tests/data/cccl.cpp", *kit.shared_link(), root / "lib/libcudart_static.a", "-ldl", "-lrt", "-o", program]
    suite.runs(f"tcuda/cccl.hpp compiles over CCCL of CUDA {version} as {standard}", command)
    output = suite.runs(f"and works, {version} as {standard}", [program], env=kit.environment(TCUDA_SIM_DEVICES=2))
    suite.check(f"its checks, {version} as {standard}", output and re.search(r"^cccl.cpp: \d\d passed, 0 failed$", output, re.M), output)


def headers(suite):
    """Our headers for device code and for CCCL."""
    releases = {version: ("-isystem", toolkit.cccl(version)) for version in toolkit.CCCL}
    philox, spectrum = kit.ROOT / "tests/data/philox_program.cu", kit.ROOT / "examples_c/cuda/spectrum.cu"
    environment = kit.ROOT / "tests/data/cccl_environment.cu"
    # The newest CCCL is what the suite `install` builds the example with.
    suite.each([lambda: nvcc(suite, spectrum, "CCCL of 12.9", "c++17", *releases["12.9"]),
                lambda: nvcc(suite, environment, "CCCL of 13.3", "c++17", *releases["13.3"])]
               + [lambda s=standard: nvcc(suite, philox, s, s) for standard in ("c++14", "c++17", "c++20")]
               + [lambda v=version, s=standard: cccl(suite, v, s) for version in releases for standard in ("c++17", "c++20")])
    _, symbols = kit.run(["nm", kit.BUILD / "tests/nvcc/cccl_environment.CCCL of 13.3.o"])
    suite.check("CUB's temporary memory is tcuda's", "U tcuda_malloc_cached" in symbols and "cudaMalloc" not in symbols, symbols)


def fetch():
    """The compilers' files."""
    toolkit.compiler()
    for version in toolkit.CCCL:
        toolkit.cccl(version)
    return {version: library(version, wheel) for version, wheel in COMPILERS.items()}


def run(suite):
    libraries = fetch()
    headers(suite)
    suite.each([lambda which=which: one(suite, *which) for which in libraries.items()])
