"""RMM's callback resource over tcuda: buffers on two streams.    python3 rmm_client.py LIBRARY"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))

import tcuda_rmm  # noqa: E402

tcuda = tcuda_rmm.install(sys.argv[1])
import rmm  # noqa: E402
from rmm.pylibrmm.stream import Stream  # noqa: E402

a, b = Stream(), Stream()
wrong = 0
for at in range(300):
    first = rmm.DeviceBuffer.to_device(bytes([at % 256]) * (1 << 20), stream=a)
    second = rmm.DeviceBuffer(size=3 << 20, stream=b)
    wrong += first.tobytes(stream=a) != bytes([at % 256]) * (1 << 20)
    del first, second
made = ctypes.c_int64()
assert tcuda.tcuda_memory_stat_get(ctypes.byref(made), 0, b"allocation.all.allocated") == 0
print(f"rmm: 300 rounds, {wrong} wrong, {made.value} allocations by tcuda")
sys.exit(wrong != 0 or made.value < 600)
