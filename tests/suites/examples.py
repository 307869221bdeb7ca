"""Every example compiles without a warning as C99 and C++17 (or C++17 alone) and runs to a good end on the simulated device. The demo
fails where it should, the estimate has the numbers that it promises, and Python does what it says: the README's, and tensors by DLPack."""

import json
import re
import socket
import subprocess
import sys

import kit


def one(suite, source, standard):
    folder = kit.BUILD / "tests/examples"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{source.stem}.{standard}"
    command = [*kit.compiler(standard), *kit.STRICT, "-O2", source, *kit.shared_link(), "-lm", "-o", program]
    if suite.runs(f"{source.name} compiles as {standard}", command) is not None:
        output = suite.runs(f"{source.name} as {standard} runs", [program], env=kit.environment(TCUDA_BACKEND="auto"))
        suite.check(f"{source.name} as {standard} says something", output and output.strip())


def demo(suite):
    """After the examples are built: traces that are none, a device that is too small, and every recorded run."""
    program = kit.BUILD / "tests/examples/replay.c99"
    for what, trace, memory, wanted in [("a trace that is not there", "none", "1GiB", "there is no file none"),
                                        ("a file that is no trace", "README.md", "1GiB", "no packed trace"),
                                        ("no room", "prefetch_streams", "1GiB", "CUDA out of memory"),
                                        ("no room for any", None, "1GiB", "the smallest run wants")]:
        code, output = kit.run([program, trace] if trace else [program], env=kit.environment(TCUDA_SIM_MEMORY=memory))
        suite.check(f"replay says: {what}", code == 1 and wanted in output, output)
    for trace in sorted((kit.ROOT / "examples_c/data").glob("*.trace")):
        output = suite.runs(f"replay of {trace.stem}", [program, trace], env=kit.environment(TCUDA_SIM_MEMORY="40GiB", TCUDA_SIM_SEED=1))
        suite.check(f"replay of {trace.stem} has its checks", output and output.count("\n  ok ") == 3, output)


def monte_carlo(suite):
    """The numbers that its text promises, and what it says without a compiler."""
    program = kit.BUILD / "tests/examples/monte_carlo.c99"
    promised = re.findall(r"^ \*     ((?:pi|call): .*?)(?: \*/)?$", (kit.ROOT / "examples_c/monte_carlo.c").read_text(), re.M)
    output = suite.runs("monte_carlo", [program]) or ""
    suite.check("monte_carlo has the numbers of its text", len(promised) == 2 and output.splitlines() == promised, f"{promised}\n{output}")
    output = suite.runs("monte_carlo without a compiler", [program], env=kit.environment(TCUDA_CXX="/nowhere")) or ""
    suite.check("monte_carlo says that there is none, and does the rest", promised[0] in output and "call: not estimated" in output and
                "/nowhere" in output, output)


def readme(suite):
    snippet = re.search(r"```python\n(.*?)```", (kit.ROOT / "README.md").read_text(), re.S).group(1)
    snippet = snippet.replace("build/lib/libtcuda.so", str(kit.LIB / "libtcuda.so"))
    output = suite.runs("the README's Python runs", [sys.executable, "-c", snippet])
    suite.check("the README's Python says what is in use", output and "1048576 bytes in use" in output, output)


def monitor(suite):
    """tcuda_top as JSON, and with a word that it does not know."""
    program = kit.BUILD / "tests/examples/tcuda_top.c99"
    output = suite.runs("tcuda_top --json runs", [program, "--json"], env=kit.environment(TCUDA_SIM_DEVICES=3))
    devices = json.loads(output)["devices"] if output else []
    right = [(d["driver_index"], d["temperature"], d["held_by_tcuda"], d["processes"]) for d in devices] == [(i, 31, 0, []) for i in range(3)]
    suite.check("tcuda_top tells of every device, and makes no context", right, output)
    code, output = kit.run([program, "--all"])
    suite.check("tcuda_top says how it is used", code == 2 and "usage" in output, output)


def ranks(suite):
    """average_ranks as a launcher starts it: as many processes as ranks, that find each other by the environment."""
    program = kit.BUILD / "tests/examples/average_ranks.c99"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]

    def start(rank, **more):
        env = kit.environment(TCUDA_SIM_DEVICES=3, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=3, MASTER_ADDR="localhost", MASTER_PORT=port)
        return subprocess.Popen([program], env={**env, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    started = [start(rank) for rank in (2, 0, 1)]
    for rank, process in zip((2, 0, 1), started):
        output = process.communicate(timeout=120)[0]
        right = process.returncode == 0 and output == f"rank {rank} of 3: 300 tensors (0.8 MB) averaged, 0 elements wrong\n"
        suite.check(f"average_ranks, rank {rank} of three processes", right, output)
    wrong = start(3)
    output = wrong.communicate(timeout=120)[0]
    suite.check("average_ranks says which variable is wrong", wrong.returncode == 1 and "RANK is 3 and WORLD_SIZE 3" in output, output)
    output = suite.runs("average_ranks starts its own ranks", [program, "2"]) or ""
    suite.check("average_ranks started two", output.count(" of 2: ") == 2, output)


def dlpack(suite):
    """Capsules, with tensors of a library that is made up."""
    command = [sys.executable, "-B", kit.ROOT / "tests/data/dlpack_host.py", kit.LIB / "libtcuda.so"]
    output = suite.runs("tensors by DLPack", command, env=kit.environment(TCUDA_SIM_DEVICES=2))
    suite.check("tensors by DLPack, each check and nothing else", output == "dlpack_host: 28 passed, 0 failed\n", output)


def run(suite):
    folder = kit.ROOT / "examples_c"
    jobs = [(source, standard) for source in sorted(folder.glob("*.c")) for standard in ("c99", "c++17")]
    jobs += [(source, "c++17") for source in sorted(folder.glob("*.cpp"))]
    suite.each([lambda job=job: one(suite, *job) for job in jobs])
    demo(suite)
    monte_carlo(suite)
    monitor(suite)
    ranks(suite)
    readme(suite)
    dlpack(suite)
