"""`make bench` as far as it needs no network: tcuda alone, one short round. Out of the kit for a machine with a GPU: the suite `gpu_kit`."""

import json
import re
import shutil
import sys
import xml.etree.ElementTree as xml

import kit

sys.path.insert(0, str(kit.ROOT / "benches"))
import run as benches  # noqa: E402


def whole(suite, where, out):
    """The four files, and in them a figure in every place: a check for each."""
    results = json.loads((out / "results.json").read_text())
    table = (out / "table.txt").read_text()

    def begins(what):
        return re.search(rf"^{re.escape(what)}(?:  | \()", table, re.M)

    rows = {(row["section"], row["row"]): row["values"]["tcuda"] for row in results["rows"]}
    named = [row[:2] for row in (*benches.rows(), *benches.pinned_rows())]
    for name in named:
        found = rows.get(name)
        suite.check(f"{where}: {', '.join(name)} has a time", isinstance(found, dict) and found["ns"] > 0, found)
    traces = [*(path.stem for path in sorted((kit.ROOT / "examples_c/data").glob("*.trace"))), "serving"]
    for trace in traces:
        r = results["replay"].get(trace, {}).get("tcuda")
        right = isinstance(r, dict) and r["fails"] == 0 and r["reserved1"] >= r["requested"] > 0 and r["longest"] >= r["p999"] > 0 and r["warm"] > 0
        suite.check(f"{where}: {trace} is replayed, and has its memory", right, r)
    others = set(rows) - set(named) | set(results["replay"]) - set(traces)
    suite.check(f"{where}: nothing else was measured", not others, others)
    sections = [*dict.fromkeys(section for section, _ in named), "an entry of the history, ns", "driver calls",
                *(f"replay of {trace}" for trace in traces), "all traces together"]
    for section in sections:
        suite.check(f"{where}: the table has the section '{section}'", begins(section), table)
    for name in ("threads.svg", "waste.svg"):
        shapes = [element for element in xml.parse(out / name).iter() if element.tag.endswith(("polyline", "rect"))]
        suite.check(f"{where}: {name} is a picture", len(shapes) > 3, shapes)
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
