"""PyTorch over its own allocator and over tcuda's, in turn: the same losses, steps a second, peaks. On a machine with a GPU:

    python3 benches/clients/run.py [LIBRARY] [--rounds N] [--seconds N] [--quick]

With --seconds no round is begun that would end later.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = next((word for word in sys.argv[1:] if word.endswith(".so") or ".so." in word), str(HERE.parents[1] / "build/lib/libtcuda.so"))


def number(word, otherwise):
    return int(sys.argv[sys.argv.index(word) + 1]) if word in sys.argv else otherwise


ROUNDS, SECONDS = number("--rounds", 7), number("--seconds", 1 << 30)


def one(allocator):
    command = [sys.executable, HERE / "torch_client.py", allocator, LIBRARY, *(["--quick"] if "--quick" in sys.argv else [])]
    answer = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=400, env={**os.environ, "TCUDA_BACKEND": "cuda"})
    if answer.returncode:
        sys.exit(f"{allocator} ended with {answer.returncode}\n{answer.stdout[-2000:]}\n{answer.stderr[-6000:]}")
    return json.loads(answer.stdout.splitlines()[-1])


def main():
    runs = {"native": [], "tcuda": []}
    start = time.monotonic()
    for round_ in range(ROUNDS):
        spent = time.monotonic() - start
        if spent * (round_ + 1) > SECONDS * max(round_, 1):
            break
        for allocator in ("native", "tcuda") if round_ % 2 == 0 else ("tcuda", "native"):
            runs[allocator].append(one(allocator))
    first = runs["tcuda"][0]
    failed = 0
    print(f"{len(runs['tcuda'])} rounds; a rate is their median, a peak the largest")
    print(f"{'work':<18}{'native/s':>10}{'tcuda/s':>10}{'ratio':>8}{'native GiB':>12}{'tcuda GiB':>11}{'allocated':>11}  losses")
    for work in (name for name in first if name[0].islower() and isinstance(first[name], dict) and name not in ("refusals",)):
        errors = {allocator: run[work]["error"] for allocator in runs for run in runs[allocator] if "error" in run[work]}
        if errors:
            failed += "tcuda" in errors
            print(f"{work}: {errors}")
            continue
        rates = {allocator: statistics.median(run[work]["rate"] for run in runs[allocator]) for allocator in runs}
        peak = {allocator: max(run[work]["reserved"] for run in runs[allocator]) / 2**30 for allocator in runs}
        allocated = max(run[work]["allocated"] for run in runs["tcuda"]) / 2**30
        values = {json.dumps(run[work]["values"]) for allocator in runs for run in runs[allocator]}
        same = "-" if work == "overlap" else "same" if len(values) == 1 else "DIFFER"
        failed += same == "DIFFER"
        print(f"{work:<18}{rates['native']:>10.3f}{rates['tcuda']:>10.3f}{rates['tcuda'] / rates['native']:>8.3f}{peak['native']:>12.3f}"
              f"{peak['tcuda']:>11.3f}{allocated:>11.3f}  {same}")
    print("out of memory, native:", *runs["native"][0]["out of memory"])
    print("out of memory, tcuda: ", *first["out of memory"])
    for name, answer in first["refusals"].items():
        print(f"over tcuda {name}: {answer}")
    if os.environ.get("OUT"):
        (pathlib.Path(os.environ["OUT"]) / "clients.json").write_text(json.dumps(runs))
        (pathlib.Path(os.environ["OUT"]) / "summary.txt").write_text(first["summary"])
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
