#!/usr/bin/env python3
"""Packs target/battery: dieharder with its libraries and a program that writes tcuda's random words, for a machine with a GPU and neither
network nor compiler. `make battery` calls it; there `python3 battery.py` runs every test, one a processor, and prints a table."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/suites"))
import kit  # noqa: E402
import need  # noqa: E402

FOLDER = kit.TARGET / "battery"


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "lib").mkdir(parents=True)
    shutil.copy(kit.LIB / f"libtcuda.so.{kit.VERSION}", FOLDER / "lib" / f"libtcuda.so.{kit.ABI}")
    source = kit.ROOT / "tests_c/random_words.c"
    code, output = kit.run([*kit.compiler("c99"), *kit.STRICT, "-O2", source, "-x", "none", f"-L{kit.LIB}", "-ltcuda", "-Wl,-rpath,$ORIGIN/lib", "-s",
                            "-o", FOLDER / "random_words"])
    if code != 0:
        sys.exit(output)
    tool = need.TOOLS / "dieharder/run"
    try:
        # One that the system has would leave its libraries behind.
        tool = tool if tool.exists() else need.from_debian("dieharder")
    except need.Missing as error:
        sys.exit(f"dieharder: {error}")
    for folder in ("lib", "usr/bin"):
        shutil.copytree(tool.parent / folder, FOLDER / "dieharder" / folder)
    shutil.copy(tool, FOLDER / "dieharder")
    shutil.copy(kit.ROOT / "tools/battery.py", FOLDER)
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{FOLDER}: {size >> 10} KiB. On the machine with the GPU: python3 battery.py")


if __name__ == "__main__":
    main()
