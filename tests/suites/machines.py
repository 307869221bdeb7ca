"""Collectives, and what else differs there, on other simulated machines: numbers of devices, who reaches whom, shuffled streams, some with
memory that is filled when it is taken, some under the stream sanitizer, one with plain segments. Each is the conformance suite's tests of that
name in a process of its own, two at a time."""

import concurrent.futures
import os
import re

import kit

BOTH = ("comm.", "comm_order.")
ORDERED = ("comm_order.", "comm.sums_of_every", "comm.pieces_come", "comm.broadcasts_of_many", "comm.a_sum")
RANKS = ("communicator.every", "communicator.calls", "communicator.sends", "communicator.memory")


def machine(devices, peers="all", **more):
    return dict(TCUDA_SIM_DEVICES=devices, TCUDA_SIM_PEERS=peers, **more)


def machines():
    """(part of the tests' names, variables)"""
    for devices in (8, 3, 1):
        yield from ((names, machine(devices)) for names in BOTH)
        yield "communicator", machine(devices, "none")
    for devices, peers in ((4, "0-1,2-3,1-2"), (3, "none")):
        yield from ((names, machine(devices, peers)) for names in BOTH)
    # `make test-long` has each number of devices with more seeds, and all tests on machines of other kinds.
    all_of_it = os.environ.get("TCUDA_MACHINES_EFFORT") == "all"
    rounds = 4 if all_of_it else 1
    if all_of_it:
        yield from (("", of) for of in (machine(2, "none"), machine(1, TCUDA_MEMORY_POISON=1)))
    for seed, devices in enumerate((3, 4, 2) * rounds, 1):
        yield from ((names, machine(devices, TCUDA_SIM_SEED=seed)) for names in ORDERED)
    for seed in (1, 2, 3):
        yield from ((names, machine(3, TCUDA_SIM_SEED=seed)) for names in RANKS)
    for seed, devices in enumerate((2, 3, 4), 1):
        yield "comm_order.", machine(devices, TCUDA_SIM_SEED=seed, TCUDA_MEMORY_POISON=1)
    yield from ((names, machine(2, TCUDA_SIM_SEED=4, TCUDA_MEMORY_POISON=1)) for names in ("graph_ends.", "plugin.", "pressure."))
    yield "copy.", machine(2, "none")
    for seed, devices in enumerate((3, 4), 1):
        yield "comm_order.", machine(devices, TCUDA_SIM_SEED=seed, TCUDA_SANITIZER=1)
    yield "comm", machine(4, "0-1,2-3,1-2", TCUDA_SANITIZER=1)
    yield "comm", machine(3, TCUDA_ALLOC_CONF="expandable_segments:False")


def run(suite):
    conformance = kit.rust_test("conformance")

    def passes(given):
        names, variables = given
        code, output = kit.run([conformance, names], env=kit.environment(**variables), timeout=900)
        said = re.search(r"conformance \(sim\): [1-9]\d* passed, \d+ absent by capability, 0 failed", output)
        what = " ".join([names, *(f"{name}={value}" for name, value in variables.items())])
        return what, code == 0 and said, output

    # They compute long, and wait for nobody.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for what, right, output in pool.map(passes, machines()):
            suite.check(what, right, output)
