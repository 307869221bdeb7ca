#!/usr/bin/env python3
"""Compiles kernels/*.cu to the PTX that the library embeds: kernels/ptx/<family>.<architecture>.ptx.zst and kernels/ptx/digests.

    kernels/build.py                 compile and write (the files are committed: cargo needs no CUDA toolkit)
    kernels/build.py --check         compile and compare with what is committed
    kernels/build.py --check-ptxas   assemble what is committed, with ptxas of CUDA 11.8 and of the newest

nvcc and ptxas come as wheels from PyPI, into build/tools/cuda. The PTX is for compute_75, the oldest that today's nvcc knows, so every
device from Turing on takes it; families that gain by Ampere's conversions (two halves at once) are there for compute_80 too. nvcc writes the newest `.version`, which older drivers refuse; the code needs nothing newer than 7.0
(CUDA 11.0), and `--check-ptxas` proves it.
"""

import argparse
import pathlib
import re
import subprocess
import sys

KERNELS = pathlib.Path(__file__).resolve().parent
PTX = KERNELS / "ptx"
sys.path.insert(0, str(KERNELS.parent / "tools"))
import need  # noqa: E402

TOOLS = need.TOOLS / "cuda"

COMPILER = ["nvidia-cuda-nvcc==13.3.73", "nvidia-nvvm==13.3.73", "nvidia-cuda-crt==13.3.73", "nvidia-cuda-runtime==13.3.29"]
FLAGS = ["-std=c++17", "-O3", "-ptx"]
PTX_VERSION = "7.0"
BASE = 75
ENTRY = ".visible .entry "
# A register or a label.
NUMBERED = re.compile(r"([%$][A-Za-z_]+)(-?[0-9]+)")
# Families with code of their own for compute_80.
AMPERE = {"random_normal", "random_transform", "random_uniform"}

# ptxas, and the architectures that it knows.
ASSEMBLERS = {
    "cuda-11.8": (["nvidia-cuda-nvcc-cu11==11.8.89"], ["sm_75", "sm_80", "sm_86", "sm_90"]),
    "newest": (["nvidia-cuda-nvcc"], ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]),
}


@need.one_at_a_time
def install(name, wheels):
    """The folder with the wheels' files; fetched once for each list of wheels."""
    folder = TOOLS / name
    done = folder / "wheels"
    if not done.exists() or done.read_text() != "\n".join(wheels):
        options = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps", "--upgrade"]
        subprocess.run([*need.pip(), "install", *options, "--target", str(folder), *wheels], check=True)
        done.write_text("\n".join(wheels))
    return folder


def tool(folder, name):
    found = sorted(folder.glob(f"nvidia/*/bin/{name}"))
    if not found:
        sys.exit(f"{name} is not in {folder}: remove the folder to fetch it anew")
    return found[0]


def zstandard():
    sys.path.insert(0, str(install("zstandard", ["zstandard==0.25.0"])))
    import zstandard

    return zstandard


def renumber(ptx, absolute):
    """With the numbers of registers and labels as distances from the last of that name that came first in a line, or, `absolute`, as they
    were. Each part between two entries is by itself. `absolute` of src/runtime/kernels/image.rs is the way back."""
    parts = []
    for part in ptx.split(ENTRY):
        last, lines = {}, []
        for line in part.split("\n"):
            first = NUMBERED.search(line)

            def one(match):
                name, number = match[1], int(match[2])
                before = last.get(name, 0)
                if match.start() == first.start():
                    last[name] = before + number if absolute else number
                return f"{name}{before + number if absolute else number - before}"

            lines.append(NUMBERED.sub(one, line))
        parts.append("\n".join(lines))
    return ENTRY.join(parts)


def pack(ptx):
    """Kernels of a family repeat each other over long distances, which zlib does not see. Where all registers have numbers of their own zstd
    does not see it either: with distances less than half the bytes remain."""
    distances = renumber(ptx.decode(), absolute=False)
    assert renumber(distances, absolute=True).encode() == ptx
    library = zstandard()
    parameters = library.ZstdCompressionParameters.from_level(22, window_log=23)
    return library.ZstdCompressor(compression_params=parameters).compress(distances.encode())


def unpack(packed):
    return renumber(zstandard().ZstdDecompressor().decompress(packed).decode(), absolute=True).encode()


def fnv(data):
    """FNV-1a of 64 bits: a few lines in Rust too, where a test compares."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def families():
    return sorted(KERNELS.glob("*.cu"))


def included(path, found):
    """The file and what it includes of ours, each once, in order."""
    if path not in found:
        found.append(path)
        for name in re.findall(r'(?m)^#include "(.*)"$', path.read_text()):
            included((path.parent / name).resolve(), found)
    return found


def recipe():
    """The lines above that decide the PTX, the compiler and its flags, as they stand there."""
    lines = pathlib.Path(__file__).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith(("COMPILER = ", "FLAGS = ", "PTX_VERSION = ")))


def source_of(family):
    """All that decides the PTX, but for the architecture, which is in its name."""
    return recipe().encode() + b"".join(path.read_bytes() for path in included(family, []))


def images():
    """(family, architecture) of each file of PTX."""
    return [(family, arch) for family in families() for arch in ([BASE, 80] if family.stem in AMPERE else [BASE])]


def image_name(family, arch):
    return f"{family.stem}.{arch}"


def compile_image(family, arch):
    nvcc = tool(install("compiler", COMPILER), "nvcc")
    raw = TOOLS / f"{image_name(family, arch)}.ptx"
    subprocess.run([str(nvcc), *FLAGS, f"-arch=compute_{arch}", "-o", str(raw), family.name], check=True, cwd=KERNELS)
    text, count = re.subn(r"(?m)^\.version .*$", f".version {PTX_VERSION}", raw.read_text())
    assert count == 1, f"{family.name}: {count} lines with .version"
    # Comments name the compiler's build; indentation is only weight.
    lines = (re.sub(r"//.*", "", line).strip() for line in text.splitlines())
    # Kernels repeat each other but for their number in the labels, which are each one's own as long as there is no function but kernels.
    lines = (re.sub(r"\$L__BB[0-9]+_", "$L", line) for line in lines)
    return "".join(line + "\n" for line in lines if line).encode()


def compile_all():
    return {image_name(*image): compile_image(*image) for image in images()}


def digests():
    def line(family, arch):
        name = image_name(family, arch)
        packed = (PTX / f"{name}.ptx.zst").read_bytes()
        return f"{name} {fnv(source_of(family)):016x} {fnv(packed):016x} {fnv(unpack(packed)):016x}"

    lines = [line(*image) for image in images()]
    return "# family and architecture, digest of compiler, flags and source, digests of its .ptx.zst, where numbers are distances, and of the PTX that it becomes; kernels/build.py writes this\n" + "\n".join(lines) + "\n"


def write():
    PTX.mkdir(exist_ok=True)
    for name, ptx in compile_all().items():
        packed = pack(ptx)
        (PTX / f"{name}.ptx.zst").write_bytes(packed)
        print(f"{name}: {len(ptx)} bytes of PTX, {len(packed)} compressed")
    (PTX / "digests").write_text(digests())


def committed():
    names = [image_name(*image) for image in images()]
    missing = [name for name in names if not (PTX / f"{name}.ptx.zst").exists()]
    if missing:
        sys.exit(f"kernels/ptx lacks {', '.join(missing)}: run kernels/build.py")
    return {name: unpack((PTX / f"{name}.ptx.zst").read_bytes()) for name in names}


def check():
    ours = committed()
    stale = [name for name, ptx in compile_all().items() if ptx != ours[name]]
    if (PTX / "digests").read_text() != digests():
        stale.append("digests")
    extra = {path.name for path in PTX.iterdir()} - {f"{name}.ptx.zst" for name in ours} - {"digests"}
    if stale or extra:
        sys.exit(f"kernels/ptx is out of date ({', '.join([*stale, *sorted(extra)])}): run kernels/build.py")
    print(f"kernels/ptx is up to date: {len(ours)} images")


def taken(architecture):
    """The images that a device of this architecture takes: of each family the newest that it can."""
    number = int(architecture.removeprefix("sm_"))
    newest = {family: arch for family, arch in images() if arch <= number}
    return [image_name(*image) for image in newest.items()]


def check_ptxas():
    count = 0
    ours = committed()
    for assembler, (wheels, architectures) in ASSEMBLERS.items():
        ptxas = tool(install(assembler, wheels), "ptxas")
        for architecture, name in ((a, name) for a in architectures for name in taken(a)):
            path = TOOLS / f"{name}.committed.ptx"
            path.write_bytes(ours[name])
            subprocess.run([str(ptxas), f"-arch={architecture}", str(path), "-o", str(TOOLS / "out.cubin")], check=True)
            count += 1
        version = subprocess.run([str(ptxas), "--version"], capture_output=True, text=True, check=True).stdout
        print(f"{assembler}: {re.search(r'release .*', version).group(0)} takes it for {', '.join(architectures)}")
    print(f"{count} assembled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is committed")
    parser.add_argument("--check-ptxas", action="store_true", help="assemble what is committed")
    options = parser.parse_args()
    if options.check:
        check()
    if options.check_ptxas:
        check_ptxas()
    if not options.check and not options.check_ptxas:
        write()


if __name__ == "__main__":
    main()
