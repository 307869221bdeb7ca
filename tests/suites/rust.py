"""Every Rust test, in one `cargo test`; its own lines are shown as they come. Beside it the conformance suite with the stream sanitizer."""

import concurrent.futures
import os
import queue
import re
import signal
import subprocess
import threading

import kit

# Seconds without a word, of which the longest test takes a minute: some test waits for ever.
SILENT = 400


def run(suite):
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        # Built with all others: what is found here needs no building.
        if suite.runs("build", [kit.CARGO, "test", "--locked", "--no-run"], timeout=1800) is None:
            return
        sanitized = beside.submit(under_sanitizer, suite)
        everything(suite)
        sanitized.result()


def everything(suite):
    command = [kit.CARGO, "test", "--locked", "--no-fail-fast"]
    process = subprocess.Popen(command, cwd=kit.ROOT, env=kit.environment(), text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    ignored = 0
    for line in lines_of(process):
        # The tests that passed are many; what failed and the closing lines are what one reads.
        if not re.match(r"test .* \.\.\. ok$|\s*$|running \d+ tests?$", line):
            print(line, end="", flush=True)
        result = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line)
        if result:
            suite.passed += int(result.group(1))
            suite.failed += int(result.group(2))
            ignored += int(result.group(3))
        # The conformance suite has its own words; the simulated device lacks what runs code for GPUs.
        result = re.match(r"conformance \(\w+\): (\d+) passed, (\d+) absent by capability, (\d+) failed", line)
        if result:
            suite.passed += int(result.group(1))
            suite.failed += int(result.group(3))
            lacks = {"compiler-of-kernels", "cublas", "cufft"}
            needs = [line.split()[1:] for line in (kit.ROOT / "tests/conformance/names.txt").read_text().splitlines()]
            ignored += int(result.group(2)) - sum(not lacks.isdisjoint(need) for need in needs)
    code = process.wait()
    if suite.failed == 0:
        suite.check("cargo test", code == 0, f"ended with {code}")
    suite.check("no test is ignored or absent", ignored == 0, f"{ignored} are")


def lines_of(process):
    """As they come; a process that falls silent is ended, with all that it began."""
    lines = queue.SimpleQueue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield from iter(lambda: lines.get(timeout=SILENT), None)
        process.wait()
    except queue.Empty:
        print(f"ended: nothing was heard for {SILENT} s", flush=True)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def under_sanitizer(suite):
    """No program of it has a bug but on purpose: a report is a false alarm, and fails its test."""
    command = [kit.rust_test("conformance")]
    output = suite.runs("conformance with TCUDA_SANITIZER=1", command, env=kit.environment(TCUDA_SANITIZER="1"), timeout=1800)
    found = re.search(r"conformance \(\w+\): (\d+) passed, \d+ absent by capability, 0 failed", output or "")
    suite.check("the sanitizer is quiet about the conformance suite", found and int(found.group(1)) > 390, output)
