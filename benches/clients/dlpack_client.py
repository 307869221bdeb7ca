"""Capsules of torch's tensors in tcuda's generators and collectives, beside torch's own answers, bit for bit.    python3 dlpack_client.py LIBRARY"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))

import torch  # noqa: E402
import torch.cuda.comm  # noqa: E402
from tcuda_dlpack import Dlpack  # noqa: E402

tcuda = Dlpack(sys.argv[1])
DEVICES = list(range(torch.cuda.device_count()))
wrong = 0


def check(what, found, expected):
    global wrong
    same = found.device == expected.device and found.dtype == expected.dtype and torch.equal(found, expected)
    wrong += not same
    print(f"{what:<60}{'the same' if same else 'DIFFERS'}")


def in_use():
    value = ctypes.c_uint64()
    tcuda.check(tcuda.tcuda.tcuda_memory_allocated(ctypes.byref(value), 0))
    return value.value


def layouts(dtype):
    zeros = lambda *shape: torch.zeros(*shape, dtype=dtype, device="cuda")  # noqa: E731
    return {"1000003": zeros(1000003), "transposed": zeros(301, 407).t(), "every third": zeros(30001)[1::3], "none": zeros(0), "one": zeros(())}


for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    ours, theirs = layouts(dtype), layouts(dtype)
    torch.manual_seed(42)
    tcuda.manual_seed(42)
    for name in ours:
        check(f"uniform, {str(dtype)[6:]}, {name}", (tcuda.uniform(ours[name], -1, 3), ours[name])[1], theirs[name].uniform_(-1, 3))

source = torch.randn(123, 457, device="cuda")
copies = [torch.from_dlpack(copy) for copy in tcuda.broadcast(source, DEVICES)]
for found, expected in zip(copies, torch.cuda.comm.broadcast(source, DEVICES)):
    check(f"broadcast to {expected.device}", found, expected)
check("of its own device: where it lies", torch.tensor(copies[0].data_ptr()), torch.tensor(source.data_ptr()))
from_host = torch.from_dlpack(tcuda.broadcast(source.cpu(), [0])[0])
check("broadcast from the CPU", from_host, source)

parts = [torch.randn(64, 1000, device=f"cuda:{device}") for device in DEVICES] + [torch.randn(64, 1000, device="cuda:0")]
total = parts[-1].clone()  # the last one on the destination comes first
for part in parts[:-1]:
    total += part.to("cuda:0")
check("reduce_add", torch.from_dlpack(tcuda.reduce_add(parts, 0)), total)
check("gather", torch.from_dlpack(tcuda.gather(parts, 1, 0)), torch.cat([part.to("cuda:0") for part in parts], 1))
check("gather to the CPU", torch.from_dlpack(tcuda.gather(parts, 0, -2)), torch.cat([part.cpu() for part in parts]))

# On a stream that is current for both, behind work that takes its time.
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    tcuda.check(tcuda.tcuda.tcuda_set_stream(ctypes.c_void_p(side.cuda_stream)))
    torch.cuda._sleep(100_000_000)
    late = torch.full((1 << 20,), 7.0, device="cuda")
    doubled = torch.from_dlpack(tcuda.reduce_add([late, late], 0))
    check("behind work of a stream of torch's", doubled + 0, torch.full((1 << 20,), 14.0, device="cuda"))
    tcuda.check(tcuda.tcuda.tcuda_set_stream(ctypes.c_void_p(0x100)))  # TCUDA_STREAM_DEFAULT(0)
# Each on a stream of its own: the capsule tells one of the other.
torch.cuda.synchronize()
with torch.cuda.stream(side):
    torch.cuda._sleep(100_000_000)
    late = torch.full((1 << 20,), 5.0, device="cuda")
    doubled = torch.from_dlpack(tcuda.reduce_add([late, late], 0))
    check("from a stream of torch's to tcuda's and back", doubled + 0, torch.full((1 << 20,), 10.0, device="cuda"))

torch.cuda.synchronize()
del copies, doubled, from_host, found
left = in_use()
print(f"dlpack: {wrong} differ, {left} bytes of tcuda's are left")
sys.exit(wrong != 0 or left != 0)
