#!/usr/bin/env python3
"""Runs the test suites: all of them but those marked `named`, or those named. `make test` builds the library first and calls this.

Each suite ends with one line, `suite NAME: N passed, N failed`. A suite that counts fewer checks than tests/minimum_counts.txt says
has failed; so has one whose tool can be neither found nor fetched. Nothing is skipped. What a machine is not able to check (the suite
`instructions` where no program may step another) is named, and counted in the line as absent by capability.
"""

import concurrent.futures
import importlib
import pathlib
import shutil
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "suites"))
import kit  # noqa: E402


def minimum_counts():
    """{suite: fewest checks}, and their marks."""
    lines = (HERE / "minimum_counts.txt").read_text().splitlines()
    entries = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: int(count) for name, count, *_ in entries}, {name: marks for name, _, *marks in entries}


def run_suite(name, least):
    suite = kit.Suite(name)
    started = time.monotonic()
    try:
        importlib.import_module(name).run(suite)
    except kit.Missing as error:
        suite.check(str(error), False)
    except Exception:  # a suite that breaks off has failed; the others still run
        suite.check("the suite broke off", False, traceback.format_exc())
    if suite.failed == 0 and suite.passed + suite.unable < least:
        suite.check(f"{suite.passed} checks ran, tests/minimum_counts.txt asks for {least}", False)
    print(f"suite {name}: {counts([suite])} ({time.monotonic() - started:.0f} s)", flush=True)
    return suite


def fetch(names):
    """What suites want from the network comes while those before them run."""
    for name in names:
        try:
            getattr(importlib.import_module(name), "fetch", lambda: None)()
        except Exception:  # the suite asks for it again, and says what is wrong
            pass


def counts(suites):
    passed, failed, unable = (sum(getattr(suite, what) for suite in suites) for what in ("passed", "failed", "unable"))
    return f"{passed} passed, {failed} failed" + (f", {unable} absent by capability" if unable else "")


def main(names):
    least, marks = minimum_counts()
    unknown = [name for name in names if name not in least]
    if unknown:
        sys.exit(f"no such suite: {', '.join(unknown)}. There are: {', '.join(least)}")
    shutil.rmtree(kit.KERNELS, ignore_errors=True)
    names = names or [name for name in least if "named" not in marks[name]]
    threading.Thread(target=fetch, args=(names,), daemon=True).start()
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        suites = []
        for name in names:
            if "beside" in marks[name]:
                suites.append(beside.submit(run_suite, name, least[name]))
            else:
                suites.append(run_suite(name, least[name]))
        suites = [suite.result() if isinstance(suite, concurrent.futures.Future) else suite for suite in suites]
    broken = [suite.name for suite in suites if suite.failed]
    print(f"all suites: {counts(suites)}" + (f" (in {', '.join(broken)})" if broken else ""))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
