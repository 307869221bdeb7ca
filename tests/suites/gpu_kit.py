"""`make gpu-kit` packs a folder that runs by itself; here on the simulated device, from another place."""

import os
import re
import shutil
import subprocess
import sys

import bench
import kit
import toolkit


def run(suite):
    packed = suite.runs("pack", [sys.executable, kit.ROOT / "tools/pack_gpu_kit.py"], timeout=1800)
    if packed is None:
        return
    copy = kit.BUILD / "tests/gpu kit"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kit.TARGET / "gpu-kit", copy)
    programs = sorted(path.name for folder in ("tests", "examples") for path in (copy / folder).iterdir())
    examples = {source.stem for source in (kit.ROOT / "examples_c").glob("*.c*")}
    tests = {source.stem for source in kit.c_sources() + kit.cxx_sources() if not source.name.startswith("test_sim_")}
    suite.check("it has the conformance suite, the tests and the examples",
                set(programs) == {"conformance", "planted_order", "plugin_load"} | tests | examples, programs)
    # Nothing but the library beside it and the system's: no Rust, no path of this machine.
    for program in (copy / "tests/test_smoke", copy / "tests/conformance"):
        _, output = kit.run(["readelf", "-d", program])
        suite.check(f"{program.name} looks for libraries beside itself only", str(kit.ROOT) not in output and "NEEDED" in output, output)
    # The suite `rust` runs the same conformance suite on the simulated device: here it is what comes last, on plain segments.
    programs = [*(name for name in programs if name != "conformance"), "conformance_plain"]
    answer = subprocess.run(["sh", copy / "run.sh", *programs], env=kit.environment(OUT=copy), cwd="/", text=True, capture_output=True, timeout=1800)
    suite.check("run.sh passes on the simulated device", answer.returncode == 0, answer.stdout + answer.stderr)
    for name in programs:
        suite.check(f"{name} is in the table", re.search(rf"^{name} +passed", answer.stdout, re.M), answer.stdout)
    answer = subprocess.run(["sh", copy / "run.sh", "overlap", "0.03", "8"], env=kit.environment(), cwd="/", text=True, capture_output=True,
                            timeout=60)
    right = answer.returncode == 0 and "overlap: 0 live blocks overlap, 0 words" in answer.stdout and "by 8 threads" in answer.stdout
    suite.check("run.sh runs the test of overlaps as long as it is told", right, answer.stdout + answer.stderr)
    answer = subprocess.run(["sh", copy / "run.sh", "jit", "--quick"], env=kit.environment(), cwd="/", text=True, capture_output=True, timeout=120)
    right = answer.returncode == 0 and re.search(r"^jit: \d+\.\d+ of the copy at least$", answer.stdout, re.M) and answer.stdout.count("GB/s") == 8
    suite.check("run.sh times compiled functions", right, answer.stdout + answer.stderr)
    answer = subprocess.run(["sh", copy / "run.sh", "communicators", "--quick", "3"], env=kit.environment(TCUDA_SIM_DEVICES=3), cwd="/", text=True,
                            capture_output=True, timeout=120)
    right = answer.returncode == 0 and answer.stdout.count("made in") == 2 and answer.stdout.count("killed: TCUDA_ERROR_REMOTE in") == 2
    suite.check("run.sh measures communicators of processes", right, answer.stdout + answer.stderr)
    answer = subprocess.run(["sh", copy / "run.sh", "watch", "--quick"], env=kit.environment(), cwd="/", text=True, capture_output=True, timeout=120)
    right = answer.returncode == 0 and len(re.findall(r"^.{28}( +\d+){4}$", answer.stdout, re.M)) == 5
    suite.check("run.sh times what looking on costs", right, answer.stdout + answer.stderr)
    answer = subprocess.run(["sh", copy / "run.sh", "many", "--quick"], env=kit.environment(), cwd="/", text=True, capture_output=True, timeout=120)
    right = answer.returncode == 0 and len(re.findall(r"^[a-z ]{18} +\d+( +[\d.]+){5}$", answer.stdout, re.M)) == 7
    suite.check("run.sh times requests beside many of everything", right, answer.stdout + answer.stderr)
    answer = subprocess.run(["sh", copy / "run.sh", "bench", "--quick", "--only", "tcuda"], env=kit.environment(OUT=copy, BUILD="/nowhere"), cwd="/",
                            text=True, capture_output=True, timeout=300)
    if suite.check("run.sh bench", answer.returncode == 0, answer.stdout + answer.stderr):
        bench.whole(suite, "kit", copy / "bench")
    nvcc = toolkit.whole(kit.BUILD / "tests/gpu_kit_toolkit")
    env = kit.environment(OUT=copy, PATH=f"{nvcc.parent}:{os.environ['PATH']}")
    answer = subprocess.run(["sh", copy / "run.sh", "cuda"], env=env, cwd="/", text=True, capture_output=True, timeout=600)
    right = answer.returncode == 1 and re.search(r"^spectrum +FAILED \(77\)", answer.stdout, re.M) and "runs no kernels of CUDA" in answer.stdout
    suite.check("run.sh compiles the program with CUDA kernels, and says that there is no GPU", right, answer.stdout + answer.stderr)
    (copy / "tests/test_smoke").write_text("#!/bin/sh\necho broken on purpose\nexit 3\n")
    answer = subprocess.run(["sh", copy / "run.sh", "test_smoke"], env=kit.environment(OUT=copy), text=True, capture_output=True, timeout=60)
    right = answer.returncode != 0 and "FAILED (3)" in answer.stdout and "broken on purpose" in answer.stdout
    suite.check("a program that fails is reported", right, answer.stdout)
