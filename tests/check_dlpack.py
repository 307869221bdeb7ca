#!/usr/bin/env python3
"""Compares tcuda's tensor structs with the real dlpack.h, fetched from PyPI (the wheel of apache-tvm-ffi brings it) into build/tools."""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "suites"))
import kit  # noqa: E402
import need  # noqa: E402

PROJECT = "apache-tvm-ffi"
HEADER = "tvm_ffi/include/dlpack/dlpack.h"


def main():
    header = need.TOOLS / PROJECT / HEADER
    if not header.exists():
        need.from_pypi(PROJECT, HEADER)
    if not header.exists():
        sys.exit(f"the wheel of {PROJECT} no longer has {HEADER}")
    for standard in ("c11", "c++17"):
        command = [*kit.compiler(standard), *kit.STRICT, f"-I{header.parents[1]}", "-fsyntax-only", kit.ROOT / "tests_c/dlpack_layout.c"]
        subprocess.run([str(part) for part in command], check=True)
    text = header.read_text()
    version = ".".join(re.search(rf"#define DLPACK_{part}_VERSION (\d+)", text).group(1) for part in ("MAJOR", "MINOR"))
    print(f"the structs are those of DLPack {version}")


if __name__ == "__main__":
    main()
