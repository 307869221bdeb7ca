"""PyTorch over its own allocator and over tcuda's: the same results, steps a second, peaks. On a machine with a GPU:

    python3 benches/clients/run.py [LIBRARY] [--rounds N] [--only WORK,WORK] [--quick]

Both live side by side and take turns of a second or less, so that what else the machine does meets both.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = next((word for word in sys.argv[1:] if word.endswith(".so") or ".so." in word), str(HERE.parents[1] / "build/lib/libtcuda.so"))
WORKS = "gpt_eager gpt_graphs resnet_eager resnet_callable generate_eager generate_graphs overlap"


def after(word, otherwise):
    return sys.argv[sys.argv.index(word) + 1] if word in sys.argv else otherwise


ROUNDS = int(after("--rounds", 7))
ONLY = after("--only", WORKS.replace(" ", ",")).split(",")


class Client:
    def __init__(self, allocator):
        command = [sys.executable, HERE / "torch_client.py", allocator, LIBRARY, *(["--quick"] if "--quick" in sys.argv else [])]
        self.allocator = allocator
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "TCUDA_BACKEND": "cuda"})

    def ask(self, *words):
        try:
            print(*words, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.allocator} ended with {self.process.wait()} at {' '.join(words)}")
        return json.loads(answer)


def compare(clients, work):
    """Turns of one work, and what both give in the end."""
    errors = {client.allocator: answer["error"] for client in clients for answer in [client.ask("begin", work)] if "error" in answer}
    rounds = []
    for round_ in range(0 if errors else ROUNDS):
        answers = {client.allocator: client.ask("turn") for client in (clients if round_ % 2 == 0 else clients[::-1])}
        errors = {allocator: answer["error"] for allocator, answer in answers.items() if "error" in answer}
        if errors:
            break
        rounds.append(answers)
    return {"errors": errors, "rounds": rounds, "ends": {client.allocator: client.ask("end") for client in clients}}


def main():
    clients = [Client("native"), Client("tcuda")]
    seen, failed = {}, 0
    print(f"{ROUNDS} rounds in turn; a rate is their median, least and most are ratios within a turn, a peak is the largest", flush=True)
    print(f"{'work':<18}{'native/s':>10}{'tcuda/s':>10}{'ratio':>8}{'least':>8}{'most':>8}{'native GiB':>12}{'tcuda GiB':>11}{'allocated':>11}  results")
    for work in ONLY:
        seen[work] = one = compare(clients, work)
        if one["errors"]:
            failed += "tcuda" in one["errors"]
            print(f"{work}: {one['errors']}", flush=True)
            continue
        rates = {allocator: [answers[allocator]["rate"] for answers in one["rounds"]] for allocator in ("native", "tcuda")}
        ratios = [tcuda / native for native, tcuda in zip(rates["native"], rates["tcuda"])]
        medians = [statistics.median(rates[allocator]) for allocator in ("native", "tcuda")]
        same = all(answers["native"]["values"] == answers["tcuda"]["values"] for answers in one["rounds"])
        failed += not same
        ends = one["ends"]
        print(f"{work:<18}" + "".join(f"{rate:>10.3f}" for rate in medians)
              + "".join(f"{value:>8.3f}" for value in (medians[1] / medians[0], min(ratios), max(ratios)))
              + f"{ends['native']['reserved'] / 2**30:>12.3f}{ends['tcuda']['reserved'] / 2**30:>11.3f}{ends['tcuda']['allocated'] / 2**30:>11.3f}"
              + f"  {'-' if work == 'overlap' else 'same' if same else 'DIFFER'}", flush=True)
    told = {client.allocator: client.ask("tell") for client in clients}
    for allocator, answer in told.items():
        print(f"out of memory, {allocator}:", *answer.get("out of memory", [answer.get("error")]))
    for name, answer in told["tcuda"].get("refusals", {}).items():
        print(f"over tcuda {name}: {answer}")
    failed += any("error" in answer for answer in told.values())
    if os.environ.get("OUT"):
        (pathlib.Path(os.environ["OUT"]) / "clients.json").write_text(json.dumps(seen))
        (pathlib.Path(os.environ["OUT"]) / "summary.txt").write_text(told["tcuda"].get("summary", ""))
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
