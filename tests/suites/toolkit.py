"""CUDA's toolkit out of wheels from PyPI: nvcc with its headers and runtime, and CCCL. cuBLAS and cuFFT, whose wheels have hundreds of MB, are
stood in for by a few lines, which compile and link and compute nothing."""

import os
import shutil
import subprocess
import sys

import kit

sys.path.insert(0, str(kit.ROOT / "kernels"))
import build  # noqa: E402

# CUDA: CCCL of that release. Those of 12.9 and 13.0 spell resources otherwise than later ones.
CCCL = {
    "12.9": "nvidia-cuda-cccl-cu12==12.9.27",
    "13.0": "nvidia-cuda-cccl==13.0.85",
    "13.3": "nvidia-cuda-cccl==13.3.3.3.1",
}
STAND_INS = kit.ROOT / "tests_c/stand_in"
LIBRARIES = {"cublas": "int cublasSgemm_v2(void) { return 1; }\n", "cufft": "int cufftExecC2C(void) { return 1; }\n"}


def wheels(name, projects):
    """The folder that they were unpacked into; fetched once."""
    try:
        return build.install(name, projects)
    except (OSError, subprocess.SubprocessError) as error:
        raise kit.Missing(f"{', '.join(projects)} is needed and could not be fetched ({error})") from error


def compiler():
    """The folder that nvcc's bin, include and lib are in."""
    return build.tool(wheels("compiler", build.COMPILER), "nvcc").parents[1]


def cccl(version):
    """The folder with the headers of a release."""
    return next(wheels(f"cccl-{version}", [CCCL[version]]).glob("nvidia/*/include/**/cuda/version")).parents[1]


def whole(folder):
    """All of it in one place, laid out as an installed toolkit, for CMake to find: nvcc's path."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(compiler(), folder, copy_function=os.link)
    shutil.copytree(cccl("13.3"), folder / "include/cccl", copy_function=os.link)
    for name in ("cublas_v2.h", "cufft.h"):
        shutil.copy(STAND_INS / name, folder / "include")
    (folder / "lib64").symlink_to("lib")
    for library in folder.glob("lib/libcudart.so.*"):
        (folder / "lib/libcudart.so").symlink_to(library.name)
    for name, text in LIBRARIES.items():
        source = folder / f"{name}.c"
        source.write_text(text)
        code, output = kit.run([*kit.CC, "-shared", "-fPIC", f"-Wl,-soname,lib{name}.so.13", source, "-o", folder / f"lib/lib{name}.so.13"])
        if code != 0:
            raise kit.Missing(f"the stand-in of {name} cannot be compiled\n{output}")
        (folder / f"lib/lib{name}.so").symlink_to(f"lib{name}.so.13")
    return folder / "bin/nvcc"
