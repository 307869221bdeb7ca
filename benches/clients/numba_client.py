"""Numba over tcuda: kernels over arrays that come and go.    python3 numba_client.py LIBRARY"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))

import numpy  # noqa: E402
import tcuda_numba  # noqa: E402

tcuda = tcuda_numba.install(sys.argv[1])
from numba import cuda  # noqa: E402


@cuda.jit
def twice(out, values):
    at = cuda.grid(1)
    if at < values.size:
        out[at] = 2 * values[at]


wrong = 0
for at in range(100):
    values = numpy.arange(at * 1000 + 1, dtype=numpy.float32)
    there = cuda.to_device(values)
    out = cuda.device_array_like(there)
    twice[(values.size + 255) // 256, 256](out, there)
    wrong += int((out.copy_to_host() != 2 * values).sum())
made = ctypes.c_int64()
assert tcuda.tcuda_memory_stat_get(ctypes.byref(made), 0, b"allocation.all.allocated") == 0
info = cuda.current_context().get_memory_info()
print(f"numba: 100 kernels, {wrong} wrong numbers, {made.value} allocations by tcuda, {info.free >> 20} MiB free")
sys.exit(wrong != 0 or made.value < 200)
