#!/usr/bin/env python3
"""`make bench`: tcuda beside every allocator that this machine can run, in one run.

    run.py [--quick] [--only NAME ...] [--rows WORD ...] [--out FOLDER] [--work FOLDER]

Each allocator lives in a process of its own (benches/bench.cpp) and they take turns, measure by measure; a figure is the median of the
rounds. With a GPU all of them run on it. Without one tcuda runs on its simulated device and torch's own library on a fake runtime.
FOLDER (build/bench) gets table.txt, results.json, threads.svg and waste.svg. What cannot run here is named, with the reason.
docs/BENCHMARKS.md says what the rows mean."""

import argparse
import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import re
import select
import shlex
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))
import pack_trace  # noqa: E402
import pictures  # noqa: E402
import serving_trace  # noqa: E402

CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
RUNTIME, CRT = ("nvidia-cuda-runtime", "13.0.96"), ("nvidia-cuda-crt", "13.0.88")
# For the simulated device and the fake runtime: no trace is short of memory.
GIB = 200

KIB, MIB = 1 << 10, 1 << 20
THREADS = (1, 2, 4, 8, 16)
# Seconds that a measure may take before its allocator is given up.
PATIENCE = 120
# And that a GPU has before a replay.
REST = 0.5


class Absent(Exception):
    """An allocator that cannot run here; says why."""


# ---- What is measured

def rows():
    """(section, row, line for the process, what tcuda is to reach)"""
    for label, size, reach in (("512 B", 512, "25 or less"), ("4 KiB", 4 * KIB, "25 or less"), ("1 MiB", MIB, "25 or less"),
                               ("20 MiB", 20 * MIB, "60 or less"), ("256 MiB", 256 * MIB, "60 or less")):
        yield "pair from cache, one thread", label, f"pair {size}", reach
    for label, most in (("512 B to 32 MiB", 32 * MIB), ("512 B to 1 MiB", MIB)):
        for count in (64, 1000, 10000):
            reach = {64: "", 1000: "a tenth of torch's", 10000: "a tenth of torch's, 1.3 times that of 1,000"}[count]
            yield "random working set", f"{count:,} blocks of {label}", f"set {count} {most}", reach
    for whose, streams in (("own", "a stream each"), ("same", "one stream for all")):
        reach = "60 or less on 16 cores" if whose == "own" else "a tenth of the best other's"
        for kind, label in (("pairs", "4 KiB"), ("mixed", "64 blocks up to 32 MiB"), ("small", "64 blocks up to 1 MiB")):
            for count in THREADS:
                yield f"threads: {label}, {streams}", str(count), f"threads {count} {whose} {kind}", reach if count == 16 else ""
    yield "freed by another thread", "512 B", "remote 512", "a tenth of torch's"
    for label, size in (("512 B", 512), ("20 MiB", 20 * MIB)):
        yield "pair from a memory pool", label, f"pool {size}", "a tenth of torch's"
    for label, size in (("512 B", 512), ("20 MiB", 20 * MIB)):
        yield "pair while the history is recorded", label, f"history {size}", ""


def pinned_rows():
    """The same for pinned host memory, which has no streams."""
    for label, size in (("512 B", 512), ("4 KiB", 4 * KIB), ("1 MiB", MIB), ("20 MiB", 20 * MIB), ("256 MiB", 256 * MIB)):
        yield "pinned: pair from cache, one thread", label, f"pair {size}", "40 or less"
    yield "pinned: random working set", "64 blocks of 512 B to 1 MiB", f"set 64 {MIB}", ""
    for count in THREADS:
        yield "pinned: threads, 4 KiB", str(count), f"threads {count} own pairs", ""


# (name, how it follows from an answer, digits, what tcuda is to reach)
REPLAY = (
    ("cold, ns an event", lambda a: a["cold"], 1, ""),
    ("warm, ns an event", lambda a: a["warm"], 1, "60 or less"),
    ("longest allocation, cold, us", lambda a: a["longest"] / 1000, 1, ""),
    ("99.9 % of the allocations, cold, us", lambda a: a["p999"] / 1000, 1, ""),
    ("reserved / requested, first pass", lambda a: a["reserved1"] / a["requested"] or None, 4, "1.05 or less"),
    ("reserved / requested, second pass", lambda a: a["reserved2"] / a["requested"] or None, 4, "1.05 or less"),
    ("reserved / requested, third pass", lambda a: a["reserved3"] / a["requested"] or None, 4, "1.05 or less"),
    ("driver calls in 1,000 events, warm", lambda a: 1000 * a["calls"] / a["events"] if "calls" in a else None, 2, "1 or less"),
    ("allocations without memory", lambda a: a["fails"], 0, "0"),
)


# ---- What runs it

def must(command, **options):
    answer = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", **options)
    if answer.returncode != 0:
        said = [line for line in (answer.stderr + answer.stdout).splitlines() if "error" in line.lower()] or [answer.stderr.strip()]
        raise Absent(f"{pathlib.Path(str(command[0])).name} ended with {answer.returncode}: {said[0][:300]}")
    return answer.stdout


def library():
    """tcuda's shared library: of the repository, or of the kit for a machine with a GPU."""
    build = pathlib.Path(os.environ.get("BUILD") or ROOT / "build") / "lib"
    for folder in (build, ROOT / "lib"):
        found = [path for path in sorted(folder.glob("libtcuda.so.*")) if re.fullmatch(r"libtcuda\.so\.[\d.]+", path.name)]
        if found:
            return found[0].resolve().parent / found[0].name
    sys.exit("there is no libtcuda.so: make lib")


def backend_of(path):
    """cuda, sim or none: where tcuda runs here."""
    code = ("import ctypes, sys; tcuda = ctypes.CDLL(sys.argv[1]); tcuda.tcuda_init(None); "
            "tcuda.tcuda_backend_name.restype = ctypes.c_char_p; print(tcuda.tcuda_backend_name().decode())")
    env = dict(os.environ, TCUDA_BACKEND=os.environ.get("TCUDA_BACKEND", "auto"))
    return subprocess.run([sys.executable, "-c", code, path], env=env, capture_output=True, text=True, check=True).stdout.split()[-1]


def package(name):
    """The folder of an installed Python package, or None. It is not imported."""
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        return None
    return pathlib.Path(list(found.submodule_search_locations)[0]) if found and found.submodule_search_locations else None


def rmm(name):
    """The folder of one of RMM's packages: below TCUDA_BENCH_RMM, carried in the kit (`make gpu-kit RMM=1`), or installed."""
    for place in (os.environ.get("TCUDA_BENCH_RMM"), ROOT / "rmm"):
        if place and (pathlib.Path(place) / name / "lib64").is_dir():
            return (pathlib.Path(place) / name).resolve()
    return package(name)


class Cuda:
    """Headers and libcudart: a toolkit's, or those of Python's packages."""

    def __init__(self):
        packages = package("nvidia")
        roots = [pathlib.Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
        roots += [pathlib.Path("/usr/local/cuda"), *sorted(packages.glob("cu*") if packages else [])]
        for root in roots:
            libraries = [path for folder in ("lib64", "lib", "targets/x86_64-linux/lib") for path in sorted(root.glob(folder + "/libcudart.so*"))]
            if (root / "include/cuda_runtime_api.h").exists() and libraries:
                self.include, self.library = root / "include", libraries[0]
                return
        raise Absent("no headers of CUDA were found (CUDA_HOME, /usr/local/cuda, Python's packages)")


class FakeCuda:
    """torch's allocator and CUDA's headers from PyPI, fetched once, and the fake runtime."""

    def __init__(self, folder):
        self.folder = folder / "fetched"
        self.torch, self.include = self.folder / "torch", self.folder / "nvidia/cu13/include"
        self.library = folder / "fake/libcudart.so.13"
        if not (self.torch / "lib/libc10_cuda.so").exists() or not (self.include / "crt/host_defines.h").exists():
            self.fetch()
        self.library.parent.mkdir(exist_ok=True)
        versions = folder / "fake/versions"
        versions.write_text("libcudart.so.13 { global: *; };\n")
        must([*CC, "-O2", "-fPIC", "-shared", "-I", self.include, HERE / "fake_cudart.c", f"-Wl,--version-script={versions}",
              "-Wl,-soname,libcudart.so.13", "-o", self.library])

    def fetch(self):
        import need
        wanted = r"torch/lib/libc10(_cuda)?\.so|torch/cuda/_memory_viz.py|torch/include/(c10|torch/headeronly)/.*|nvidia/cu13/include/.*"
        try:
            need.unpack(self.folder, wanted, need.TORCH, RUNTIME, CRT)
        except need.Missing as error:
            raise Absent(str(error)) from error


class Bench:
    """Builds the allocators that this machine can run."""

    def __init__(self, work, seconds):
        self.work, self.seconds, self.tcuda = work, seconds, library()
        self.backend = backend_of(self.tcuda)
        if self.backend == "none":
            sys.exit("TCUDA_BACKEND=cuda and there is no GPU; TCUDA_BACKEND=sim, or nothing, runs on the simulated device")
        self.gpu = self.backend == "cuda"
        self.program = work / "bench"
        must([*CXX, "-std=c++17", "-O2", HERE / "bench.cpp", "-o", self.program, "-ldl", "-pthread"])

    @functools.cached_property
    def cuda(self):
        return Cuda() if self.gpu else FakeCuda(self.work)

    def anchor(self, name, source, *flags, cuda=True):
        """A shared object, compiled."""
        made = self.work / f"{name}.so"
        link = ["-I", self.cuda.include, self.cuda.library, f"-Wl,-rpath,{self.cuda.library.parent}"] if cuda else []
        compiler = [*CXX, "-std=c++20"] if source.endswith(".cpp") else CC
        # What the headers of others are warned for is not ours.
        must([*compiler, "-O2", "-w", "-fPIC", "-shared", HERE / source, "-o", made, *flags, *link, "-ldl"])
        return [self.program, made, self.seconds]

    def a_tcuda(self, pinned=False):
        flags = ["-I", ROOT / "include", self.tcuda, f"-Wl,-rpath,{self.tcuda.parent}"]
        env = {"TCUDA_BACKEND": self.backend}
        if not self.gpu:
            env["TCUDA_SIM_MEMORY"] = f"{GIB}GiB"
        flags += (["-DBENCH_CUDA"] if self.gpu else []) + (["-DBENCH_PINNED"] if pinned else [])
        return self.anchor("pinned" if pinned else "tcuda", "anchor_tcuda.c", *flags, cuda=self.gpu), env

    def a_torch(self, conf):
        torch = package("torch") if self.gpu else self.cuda.torch
        if not torch:
            raise Absent("it is not installed")
        flags = ["-I", torch / "include", "-L", torch / "lib", "-lc10_cuda", "-lc10", f"-Wl,-rpath,{torch / 'lib'}"]
        return self.anchor("c10", "anchor_c10.cpp", *flags), {"FAKE_CUDART_MEMORY": str(GIB), "PYTORCH_CUDA_ALLOC_CONF": conf}

    def a_async(self):
        if not self.gpu:
            raise Absent("it needs a GPU")
        return self.anchor("async", "anchor_async.c"), {}

    def a_rmm(self, *flags):
        folder, logger = rmm("librmm"), rmm("rapids_logger")
        if not self.gpu:
            raise Absent("it needs a GPU")
        if not folder or not logger:
            raise Absent("librmm and rapids_logger are neither installed nor carried in the kit nor in TCUDA_BENCH_RMM")
        # librmm brings CUDA's C++ library in the version that it wants.
        includes = [folder / "include", folder / "include/rapids", logger / "include"]
        made = [f"-I{include}" for include in includes] + ["-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"]
        # The logger is needed by librmm only, which does not say where it is.
        made.append("-Wl,--no-as-needed")
        for root, name in ((folder, "-lrmm"), (logger, "-lrapids_logger")):
            made += ["-L", root / "lib64", f"-Wl,-rpath,{root / 'lib64'}", name]
        return self.anchor("rmm_arena" if flags else "rmm_pool", "anchor_rmm.cpp", *flags, *made), {}

    def a_cupy(self):
        if not self.gpu:
            raise Absent("it needs a GPU")
        if not package("cupy"):
            raise Absent("it is not installed")
        return [sys.executable, HERE / "anchor_cupy.py", self.seconds], {}

    def a_torch_pinned(self):
        if not self.gpu:
            raise Absent("its pinned memory needs a GPU")
        if not package("torch"):
            raise Absent("it is not installed")
        return [sys.executable, HERE / "anchor_torch_pinned.py", self.seconds], {}

    def all_pinned(self):
        yield "tcuda", lambda: self.a_tcuda(pinned=True)
        yield "torch, from Python", self.a_torch_pinned

    def all(self):
        yield "tcuda", self.a_tcuda
        yield "torch", lambda: self.a_torch("expandable_segments:False")
        yield "torch, expandable", lambda: self.a_torch("expandable_segments:True")
        yield "cudaMallocAsync", self.a_async
        yield "RMM pool", self.a_rmm
        yield "RMM arena", lambda: self.a_rmm("-DBENCH_ARENA")
        yield "CuPy, from Python", self.a_cupy


class Process:
    """One allocator, waiting for its turns."""

    def __init__(self, name, command, env, log):
        self.name = name
        self.log = open(log, "w")
        self.command, self.env = command, env
        self.process = subprocess.Popen([str(part) for part in command], env=dict(os.environ, **env), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        first = self.process.stdout.readline().strip()
        if first != "ready":
            self.process.wait()
            said = pathlib.Path(log).read_text().strip().splitlines()
            raise Absent((first or (said[-1] if said else "it ended without a word"))[:300])

    def ask(self, line):
        """{name: value}, or a text that says why there is none."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                self.process.kill()
                return f"no answer in {PATIENCE} s"
            words = self.process.stdout.readline().split()
        except OSError:
            words = []
        if not words:
            return f"the process ended ({self.process.poll()})"
        if words[0] == "error":
            return " ".join(words[1:])
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}

    def end(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def median_of(answers):
    """Medians, figure by figure, of the rounds that gave figures; the reason where none did."""
    there = [answer for answer in answers if isinstance(answer, dict)]
    if not there:
        return answers[0]
    return {name: statistics.median(answer[name] for answer in there) for name in there[0]}


def take_turns(processes, line, rounds, rest=0.0):
    """`rest`: seconds before each. What the one before gave back is still being cleared, and who takes it at once waits for that."""
    answers = {process.name: [] for process in processes}
    for turn in range(rounds):
        # Nobody is always first.
        for process in processes[turn % len(processes):] + processes[:turn % len(processes)]:
            time.sleep(rest)
            answers[process.name].append(process.ask(line))
    return {name: median_of(found) for name, found in answers.items()}


# ---- What it says

def table(head, lines):
    widths = [max(len(str(line[i])) for line in [head, *lines]) for i in range(len(head))]
    last = len(head) - 1

    def one(cells):
        shown = [str(cell).ljust(width) if i in (0, last) else str(cell).rjust(width) for i, (cell, width) in enumerate(zip(cells, widths))]
        return "  ".join(shown).rstrip()

    return "\n".join([one(head), "-" * (sum(widths) + 2 * last), *map(one, lines)])


def figure(value, digits=1):
    return "-" if value is None or isinstance(value, str) else f"{value:,.{digits}f}"


def of_torch(values):
    ours, torch = values.get("tcuda"), values.get("torch", values.get("torch, from Python"))
    return figure(ours / torch, 3) if isinstance(ours, float) and isinstance(torch, float) and torch else "-"


def machine():
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text()) if pathlib.Path("/proc/cpuinfo").exists() else None
    return {"processor": model.group(1) if model else os.uname().machine, "cores": len(os.sched_getaffinity(0))}


def count_instructions(bench, started, pinned):
    """{anchor: {case: figures}} by benches/count.c; not on a GPU, whose driver does not belong to the count."""
    program = bench.work / "count"
    must([*CC, "-O2", HERE / "count.c", "-o", program, "-ldl", "-pthread"])
    counted = {}
    for process in started + pinned:
        if process.command[0] == bench.program:
            name = process.name + (", pinned" if process in pinned else "")
            answer = subprocess.run([str(program), str(process.command[1])], env=dict(os.environ, **process.env), capture_output=True, text=True)
            lines = [line.split() for line in answer.stdout.splitlines()]
            counted[name] = {words[0]: dict(zip(words[1::2], map(float, words[2::2]))) for words in lines if len(words) > 2}
            if answer.returncode != 0:
                return answer.stderr.strip()
    return counted


def traces(work):
    found = {path.stem: path for path in sorted((ROOT / "examples_c/data").glob("*.trace"))}
    found["serving"] = work / "serving.trace"
    if not found["serving"].exists():
        found["serving"].write_bytes(pack_trace.pack(serving_trace.recorded()))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run, not how fast")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("BUILD") or ROOT / "build") / "bench")
    parser.add_argument("--work", type=pathlib.Path, help="for what is built, fetched and logged; FOLDER/work if not given")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="tcuda and these")
    parser.add_argument("--rows", nargs="+", metavar="WORD", help="only what has one of these in its name, as random, threads, replay, serving")
    options = parser.parse_args()
    out = options.out.resolve()
    work = (options.work or out / "work").resolve()
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    rounds, seconds = (1, 0.02) if options.quick else (5, 0.1)

    bench = Bench(work, seconds)
    absent, said = {}, []

    def say(words=""):
        print(words, flush=True)
        said.append(words)

    def start(allocators, kind):
        processes = []
        for name, build in allocators:
            if options.only and name != "tcuda" and name not in options.only:
                continue
            try:
                command, env = build()
                processes.append(Process(name, command, env, work / f"{kind}{re.sub('[^a-zA-Z]+', '_', name)}.log"))
            except Absent as reason:
                absent[kind + name] = str(reason)
        return processes

    started, pinned = start(bench.all(), ""), start(bench.all_pinned(), "pinned ")
    names = [process.name for process in started]
    if "tcuda" not in names:
        sys.exit(f"tcuda does not run: {absent['tcuda']}")

    host = machine()
    say(f"tcuda {version(bench.tcuda)} beside other allocators, on {host['cores']} cores, {host['processor']}")
    say("On the GPU; the driver's calls for memory are counted." if bench.gpu else
        "There is no GPU: tcuda runs on its simulated device, torch's library on a fake runtime. Every call of the runtime is counted,\n"
        "but is cheap: cold figures say nothing of a GPU. With more threads than cores a figure holds the waiting for a core.")
    for name, reason in absent.items():
        say(f"absent: {name}: {reason}")
    say(f"Medians of {rounds} round{'s' if rounds > 1 else ''} in which all take turns. Nanoseconds for one allocation and its free.")

    results = {"machine": host, "gpu": bench.gpu, "rounds": rounds, "seconds": seconds, "absent": absent, "rows": [], "replay": {}}
    sections = {}

    def wanted(name):
        return not options.rows or any(word in name for word in options.rows)

    for processes, (section, row, line, reach) in [(started, row) for row in rows()] + [(pinned, row) for row in pinned_rows()]:
        if not wanted(f"{section}, {row}"):
            continue
        values = take_turns(processes, line, rounds)
        results["rows"].append({"section": section, "row": row, "reach": reach, "values": values})
        sections.setdefault(section, []).append((row, values, reach))
        print(f"  {section}, {row}: " + ", ".join(f"{name} {figure(value['ns'])}" for name, value in values.items() if isinstance(value, dict)),
              file=sys.stderr, flush=True)
    for section, lines in sections.items():
        say()
        shown = []
        for row, values, reach in lines:
            ns = {name: value["ns"] if isinstance(value, dict) else value for name, value in values.items()}
            shown.append([row, *(figure(value) for value in ns.values()), of_torch(ns), reach])
        say(table([section, *lines[0][1], "of torch", "reach"], shown))
    said_events = [(row, values) for section, lines in sections.items() if section.startswith("pair while") for row, values, _ in lines]
    if said_events:
        say()
        say(table(["an entry of the history, ns", *names, "reach"],
                  [[f"of a pair of {row}", *(figure(values[name]["event"] if isinstance(values[name], dict) else None) for name in names), "40 or less"]
                   for row, values in said_events]))
    if not options.rows:
        calls = {name: value.get("calls") for name, value in results["rows"][0]["values"].items() if isinstance(value, dict)}
        say()
        say(table(["driver calls", *names, "reach"], [["a pair of 512 B", *(figure(calls.get(name), 2) for name in names), "0"]]))

    for trace, path in traces(work).items():
        if not wanted(f"replay of {trace}"):
            continue
        values = take_turns(started, f"replay {path}", rounds, REST if bench.gpu else 0)
        results["replay"][trace] = values
        say()
        shown = []
        for row, follow, digits, reach in REPLAY:
            shown.append([row, *(figure(follow(values[name]) if isinstance(values[name], dict) else None, digits) for name in names), reach])
        one = next(value for value in values.values() if isinstance(value, dict))
        say(table([f"replay of {trace} ({one['events']:,.0f} events, {one['requested'] / (1 << 30):.1f} GiB)", *names, "reach"], shown))
        for name, value in values.items():
            if isinstance(value, str):
                say(f"  {name}: {value}")
    if results["replay"]:
        say()
        totals = []
        for row, key, reach in (("cold, ms", "cold", "no more than torch's, on a GPU"), ("warm, ms", "warm", "")):
            sums = []
            for name in names:
                found = [values[name] for values in results["replay"].values()]
                complete = all(isinstance(one, dict) for one in found)
                sums.append(figure(sum(one[key] * one["events"] for one in found) / 1e6 if complete else None))
            totals.append([row, *sums, reach])
        say(table(["all traces together", *names, "reach"], totals))
    for process in started + pinned:
        process.end()

    if not bench.gpu and not options.rows:
        # Pinned memory's take longer to count than all rounds of the quick form.
        counted = count_instructions(bench, started, [] if options.quick else pinned)
        results["instructions"] = counted
        say()
        if isinstance(counted, str):
            say(f"instructions: {counted}")
        else:
            cases = list(counted["tcuda"])
            say(table(["instructions of a pair (locked)", *counted, "reach"],
                      [[case, *(f"{found[case]['instructions']:,.0f} ({found[case]['locked']:g})" if case in found else "-" for found in counted.values()),
                        "150 or less" if case in ("pair_512", "pair_1MiB") else ""] for case in cases]))

    if not options.rows:
        panels = {}
        for section, lines in sections.items():
            if section.startswith("threads: "):
                panels[section.removeprefix("threads: ")] = {
                    name: {int(row): values[name]["ns"] for row, values, _ in lines if isinstance(values[name], dict)} for name in names}
        (out / "threads.svg").write_text(pictures.threads(panels, names))
        ratios = {trace: {name: value["reserved3"] / value["requested"] for name, value in values.items()
                          if isinstance(value, dict) and value["reserved3"]} for trace, values in results["replay"].items()}
        (out / "waste.svg").write_text(pictures.waste(ratios, names))
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "table.txt").write_text("\n".join(said) + "\n")
    print(f"\n{out}: table.txt, results.json" + (", threads.svg, waste.svg" if not options.rows else ""))


def version(path):
    tcuda = ctypes.CDLL(str(path))
    tcuda.tcuda_version_string.restype = ctypes.c_char_p
    return tcuda.tcuda_version_string().decode().split()[0]


if __name__ == "__main__":
    main()
