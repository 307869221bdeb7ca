#!/usr/bin/env python3
"""tcuda's collectives of one process beside torch.cuda.comm, on all GPUs, which needs torch with CUDA. The kit's run.sh calls it.

    torch_comm.py LIBTCUDA [--quick]

Wall time of a call with all devices synchronised, the median of short turns: every way of src/comm/choice.rs is forced, beside the table's own
choice, torch, NCCL and a plain copy between two devices. tcuda is called as from C (comm_call.c), the others from Python, and the
synchronisation is the same for all. Results are compared with torch's, bit for bit, where torch's own order is defined (without
NCCL). Bandwidth against size goes to $OUT/comm.svg, or comm.svg.
"""

import ctypes
import itertools
import operator
import os
import pathlib
import random
import statistics
import sys
import time

import torch
import torch.cuda.comm
import torch.cuda.nccl

import pictures

QUICK = "--quick" in sys.argv
SIZES = [1 << shift for shift in range(10, 31, 5 if QUICK else 1)]
DEVICES = list(range(torch.cuda.device_count()))
COUNT = len(DEVICES)
SECONDS = 0.12
TURN = 5
SPREADS, SUMS, PIECES = ["kernel", "copies", "ring"], ["kernel", "split"], ["kernel", "copies"]
WAYS = {"broadcast": SPREADS, "broadcast_coalesced": [*SPREADS, "both"], "reduce_add": [*SUMS, "ring"], "reduce_add_coalesced": SUMS, "scatter": PIECES, "gather": PIECES}
SHOWN = ["tcuda", "torch", "nccl", "copy"]

library = ctypes.CDLL([argument for argument in sys.argv[1:] if not argument.startswith("--")][0])
library.tcuda_last_error_message.restype = ctypes.c_char_p
c = ctypes.CDLL(str(pathlib.Path(__file__).resolve().parent.parent / "speed/comm_call.so"))
size_t = ctypes.c_size_t


class CCall(ctypes.Structure):
    """struct call of comm_call.c"""

    _fields_ = [("function", ctypes.c_void_p), ("destroy", ctypes.c_void_p), ("outs", ctypes.c_void_p), ("count", size_t), ("words", size_t * 6)]


def word(argument):
    """As comm_call.c passes it on."""
    if argument is None or isinstance(argument, int):
        return argument or 0
    return argument.value if isinstance(argument, size_t) else ctypes.cast(argument, ctypes.c_void_p).value


class Tensor(ctypes.Structure):
    """tcuda_tensor_t, of floats"""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]  # fmt: skip

    def __init__(self, tensor):
        numbers = lambda values: (ctypes.c_int64 * len(values))(*values)  # noqa: E731
        super().__init__(tensor.data_ptr(), 2, tensor.device.index, tensor.dim(), 2, 32, 1, numbers(tensor.shape), numbers(tensor.stride()), 0)
        self.torchs = tensor


class Managed(ctypes.Structure):
    """tcuda_managed_tensor_t"""

    _fields_ = [("version", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def must(status):
    if status != 0:
        sys.exit(library.tcuda_last_error_message().decode())


class Call:
    """One of tcuda's functions with its arguments, made once; what it gives out is destroyed after each call."""

    def __init__(self, name, count, *arguments):
        self.function, self.arguments = getattr(library, f"tcuda_comm_{name}"), arguments
        self.outs = (ctypes.POINTER(Managed) * count)()
        words = (size_t * 6)(*map(word, arguments))
        self.c = CCall(word(self.function), word(library.tcuda_tensor_destroy), word(self.outs), count, words)
        self.reference = ctypes.byref(self.c)

    def __call__(self):
        must(c.comm_call(self.reference))

    def negate(self):
        ours = [tensor for argument in self.arguments for tensor in getattr(argument, "kept", [])]
        assert ours, self.function
        for tensor in ours:
            tensor.torchs.neg_()
        synchronize()

    def destroy(self):
        for out in self.outs:
            library.tcuda_tensor_destroy(out)

    def results(self):
        """As torch's tensors. What the same call left in that memory before is made wrong first."""
        self.negate()
        self()
        self.negate()
        self.c.count = 0
        must(c.comm_call(self.reference))
        self.c.count = len(self.outs)
        found = []
        for out in self.outs:
            ours = out.contents.tensor
            shape = ours.shape[: ours.ndim]
            strides = ours.strides[: ours.ndim] if ours.strides else list(itertools.accumulate([1, *shape[:0:-1]], operator.mul))[::-1]
            span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
            copy = torch.empty(span, device=ours.device_id)
            torch.cuda.synchronize(ours.device_id)
            must(library.tcuda_copy(ctypes.c_void_p(copy.data_ptr()), ctypes.c_void_p(ours.data + ours.byte_offset), size_t(span * 4), False))
            copy = copy.as_strided(shape, strides)
            found.append(copy)
        self.destroy()
        return found


def tensors(list_of):
    ours = [Tensor(tensor) for tensor in list_of]
    array = (ctypes.POINTER(Tensor) * len(ours))(*(ctypes.pointer(tensor) for tensor in ours))
    array.kept = ours
    return array


def one(list_of):
    """The only one of `tensors`."""
    first = list_of[0]
    first.kept = list_of.kept
    return first


def synchronize():
    must(c.comm_synchronize(library.tcuda_synchronize, COUNT))


def times_of(contenders):
    """{name: seconds} of {name: (way, call)}, the medians. They take turns, so that what the machine does meanwhile meets all alike."""
    times = {name: [] for name in contenders}

    def turn(name, count):
        way, call = contenders[name]
        os.environ["TCUDA_COMM_WAY"] = way
        for _ in range(count):
            start = time.perf_counter()
            call()
            synchronize()
            times[name].append(time.perf_counter() - start)

    for name in contenders:
        turn(name, 3)
        times[name].clear()
    end = time.perf_counter() + SECONDS * len(contenders)
    while True:
        for name in contenders:
            turn(name, TURN)
        done = len(times[next(iter(contenders))])
        if time.perf_counter() > end or done >= 200:
            break
    os.environ["TCUDA_COMM_WAY"] = ""
    return {name: statistics.median(samples) for name, samples in times.items()}


def in_order(inputs):
    """torch's order without NCCL."""
    total = inputs[0].clone()
    for other in inputs[1:]:
        total += other.to(0)
    return total


def cases(size):
    """(name, tcuda's call, torch's call, the results that are right)"""
    count = size // 4
    inputs = [torch.randn(count, device=device) for device in DEVICES]
    pieces = [tensor[: count // COUNT] for tensor in inputs]
    devices = (ctypes.c_int32 * COUNT)(*DEVICES)
    ours, parts, root = tensors(inputs), tensors(pieces), one(tensors(inputs[:1]))
    yield "broadcast", Call("broadcast", COUNT, root, devices, size_t(COUNT)), lambda: torch.cuda.comm.broadcast(inputs[0], DEVICES), inputs[:1] * COUNT
    yield "reduce_add", Call("reduce_add", 1, ours, size_t(COUNT), 0), lambda: torch.cuda.comm.reduce_add(inputs, 0), [in_order(inputs)]
    yield ("scatter", Call("scatter", COUNT, root, devices, size_t(COUNT), None, 0, None), lambda: torch.cuda.comm.scatter(inputs[0], DEVICES),
           list(inputs[0].chunk(COUNT)))  # fmt: skip
    yield ("gather", Call("gather", 1, parts, size_t(COUNT), 0, 0), lambda: torch.cuda.comm.gather(pieces, 0, 0),
           [torch.cat([piece.to(0) for piece in pieces])])  # fmt: skip
    rows = 64 if size >= 1 << 20 else 0
    if rows:
        wide, narrow = inputs[0].view(rows, -1), [piece.view(rows, -1) for piece in pieces if len(piece) % rows == 0]
        yield ("scatter dim 1", Call("scatter", COUNT, one(tensors([wide])), devices, size_t(COUNT), None, 1, None),
               lambda: torch.cuda.comm.scatter(wide, DEVICES, dim=1), list(wide.chunk(COUNT, 1)))  # fmt: skip
        if len(narrow) == COUNT:
            yield ("gather dim 1", Call("gather", 1, tensors(narrow), size_t(COUNT), 1, 0), lambda: torch.cuda.comm.gather(narrow, 1, 0),
                   [torch.cat([piece.to(0) for piece in narrow], 1)])  # fmt: skip


def coalesced():
    generator = random.Random(0)
    model = [torch.randn(generator.choice([64, 256, 768, 3072, 768 * 768, 768 * 3072]), device=0) for _ in range(300)]
    gradients = [[torch.randn_like(tensor, device=device) for tensor in model] for device in DEVICES]
    flat = tensors([tensor for device in gradients for tensor in device])
    devices = (ctypes.c_int32 * COUNT)(*DEVICES)
    size = sum(tensor.numel() * 4 for tensor in model)
    none = size_t(0)
    yield (size, "broadcast_coalesced", Call("broadcast_coalesced", 300 * COUNT, tensors(model), size_t(300), devices, size_t(COUNT), none),
           lambda: torch.cuda.comm.broadcast_coalesced(model, DEVICES), model * COUNT)  # fmt: skip
    sums = [in_order([device[at] for device in gradients]) for at in range(300)]
    yield (size, "reduce_add_coalesced", Call("reduce_add_coalesced", 300, flat, size_t(300), size_t(COUNT), 0, none),
           lambda: torch.cuda.comm.reduce_add_coalesced(gradients, 0), sums)  # fmt: skip


class Report:
    def __init__(self):
        self.wrong, self.compared, self.slower, self.wrongly_chosen, self.bandwidths = 0, 0, [], [], {}

    def compare(self, what, call, expected):
        for at, (found, right) in enumerate(zip(call.results(), expected)):
            self.compared += 1
            right = right.to(found.device)
            if found.shape != right.shape or not torch.equal(found.view(torch.int32), right.contiguous().view(torch.int32)):
                self.wrong += 1
                print(f"DIFFERENT {what}, result {at}", flush=True)

    def row(self, size, name, call, torchs, expected, others=()):
        ways = WAYS[name.split(" ")[0]]
        contenders = {"tcuda": ("", call), "torch": ("", torchs), **{what: ("", other) for what, other in others}, **{way: (way, call) for way in ways}}
        times = times_of(contenders)
        for way in ["", *ways]:
            os.environ["TCUDA_COMM_WAY"] = way
            self.compare(f"{name} of {size} bytes by {way or 'the table'}", call, expected)
        os.environ["TCUDA_COMM_WAY"] = ""
        for what in SHOWN:
            if what in times:
                self.bandwidths.setdefault(name, {}).setdefault(what, {})[size] = size / times[what] / 1e9
        best = min(ways, key=times.get)
        rivals = {what: value for what, value in times.items() if what not in [*ways, "tcuda", "copy"]}
        if times["tcuda"] > 1.02 * min(rivals.values()):
            self.slower.append(f"{name} {size} ({times['tcuda'] / min(rivals.values()):.2f} of the time of {min(rivals, key=rivals.get)})")
        if times["tcuda"] > 1.1 * times[best]:
            self.wrongly_chosen.append(f"{name} {size}: {best}")
        shown = "  ".join(f"{what} {value * 1e6:.1f}" for what, value in times.items())
        print(f"{name:22s} {size:>11d} B  {size / times['tcuda'] / 1e9:7.1f} GB/s  x{times['torch'] / times['tcuda']:.2f}  best {best:7s} us: {shown}", flush=True)


def main():
    print(f"torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {COUNT} of {torch.cuda.get_device_name(0)}")
    print(f"synchronising alone: {times_of({'nothing': ('', lambda: None)})['nothing'] * 1e6:.1f} us")
    report = Report()
    for size in SIZES:
        for name, call, torchs, expected in cases(size):
            others = []
            if name in ("broadcast", "reduce_add"):
                buffers = [torch.randn(size // 4, device=device) for device in DEVICES]
                out = torch.empty_like(buffers[0])
                nccl = {"broadcast": lambda: torch.cuda.nccl.broadcast(buffers), "reduce_add": lambda: torch.cuda.nccl.reduce(buffers, out)}[name]
                others = [("nccl", nccl), ("copy", lambda: buffers[1].copy_(buffers[0]))]
            report.row(size, name, call, torchs, expected, others)
        torch.cuda.empty_cache()
        library.tcuda_empty_cache(-3)
    with open(os.path.join(os.environ.get("OUT", "."), "comm.svg"), "w") as file:
        file.write(pictures.bandwidth(report.bandwidths, SHOWN))
    for size, name, call, torchs, expected in coalesced():
        report.row(size, name, call, torchs, expected)
    for title, lines in (("slower than torch or NCCL", report.slower), ("another way is faster than the table's by a tenth", report.wrongly_chosen)):
        print(f"{title}: {len(lines)}", *lines, sep="\n  ")
    print(f"{report.compared} results beside torch's: {report.compared - report.wrong} passed, {report.wrong} failed")
    return report.wrong == 0


if __name__ == "__main__":
    if COUNT < 2:
        sys.exit("two GPUs are needed")
    torch.cuda.init()
    must(library.tcuda_init(None))
    sys.exit(0 if main() else 1)
