"""CuPy over tcuda: arrays that go from one stream to another and are dropped there, beside the host's numbers.

    python3 cupy_client.py LIBRARY
"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))

import cupy  # noqa: E402
import tcuda_cupy  # noqa: E402

tcuda = tcuda_cupy.install(sys.argv[1])
a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
size, wrong = 4 << 20, 0
slow = cupy.ones((2048, 2048), dtype=cupy.float32)
cupy.cuda.Device().synchronize()
for at in range(300):
    with a:
        made = cupy.full(size, at, dtype=cupy.int32)
        ready = a.record()
    with b:
        b.wait_event(ready)
        slow @ slow  # what comes next is late
        got = made + 1
        del made
    with a:
        # It may have the same memory, but not before b has read it.
        other = cupy.full(size, -1, dtype=cupy.int32)
    with b:
        wrong += int((got != at + 1).sum())
        del got
    with a:
        wrong += int((other != -1).sum())
        del other
held, live = ctypes.c_uint64(), ctypes.c_uint64()
assert tcuda.tcuda_max_memory_reserved(ctypes.byref(held), 0) == 0
del slow
cupy.cuda.Device().synchronize()
assert tcuda.tcuda_memory_allocated(ctypes.byref(live), 0) == 0
try:
    cupy.empty(1 << 50, dtype=cupy.uint8)
    refused = "not at all"
except Exception as error:
    refused = f"{type(error).__name__}: {str(error)[:60]}"
print(f"cupy: 300 rounds over two streams, {wrong} wrong numbers, at most {held.value >> 20} MiB reserved, {live.value} bytes live at the end")
print(f"cupy: out of memory is {refused}")
sys.exit(wrong != 0)
