"""`make bench` as far as it needs no network: tcuda alone, one short round. Out of the kit for a machine with a GPU: the suite `gpu_kit`."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as xml

import kit

ROWS, SECTIONS, TRACES = 47, 15, {"bert_requests", "gan_steps", "gpt_varlen", "pipeline_streams", "prefetch_streams", "resnet_varsize", "serving"}


def whole(suite, where, out):
    """The four files, and in them a figure in every place."""
    results = json.loads((out / "results.json").read_text())
    figures = [row["values"]["tcuda"] for row in results["rows"]]
    suite.check(f"{where}: every row has a time", len(figures) == ROWS and all(isinstance(f, dict) and f["ns"] > 0 for f in figures), figures)
    replays = {trace: values["tcuda"] for trace, values in results["replay"].items()}
    right = all(isinstance(r, dict) and r["fails"] == 0 and r["reserved1"] >= r["requested"] > 0 and r["longest"] >= r["p999"] > 0 and r["warm"] > 0
                for r in replays.values())
    suite.check(f"{where}: every trace is replayed, and has its memory", set(replays) == TRACES and right, replays)
    for name in ("threads.svg", "waste.svg"):
        shapes = [element for element in xml.parse(out / name).iter() if element.tag.endswith(("polyline", "rect"))]
        suite.check(f"{where}: {name} is a picture", len(shapes) > 3, shapes)
    table = (out / "table.txt").read_text()
    suite.check(f"{where}: the table has its rows", len(re.findall(r"^(?:pair from|random|threads: |freed by|pinned: |pair while|an entry of|driver calls  |replay of |all traces)", table, re.M)) == SECTIONS + len(TRACES), table)
    return results


def run(suite):
    out = kit.BUILD / "tests/bench"
    shutil.rmtree(out, ignore_errors=True)
    if suite.runs("run.py", [sys.executable, kit.ROOT / "benches/run.py", "--quick", "--only", "tcuda", "--out", out]) is None:
        return
    results = whole(suite, "here", out)
    (out / "carried/librmm/lib64").mkdir(parents=True)
    code, output = kit.run([sys.executable, "-B", "-c", "import run; print(run.rmm('librmm'))"],
                           env=kit.environment(PYTHONPATH=kit.ROOT / "benches", TCUDA_BENCH_RMM=out / "carried"))
    suite.check("RMM is found where it is carried", code == 0 and output.strip() == str(out / "carried/librmm"), output)
    # Nothing is there for torch to be made of, and no way to fetch it: the others go on.
    lost = kit.environment(BUILD=kit.BUILD, PIP_NO_INDEX=1)
    again = out / "no network"
    command = [sys.executable, kit.ROOT / "benches/run.py", "--quick", "--only", "torch", "--rows", "pair", "--out", again]
    output = suite.runs("run.py with no network", command, env=lost)
    absent = output is not None and json.loads((again / "results.json").read_text())["absent"]
    suite.check("what cannot be fetched is said to be absent", absent and "torch" in absent and "absent: torch: " in output, output)
    suite.check("a GPU is not asked for", not results["gpu"])
    counted = results["instructions"]
    suite.check("instructions are counted, or it is said why not", isinstance(counted, str) or counted["tcuda"]["pair_512"]["instructions"] > 0, counted)
