"""One process of benches/clients/run.py: trains and generates with PyTorch, over its own allocator or tcuda's.

    python3 torch_client.py native|tcuda [LIBRARY] [--quick]

Reads `begin WORK`, `turn`, `end` and `tell` line by line and answers each with a line of JSON: nothing, what a turn's steps gave and how many were
made in a second, the peaks of the work, and what PyTorch refuses over this allocator.
"""

import ctypes
import itertools
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

QUICK = "--quick" in sys.argv
DEVICE = torch.device("cuda", 0)
tcuda = None


def reset_peak():
    if tcuda:
        assert tcuda.tcuda_reset_peak_memory_stats(0) == 0
    else:
        torch.cuda.reset_peak_memory_stats()


def peaks():
    """(bytes reserved, bytes allocated) at most."""
    if not tcuda:
        return torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    values = []
    for name in ("tcuda_max_memory_reserved", "tcuda_max_memory_allocated"):
        value = ctypes.c_uint64()
        assert getattr(tcuda, name)(ctypes.byref(value), 0) == 0
        values.append(value.value)
    return tuple(values)


def attention(q, k, v, causal):
    """The fused kernels sum in no certain order; what comes out is compared bit for bit."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        attended = attention(q, k, v, past is None)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class Gpt(nn.Module):
    """Of the size of GPT-2."""

    def __init__(self, layers=12, width=768, heads=12, words=50257, most=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(most, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens, past=None, start=0):
        x = self.words(tokens) + self.places(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        kept = []
        for at, block in enumerate(self.blocks):
            x, seen = block(x, past[at] if past else None)
            kept.append(seen)
        return self.norm(x) @ self.words.weight.T, kept


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        middle = outside // 4
        self.body = nn.Sequential(nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                                  nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
                                  nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside))
        same = inside == outside and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet():
    """Of the size of ResNet-50."""
    layers, inside = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for outside, count, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
        for at in range(count):
            layers.append(Residual(inside, outside, stride if at == 0 else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def turns(steps, warm, step, *kept):
    """Makes the warm steps, and gives a function that makes so many more and returns what they gave and how many were made in a second.
    What is kept lives as long as it does: a graph does not hold what it reads."""
    count = itertools.count()
    early = [step(next(count)) for _ in range(warm)]

    def turn():
        torch.cuda.synchronize()
        start = time.perf_counter()
        values = [step(next(count)) for _ in range(steps)]
        torch.cuda.synchronize()
        rate = steps / (time.perf_counter() - start)
        values, early[:] = early + values, []
        return [float(value) for value in values if value is not None], rate

    turn.kept = kept
    return turn


def gpt_eager():
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    source = torch.Generator().manual_seed(1)

    def step(_):
        length = int(torch.randint(64, 1025, (1,), generator=source))
        tokens = torch.randint(0, 50257, (8, length), generator=source).pin_memory().to(DEVICE, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits, _ = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 50257).float(), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return turns(*((4, 2) if QUICK else (12, 15)), step)


def gpt_graphs():
    """One graph for each of four lengths, with one pool."""
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True, capturable=True)
    source = torch.Generator().manual_seed(2)
    lengths, graphs, pool = (1024, 768, 512, 256), {}, None

    def work(tokens):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits, _ = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 50257).float(), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    for length in lengths:
        tokens = torch.zeros(8, length, dtype=torch.long, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work(tokens)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, pool=pool):
            loss = work(tokens)
        pool = pool or graph.pool()
        graphs[length] = graph, tokens, loss

    def step(at):
        graph, tokens, loss = graphs[lengths[at % 4]]
        tokens.copy_(torch.randint(0, 50257, tokens.shape, generator=source).pin_memory(), non_blocking=True)
        graph.replay()
        return loss.clone()

    return turns(*((4, 4) if QUICK else (16, 16)), step, model, optimizer)


def resnet_eager():
    model = resnet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    source = torch.Generator().manual_seed(3)

    def step(_):
        size = 32 * int(torch.randint(4, 11, (1,), generator=source))
        images = torch.randn(32, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (32,), generator=source).pin_memory().to(DEVICE, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return turns(*((4, 2) if QUICK else (12, 15)), step)


def resnet_callable():
    """The body by make_graphed_callables, for one size."""
    model = resnet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    sample = torch.randn(32, 3, 192, 192, device=DEVICE).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        graphed = torch.cuda.make_graphed_callables(model, (sample,))

        def step(_):
            images = torch.randn_like(sample)
            loss = F.cross_entropy(graphed(images).float(), torch.arange(32, device=DEVICE))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return turns(*((4, 2) if QUICK else (40, 10)), step)


@torch.no_grad()
def generate_eager():
    """A key-value cache that grows by a word at a time, as long prompts come and go."""
    model = Gpt().to(DEVICE, torch.bfloat16)
    source = torch.Generator().manual_seed(4)
    kept = {}

    def step(at):
        if at % 64 == 0:
            kept["tokens"] = torch.randint(0, 50257, (16, int(torch.randint(16, 512, (1,), generator=source))), generator=source).to(DEVICE)
            kept["past"], kept["start"] = None, 0
        tokens = kept["tokens"]
        logits, kept["past"] = model(tokens, kept["past"], kept["start"])
        kept["start"] += tokens.shape[1]
        kept["tokens"] = logits[:, -1:].argmax(-1)
        return kept["tokens"].sum() if at % 32 == 31 else None

    return turns(*((64, 64) if QUICK else (64, 128)), step)


@torch.no_grad()
def generate_graphs():
    """The step for one word as a graph over buffers that stay."""
    model = Gpt().to(DEVICE, torch.bfloat16)
    torch.manual_seed(5)
    tokens = torch.randint(0, 50257, (16, 1), device=DEVICE)
    past = [(torch.randn(16, 12, 512, 64, device=DEVICE, dtype=torch.bfloat16), torch.randn(16, 12, 512, 64, device=DEVICE, dtype=torch.bfloat16))
            for _ in model.blocks]

    def work():
        logits, _ = model(tokens, past, 512)
        tokens.copy_(logits[:, -1:].argmax(-1))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step(at):
        graph.replay()
        return tokens.sum() if at % 32 == 31 else None

    return turns(*((64, 64) if QUICK else (256, 128)), step, model, past)


def overlap():
    """Time of copies and of compute, each alone and both at once: 0 is one after the other, 1 is all of the shorter hidden."""
    side = torch.cuda.Stream()
    pinned = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
    matrix = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)

    def copies():
        with torch.cuda.stream(side):
            for _ in range(24):
                arrived = pinned.to(DEVICE, non_blocking=True)
                arrived.record_stream(torch.cuda.current_stream())
        del arrived

    def compute():
        for _ in range(24):
            matrix @ matrix

    def time_of(*works):
        torch.cuda.synchronize()
        start = time.perf_counter()
        [work() for work in works]
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def turn():
        alone, both = (time_of(copies), time_of(compute)), time_of(copies, compute)
        return [], (sum(alone) - both) / min(alone)

    [time_of(copies, compute) for _ in range(3)]
    return turn


def compiled():
    """By torch.compile into graphs that share a pool: cudagraph trees."""
    work = torch.compile(lambda x: (x @ x).sin() + 1, mode="reduce-overhead")
    x = torch.eye(64, device=DEVICE)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        result = work(x).clone()
    assert torch.allclose(result, (x @ x).sin() + 1), "wrong numbers"


def refusals():
    """What PyTorch itself answers where it does not know another allocator."""
    answers = {}
    for name, ask in {"torch.cuda.memory_stats": torch.cuda.memory_stats, "torch.cuda.memory_snapshot": torch.cuda.memory_snapshot,
                      "torch.cuda.memory._record_memory_history": lambda: torch.cuda.memory._record_memory_history("all"),
                      "torch.cuda.reset_peak_memory_stats": torch.cuda.reset_peak_memory_stats,
                      "torch.compile(mode=\"reduce-overhead\")": compiled}.items():
        try:
            ask()
            answers[name] = "works"
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return answers


def out_of_memory():
    """The type and the first words of what PyTorch raises, and that it goes on."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
    except Exception as error:
        answer = type(error).__name__, str(error)[:120]
    return [*answer, float(torch.ones(3, device=DEVICE).sum())]


def tell():
    told = {"out of memory": out_of_memory()}
    if tcuda:
        told["refusals"] = refusals()
        text = ctypes.create_string_buffer(1 << 16)
        needed = ctypes.c_size_t()
        assert tcuda.tcuda_memory_summary(text, len(text), ctypes.byref(needed), 0, False) == 0
        told["summary"] = text.value.decode()
    return told


WORKS = {work.__name__: work for work in (gpt_eager, gpt_graphs, resnet_eager, resnet_callable, generate_eager, generate_graphs, overlap)}


def main():
    global tcuda
    if sys.argv[1] == "tcuda":
        import tcuda_torch
        tcuda = tcuda_torch.install(sys.argv[2])
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    turn = None
    for line in sys.stdin:
        word, *rest = line.split()
        answer = {}
        try:
            if word == "begin":
                torch.manual_seed(7)
                reset_peak()
                turn = WORKS[rest[0]]()
            elif word == "turn":
                answer["values"], answer["rate"] = turn()
            elif word == "end":
                answer["reserved"], answer["allocated"] = peaks()
            elif word == "tell":
                answer = tell()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        if word == "end":
            turn = None
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
