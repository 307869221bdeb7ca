"""What tcuda generates for run-time compiled functions, compiled by the NVRTC of several CUDA versions, for old and new devices. No GPU
is needed for that; the compilers come as wheels from PyPI."""

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


def run(suite):
    libraries = {version: library(version, wheel) for version, wheel in COMPILERS.items()}
    suite.each([lambda which=which: one(suite, *which) for which in libraries.items()])
