#!/usr/bin/env python3
"""tcuda's random numbers beside torch's, on a GPU, which needs torch with CUDA. The kit's run.sh calls it.

    torch_random.py LIBTCUDA compare    every bit
    torch_random.py LIBTCUDA bench      the time: device events, median, memset beside both
    torch_random.py LIBTCUDA start      the first call of each kind, which has the driver compile a kernel (CUDA_CACHE_DISABLE=1: always)
"""

import ctypes
import itertools
import statistics
import sys
import time

import torch


class Tensor(ctypes.Structure):
    """tcuda_tensor_t"""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]  # fmt: skip

    def __init__(self, tensor):
        numbers = lambda values: (ctypes.c_int64 * max(len(values), 1))(*values)  # noqa: E731
        code, bits = DTYPES[tensor.dtype]
        super().__init__(tensor.data_ptr(), 2, tensor.device.index or 0, tensor.dim(), code, bits, 1, numbers(tensor.shape),
                         numbers(tensor.stride()), 0)  # fmt: skip


DTYPES = {torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.uint8: (1, 8),
          torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64), torch.bool: (6, 8),
          torch.complex64: (5, 64), torch.complex128: (5, 128)}  # fmt: skip
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]

library = ctypes.CDLL(sys.argv[1])
library.tcuda_last_error_message.restype = ctypes.c_char_p
U64 = ctypes.c_uint64


def must(status):
    if status != 0:
        sys.exit(library.tcuda_last_error_message().decode())


class Generator:
    def __init__(self, seed=0):
        self.handle = ctypes.c_void_p()
        must(library.tcuda_generator_create(ctypes.byref(self.handle), -1))
        must(library.tcuda_generator_manual_seed(self.handle, U64(seed % 2**64)))

    def offset(self):
        offset = U64()
        must(library.tcuda_generator_get_offset(self.handle, ctypes.byref(offset)))
        return offset.value


class Call:
    """An operation with its parameters: torch's and ours."""

    def __init__(self, name, torchs, *values, integers=False):
        self.name, self.torchs, self.values = name, torchs, values
        self.function = getattr(library, f"tcuda_random_{name}")
        self.arguments = [(ctypes.c_int64 if integers else ctypes.c_double)(value) for value in values]

    def ours(self, tensor, generator, stream=None):
        must(self.function(ctypes.byref(tensor), *self.arguments, generator.handle, stream))

    def __str__(self):
        return f"{self.name} {' '.join(map(str, self.values))}".strip()


def calls_of(dtype):
    """What both can do with the type."""
    if dtype in FLOATS + COMPLEX:
        yield Call("uniform", lambda t: t.uniform_(0, 1), 0, 1)
        yield Call("uniform", lambda t: t.uniform_(-2.5, 7), -2.5, 7)
        yield Call("uniform", lambda t: t.uniform_(3, 3), 3, 3)
        for a, b in ((-0.9, 0.1), (-1000, 3), (-1000, 0.3)):
            yield Call("uniform", lambda t, a=a, b=b: t.uniform_(a, b), a, b)
        yield Call("normal", lambda t: t.normal_(0, 1), 0, 1)
        yield Call("normal", lambda t: t.normal_(-3, 0.3), -3, 0.3)
    if dtype in FLOATS:
        yield Call("normal", lambda t: t.normal_(1, 0), 1, 0)
        yield Call("log_normal", lambda t: t.log_normal_(1, 2), 1, 2)
        yield Call("log_normal", lambda t: t.log_normal_(-60, 30), -60, 30)
        yield Call("cauchy", lambda t: t.cauchy_(0, 1), 0, 1)
        yield Call("cauchy", lambda t: t.cauchy_(-2, 5), -2, 5)
        yield Call("exponential", lambda t: t.exponential_(1), 1)
        yield Call("exponential", lambda t: t.exponential_(0.037), 0.037)
    if dtype not in COMPLEX:
        for p in (0.0, 0.3, 1.0):
            yield Call("bernoulli", lambda t, p=p: t.bernoulli_(p), p)
        yield Call("integers_all", lambda t: t.random_())
    if dtype not in COMPLEX + [torch.bool]:
        for p in (0.3, 0.003, 0.9, 1e-8, 1 - 1e-9):
            yield Call("geometric", lambda t, p=p: t.geometric_(p), p)
        yield Call("integers", lambda t: t.random_(0, 100), 0, 100, integers=True)
        yield Call("integers_from", lambda t: t.random_(3, None), 3, integers=True)
    if dtype in (torch.int64, torch.int32, torch.float64, torch.float32):
        for low, high in ((-7, 2**31 - 1), (5, 6), (0, 2**28), (0, 2**28 - 1)):
            yield Call("integers", lambda t, a=low, b=high: t.random_(a, b), low, high, integers=True)
    if dtype in (torch.int64, torch.float64, torch.float32):
        for low, high in ((-5, 2**40), (0, 2**33), (-(2**63), 2**63 - 1), (0, 2**63 - 1), (-(2**40) + 1, 2**62)):
            yield Call("integers", lambda t, a=low, b=high: t.random_(a, b), low, high, integers=True)
        yield Call("integers_from", lambda t: t.random_(-(2**63), None), -(2**63), integers=True)


def layouts(dtype):
    """Tensors of many layouts, all zero."""
    zeros = lambda *shape: torch.zeros(*shape, dtype=dtype, device="cuda")  # noqa: E731
    yield "5000011", zeros(5_000_011)
    for count in (1, 2, 3, 5, 7, 8, 255, 257, 1000, 4099, 270_335, 270_336, 270_339, 1_081_345):
        yield f"{count}", zeros(count)
    yield "transposed", zeros(301, 407).t()
    yield "permuted", zeros(31, 40, 29).permute(2, 0, 1)
    yield "columns", zeros(1000, 33)[:, :17]
    yield "rows of a transposed", zeros(100, 130).t()[5:90:2]
    yield "every third", zeros(30_001)[::3]
    yield "unaligned", zeros(30_001)[1:]
    yield "channels last", zeros(3, 8, 21, 19).to(memory_format=torch.channels_last)
    yield "slices of a permuted", zeros(12, 50, 70).permute(1, 2, 0)[3:40, ::2, 1:9]
    yield "single", zeros(1, 1, 1)
    yield "scalar", zeros(())


def bits(tensor):
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[tensor.element_size()])


class Comparison:
    def __init__(self):
        self.count, self.wrong = 0, 0

    def add(self, what, expected, found, offsets):
        differ = int((bits(expected) != bits(found)).sum())
        self.count += 1
        if differ or offsets[0] != offsets[1]:
            self.wrong += 1
            if self.wrong <= 20:
                print(f"DIFFERENT {what}: {differ} of {expected.numel()} elements; offsets {offsets}", flush=True)


def twin(tensor):
    """Other memory with the same strides."""
    base = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype, device="cuda")
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def compare():
    result = Comparison()
    torchs = torch.cuda.default_generators[0]
    for dtype, seed in itertools.product(DTYPES, (0, 42, -1, 2**63 + 12_345)):
        torch.cuda.manual_seed(seed)
        ours = Generator(seed)
        for layout, expected in layouts(dtype):
            found = twin(expected)
            tensor = Tensor(found)
            for call in calls_of(dtype):
                call.torchs(expected)
                call.ours(tensor, ours)
                result.add(f"{call} {dtype} {layout} seed {seed}", expected, found, (torchs.get_offset(), ours.offset()))
    print(f"fills: {result.count} compared", flush=True)
    # Probabilities from a tensor, of shapes that are broadcast and orders that differ.
    for dtype, p_type, seed in itertools.product([*FLOATS, *INTEGERS, torch.bool], FLOATS, (0, 7)):
        torch.cuda.manual_seed(seed)
        ours = Generator(seed)
        for layout, expected in layouts(dtype):
            shape = expected.shape
            chances = [torch.rand(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(9)).to(p_type)]
            if len(shape) > 1:
                chances += [chances[0].transpose(0, -1).contiguous().transpose(0, -1), chances[0][..., :1], chances[0][:1]]
            for p in chances:
                found = twin(expected)
                expected.bernoulli_(p)
                must(library.tcuda_random_bernoulli_tensor(ctypes.byref(Tensor(found)), ctypes.byref(Tensor(p)), ours.handle, None))
                result.add(f"bernoulli of {p_type} {tuple(p.shape)} {dtype} {layout}", expected, found, (torchs.get_offset(), ours.offset()))
    print(f"with probabilities: {result.count} compared", flush=True)
    # Beyond 32 bits: torch cuts, and skips numbers.
    for name, dtype, shape, width in (
        ("integers 0 100", torch.uint8, (2**31 + 5,), None),
        ("bernoulli 0.3", torch.bool, (2**31 + 5,), None),
        ("uniform 0 1", torch.float32, (2**29 + 1,), None),
        ("uniform 0 1", torch.float32, (2**15, 2**15 + 8), 2**15),
        ("normal 0 1", torch.float16, (3, 2**29 + 7), None),
        ("exponential 1", torch.float64, (2**28 + 3,), None),
    ):
        torch.cuda.manual_seed(3)
        ours = Generator(3)
        expected, found = (torch.zeros(shape, dtype=dtype, device="cuda")[..., :width] for _ in range(2))
        call = next(call for call in calls_of(dtype) if str(call) == name)
        call.torchs(expected)
        call.ours(Tensor(found), ours)
        result.add(f"{call} {dtype} {shape}", expected, found, (torchs.get_offset(), ours.offset()))
        del expected, found
    torch.cuda.manual_seed(3)
    ours = Generator(3)
    expected, found = (torch.zeros(2**30 + 77, dtype=torch.uint8, device="cuda") for _ in range(2))
    p = torch.rand(2**30 + 77, device="cuda", generator=torch.Generator("cuda").manual_seed(9))
    expected.bernoulli_(p)
    must(library.tcuda_random_bernoulli_tensor(ctypes.byref(Tensor(found)), ctypes.byref(Tensor(p)), ours.handle, None))
    result.add("bernoulli of many probabilities", expected, found, (torchs.get_offset(), ours.offset()))
    del expected, found, p
    order = torch.zeros(2**30 + 77, dtype=torch.int32, device="cuda")
    must(library.tcuda_random_permutation(ctypes.byref(Tensor(order)), ours.handle, None))
    seen = torch.zeros(order.numel(), dtype=torch.uint8, device="cuda")
    for part in order.split(2**28):
        seen[part.long()] = 1
    result.add("a long permutation", torch.ones_like(seen), seen, (0, 0))
    del order, seen
    print(f"{result.count} tensors beside torch {torch.__version__} on {torch.cuda.get_device_name()}: {result.count - result.wrong} passed, {result.wrong} failed")
    return result.wrong == 0


def time_of(call, repeats):
    """Microseconds on the device, the median."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / repeats)
    return statistics.median(times)


SHOWN = ["uniform 0 1", "normal 0 1", "bernoulli 0.3", "exponential 1", "log_normal 1 2", "cauchy 0 1", "geometric 0.3", "integers 0 100"]


def bench():
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; GB/s of the tensor, device events, median of 15")
    print("| what | type | MiB | torch | tcuda | tcuda / torch | tcuda / memset |")
    print("|---|---|---:|---:|---:|---:|---:|")
    generator = Generator(1)
    for mebibytes in (2048, 64, 1):
        raw = torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")
        repeats = {2048: 1, 64: 20, 1: 100}[mebibytes]
        memset = time_of(raw.zero_, repeats)
        size = mebibytes * 1.048576
        print(f"| memset | | {mebibytes} | {size / memset * 1e3:.0f} | | | |")
        for wanted, dtype in itertools.product(SHOWN, [*FLOATS, torch.int32, torch.int64, torch.uint8, torch.bool]):
            call = next((call for call in calls_of(dtype) if str(call) == wanted), None)
            if call is None or (mebibytes < 2048 and dtype not in FLOATS):
                continue
            tensor = raw.view(dtype)
            view = Tensor(tensor)
            torchs = time_of(lambda: call.torchs(tensor), repeats)
            ours = time_of(lambda: call.ours(view, generator), repeats)
            name = str(dtype).removeprefix("torch.")
            print(f"| {call} | {name} | {mebibytes} | {size / torchs * 1e3:.0f} | {size / ours * 1e3:.0f} | {torchs / ours:.2f} | {memset / ours:.3f} |", flush=True)
        for dtype, call in ((torch.int64, "permutation"),):
            tensor = raw.view(dtype)
            view = Tensor(tensor)
            torchs = time_of(lambda: torch.randperm(tensor.numel(), device="cuda", out=tensor), 1)
            ours = time_of(lambda: must(library.tcuda_random_permutation(ctypes.byref(view), generator.handle, None)), 1)
            print(f"| {call} | int64 | {mebibytes} | {size / torchs * 1e3:.0f} | {size / ours * 1e3:.0f} | {torchs / ours:.2f} | {memset / ours:.3f} |", flush=True)
        del raw
    return True


def start():
    tensors = [torch.empty(1000, dtype=dtype, device="cuda") for dtype in (torch.float32, torch.float16, torch.float64)]
    generator = Generator(1)
    for call, tensor in itertools.product(map(str, ["uniform 0 1", "normal 0 1", "exponential 1", "integers 0 100"]), tensors):
        found = next(c for c in calls_of(tensor.dtype) if str(c) == call)
        view = Tensor(tensor)
        torch.cuda.synchronize()
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            found.ours(view, generator)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        print(f"{call} {tensor.dtype}: {times[0]:.1f} ms, then {times[1]:.3f} ms", flush=True)
    return True


if __name__ == "__main__":
    torch.cuda.init()
    must(library.tcuda_init(None))
    sys.exit(0 if {"compare": compare, "bench": bench, "start": start}[sys.argv[2]]() else 1)
