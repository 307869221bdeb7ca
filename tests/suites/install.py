"""Installs the library, moves the tree to a path with a space, and builds programs against it in every way that there is."""

import os
import re
import shutil

import kit
import toolkit

FOLDER = kit.BUILD / "tests/install"
MOVED = FOLDER / "moved elsewhere"
PROJECT = kit.ROOT / "tests_c/install"
# Share what `make lib` built: cargo sees that nothing changed.
CARGO_DIR = f"-DTCUDA_CARGO_TARGET_DIR={kit.TARGET}"
PREFIX = "/opt/tcuda-test"
DOC = "share/doc/tcuda"


class Tools:
    def __init__(self):
        self.cmake, self.ninja, self.pkg_config = kit.need("cmake"), kit.need("ninja"), kit.need("pkg-config")

    def configure(self, source, build, *options, generator="Ninja"):
        return [self.cmake, "-S", source, "-B", build, "-G", generator, f"-DCMAKE_MAKE_PROGRAM={self.make(generator)}", *options]

    def make(self, generator):
        return "make" if "Make" in generator else self.ninja


def fetch():
    return Tools()


def run(suite):
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    tools = fetch()
    if not install(suite, tools):
        return
    moved_tree(suite)
    suite.each([lambda: cuda_program(suite, tools), lambda: packages(suite, tools), lambda: pkg_config(suite, tools)])
    subprojects(suite, tools)


def install(suite, tools):
    tree = FOLDER / "tree"
    release = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_INSTALL_PREFIX={PREFIX}", "-DCMAKE_INSTALL_LIBDIR=lib", CARGO_DIR]
    if suite.runs("configure", tools.configure(kit.ROOT, tree, *release)) is None:
        return False
    if suite.runs("build", [tools.cmake, "--build", tree], timeout=900) is None:
        return False
    for part, options in (("all", []), ("runtime", ["--component", "runtime"]), ("devel", ["--component", "devel"])):
        env = kit.environment(DESTDIR=FOLDER / f"dest {part}")
        suite.runs(f"install into DESTDIR ({part})", [tools.cmake, "--install", tree, *options], env=env)
    suite.check("nothing was written outside DESTDIR", not os.path.exists(PREFIX))

    names = {part: files(FOLDER / f"dest {part}{PREFIX}") for part in ("all", "runtime", "devel")}
    runtime = {name for name in names["all"] if re.search(r"\.so\.|/LICENSE-", name)}
    suite.check("component runtime is the shared library and the licences", names["runtime"] == runtime, sorted(names["runtime"]))
    suite.check("components make the whole", names["runtime"] | names["devel"] == names["all"], names)
    (FOLDER / f"dest all{PREFIX}").rename(MOVED)
    return True


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def moved_tree(suite):
    found = files(MOVED)
    wanted = {"include/tcuda.h", "include/tcuda.hpp", "include/tcuda/cccl.hpp", "include/tcuda/philox.cuh", "lib/libtcuda.a", "lib/libtcuda.so",
              f"lib/libtcuda.so.{kit.ABI}", f"lib/libtcuda.so.{kit.VERSION}", "lib/pkgconfig/tcuda.pc", "lib/cmake/tcuda/tcuda-config.cmake",
              "lib/cmake/tcuda/tcuda-config-version.cmake"}
    wanted |= {f"{DOC}/{name}" for name in ("LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md")}
    wanted |= {f"{DOC}/docs/{path.name}" for path in (kit.ROOT / "docs").iterdir()}
    suite.check("the tree holds what it should", found == wanted, sorted(found ^ wanted))
    for name in sorted(found):
        if name.endswith((".cmake", ".pc", ".h", ".hpp", ".cuh")):
            text = (MOVED / name).read_text()
            absolute = [place for place in (PREFIX, str(kit.ROOT), str(kit.TARGET)) if place in text]
            suite.check(f"{name} names no absolute place", not absolute, absolute)
    named = {page for name in found if name.startswith("include/") for page in re.findall(r"docs/\w+\.md", (MOVED / name).read_text())}
    lacking = [page for page in sorted(named) if f"{DOC}/{page}" not in found]
    suite.check("the pages that the installed headers name are there", named and not lacking, lacking)


def runs_well(suite, what, program, env=None):
    output = suite.runs(f"{what} runs", [program], env=env) or ""
    suite.check(f"{what} says so", re.fullmatch(r"consumer: sim, \d+ devices\n", output), output)


def packages(suite, tools):
    prefix = f"-DCMAKE_PREFIX_PATH={MOVED}"
    for language, generator in (("C", "Ninja"), ("CXX", "Ninja"), ("C", "Unix Makefiles")):
        build = FOLDER / f"find {language} {generator}"
        options = [f"-DLANGUAGE={language}", "-DWAY=find_package", f"-DWANTED={kit.VERSION}", prefix]
        what = f"find_package in {language} with {generator}"
        suite.runs(f"{what}: configure", tools.configure(PROJECT, build, *options, generator=generator))
        suite.runs(f"{what}: build", [tools.cmake, "--build", build])
        for program in ("with_shared", "with_static"):
            runs_well(suite, f"{what}, {program}", build / program)
        _, needed = kit.run(["readelf", "-d", build / "with_shared"])
        suite.check(f"{what}: needs the library by its SONAME", f"[libtcuda.so.{kit.ABI}]" in needed, needed)
        _, needed = kit.run(["readelf", "-d", build / "with_static"])
        suite.check(f"{what}: the static one does not need it", "NEEDED" in needed and "libtcuda" not in needed, needed)

    parts(suite, tools)
    major, minor, _ = (int(part) for part in kit.VERSION.split("."))
    accepted = [f"{major}.{minor}", f"{major}.{minor}...<{major}.{minor + 1}"]
    refused = [f"{major}.{minor + 1}", f"{major + 1}.0", f"{kit.VERSION[:-1]}999"] + ([f"{major}.{minor - 1}"] if minor and not major else [])
    for wanted in accepted + refused:
        build = FOLDER / f"version {wanted}"
        code, output = kit.run(tools.configure(PROJECT, build, "-DLANGUAGE=C", "-DWAY=find_package", f"-DWANTED={wanted}", prefix))
        if wanted in accepted:
            suite.check(f"version {wanted} is accepted", code == 0, output)
        else:
            right = code != 0 and re.search(r"compatible\s+with\s+requested", output) and f"version: {kit.VERSION}" in output
            suite.check(f"version {wanted} is refused", right, output)


def parts(suite, tools):
    """The component devel alone has the static library: who does not ask for that finds nothing, and is told why."""
    prefix = f"-DCMAKE_PREFIX_PATH={FOLDER}/dest devel{PREFIX}"
    for name, asks, found in (("nothing named", "", False), ("static", "COMPONENTS static", True), ("shared", "COMPONENTS shared", False)):
        text = f"find_package(tcuda REQUIRED CONFIG {asks})\nmessage(\"found ${{tcuda_FOUND}}\")\n"
        code, output = kit.run(tools.configure(project(f"devel, {name}", text), FOLDER / f"devel, {name}" / "build", prefix))
        right = "found 1" in output if found else name == "shared" or re.search(r"component\s+runtime", output)
        suite.check(f"component devel, {name}", (code == 0) == found and right, output)


def project(name, text):
    """A folder with a CMakeLists.txt that says this."""
    (FOLDER / name).mkdir()
    (FOLDER / name / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.21)\nproject(x LANGUAGES C)\n{text}")
    return FOLDER / name


def cuda_program(suite, tools):
    """The example with CUDA kernels. Without a GPU it gets as far as to say so."""
    build, root = FOLDER / "cuda program", FOLDER / "toolkit"
    options = [f"-DCMAKE_PREFIX_PATH={MOVED}", f"-DCMAKE_CUDA_COMPILER={toolkit.whole(root)}"]
    suite.runs("a program with CUDA kernels: configure", tools.configure(kit.ROOT / "examples_c/cuda", build, *options))
    suite.runs("a program with CUDA kernels: build", [tools.cmake, "--build", build], timeout=900)
    _, needed = kit.run(["readelf", "-d", build / "spectrum"])
    suite.check("a program with CUDA kernels has one CUDA runtime", "[libcudart.so." in needed and f"[libtcuda.so.{kit.ABI}]" in needed, needed)
    for backend, why in (("sim", "simulated device"), ("cuda", "No CUDA device")):
        env = kit.environment(TCUDA_BACKEND=backend, TCUDA_CUDART_PATH="/nowhere", LD_LIBRARY_PATH=root / "lib")
        code, output = kit.run([build / "spectrum"], env=env)
        suite.check(f"without a GPU it says so and ends with 77, {backend}", code == 77 and output.count("\n") == 1 and why in output, output)


def pkg_config(suite, tools):
    env = kit.environment(PKG_CONFIG_PATH=MOVED / "lib/pkgconfig")
    ask = [tools.pkg_config]
    version = suite.runs("pkg-config finds it", [*ask, "--modversion", "tcuda"], env=env) or ""
    suite.check("pkg-config knows the version", version.strip() == kit.VERSION, version)
    code, _ = kit.run([*ask, "--exists", "tcuda >= 99"], env=env)
    suite.check("pkg-config refuses a version", code != 0)
    for language, compiler, source in (("C", kit.CC, "main.c"), ("C++", [*kit.CXX, "-std=c++17"], "main.cpp")):
        for kind in ("shared", "static"):
            what, program = f"pkg-config in {language}, {kind}", FOLDER / f"pc_{source}_{kind}"
            flags = "--libs --static" if kind == "static" else "--libs"
            # As a Makefile does it: the answer goes through a shell, which takes the quoting of the space away.
            line = (f'set -e; cflags=$("$PC" --cflags tcuda); libs=$("$PC" {flags} tcuda); eval "set -- $cflags \'$SOURCE\' $libs"; '
                    f'{" ".join(compiler)} "$@" -o "$PROGRAM"')
            if kind == "static":  # the linker takes the archive where it is asked for it by name
                line = line.replace('eval "set --', 'libs=$(printf %s "$libs" | sed "s/-ltcuda/-l:libtcuda.a/"); eval "set --')
            more = dict(env, PC=tools.pkg_config, SOURCE=str(PROJECT / source), PROGRAM=str(program))
            suite.runs(f"{what}: build", ["sh", "-c", line], env=more)
            runs_well(suite, what, program, dict(env, LD_LIBRARY_PATH=str(MOVED / "lib")))
            _, needed = kit.run(["readelf", "-d", program])
            suite.check(f"{what}: linked as asked", ("libtcuda.so" in needed) == (kind == "shared"), needed)


def subprojects(suite, tools):
    ways = [("add_subdirectory", "C", "Ninja", []), ("FetchContent", "CXX", "Ninja", ["-DCMAKE_BUILD_TYPE=RelWithDebInfo"]),
            ("add_subdirectory", "CXX", "Ninja Multi-Config", [])]
    # A parent that links nothing of it, but wants it installed.
    source = project("install all", f'add_subdirectory("{kit.ROOT}" tcuda)\n')
    build, to = source / "build", source / "to"
    options = ["-DTCUDA_INSTALL=ON", CARGO_DIR, f"-DCMAKE_INSTALL_PREFIX={to}", "-DCMAKE_INSTALL_LIBDIR=lib"]
    suite.runs("a subproject to install: configure", tools.configure(source, build, *options))
    # What a parent builds for is not what tcuda is built for.
    suite.runs("a subproject to install: build", [tools.cmake, "--build", build], env=dict(os.environ, CARGO_BUILD_TARGET="none"), timeout=900)
    suite.runs("a subproject to install: install", [tools.cmake, "--install", build])
    suite.check("a subproject to install: all of it is there", files(to) == files(MOVED), sorted(files(to) ^ files(MOVED)))
    for way, language, generator, more in ways:
        build, what = FOLDER / f"{way} {generator}", f"{way} in {language} with {generator}"
        cargo_dir = f"-DTCUDA_CARGO_TARGET_DIR={kit.DEV}" if "Multi" in generator else CARGO_DIR
        options = [f"-DLANGUAGE={language}", f"-DWAY={way}", f"-DSOURCE={kit.ROOT}", cargo_dir, f"-DCMAKE_INSTALL_PREFIX={build}/to", *more]
        config = "Debug" if "Multi" in generator else None
        suite.runs(f"{what}: configure", tools.configure(PROJECT, build, *options, generator=generator))
        chosen = ["--config", config] if config else []
        env = kit.environment(**kit.DEV_PROFILE)
        suite.runs(f"{what}: build", [tools.cmake, "--build", build, *chosen], env=env, timeout=900)
        for program in ("with_shared", "with_static"):
            runs_well(suite, f"{what}, {program}", build / (config or "") / program)
        suite.runs(f"{what}: install", [tools.cmake, "--install", build, *chosen])
        installed = files(build / "to")
        suite.check(f"{what}: tcuda installs nothing of its own", installed == {"bin/with_shared", "bin/with_static"}, installed)
