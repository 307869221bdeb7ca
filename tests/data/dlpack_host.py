"""examples_c/python/tcuda_dlpack.py on two simulated devices, with tensors of a library that is made up here: one that gives capsules of
DLPack's old kind, or of the versioned one, and counts how many of its tensors are given back.    python3 dlpack_host.py LIBRARY"""

import ctypes
import gc
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples_c/python"))
import tcuda_dlpack as dlpack  # noqa: E402

tcuda = dlpack.Dlpack(sys.argv[1])
passed = failed = 0


def check(what, found, expected):
    global passed, failed
    passed, failed = passed + (found == expected), failed + (found != expected)
    if found != expected:
        print(f"FAILED {what}: {found}, expected {expected}")


class Host:
    """Floats of the host, in one dimension."""

    given_back = 0

    def __init__(self, values, versioned):
        self.values, self.versioned = (ctypes.c_float * len(values))(*values), versioned
        self.shape = ctypes.c_int64(len(values))

    def __dlpack_device__(self):
        return dlpack.CPU, 0

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("an old one")
        head = struct.pack("IIQQQ", 1, 1, 0, 0, 0) if self.versioned else b""
        tensor = struct.pack("QiiiBBHQQQ", ctypes.addressof(self.values), dlpack.CPU, 0, 1, 2, 32, 1, ctypes.addressof(self.shape), 0, 0)
        # The fields are as C aligns them: no gap in either.
        self.managed = ctypes.create_string_buffer(head + tensor + bytes(16))
        name = dlpack.VERSIONED if self.versioned else dlpack.OLD
        return dlpack.capsule_new(ctypes.addressof(self.managed), name, ctypes.cast(Host.gone, ctypes.c_void_p))

    @ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    def gone(capsule):
        Host.given_back += 1


def numbers(tensor):
    """Of a tensor on the CPU, as another library takes it: by a capsule, which it marks as taken."""
    capsule = tensor.__dlpack__(max_version=(1, 0))
    managed = dlpack.capsule_pointer(capsule, dlpack.VERSIONED)
    data, _, _, ndim = struct.unpack("Qiii", ctypes.string_at(managed + dlpack.HEAD, 20))
    shape = ctypes.cast(struct.unpack("Q", ctypes.string_at(managed + dlpack.HEAD + 24, 8))[0], ctypes.POINTER(ctypes.c_int64))
    found = list(ctypes.cast(data, ctypes.POINTER(ctypes.c_float))[: shape[0]])
    dlpack.python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(capsule, dlpack.TAKEN)
    del capsule
    gc.collect()
    check("what was taken is still there", list(ctypes.cast(data, ctypes.POINTER(ctypes.c_float))[: len(found)]), found)
    dlpack.Deleter(ctypes.c_void_p.from_address(managed + 16).value)(managed)
    return ndim, found


def in_use():
    """Bytes on both devices."""
    total = 0
    for device in range(2):
        value = ctypes.c_uint64()
        tcuda.check(tcuda.tcuda.tcuda_memory_allocated(ctypes.byref(value), device))
        total += value.value
    return total


for versioned in (False, True):
    values = [float(at) for at in range(1000)]
    source = Host(values, versioned)
    there = tcuda.broadcast(source, [0, 1])
    check("the source is given back after the call", Host.given_back, 1 + versioned)
    check("where the copies are", [tensor.__dlpack_device__() for tensor in there], [(dlpack.CUDA, 0), (dlpack.CUDA, 1)])
    check("the sum", numbers(tcuda.gather([tcuda.reduce_add(there)], destination=-2)), (1, [2 * value for value in values]))
    check("side by side", numbers(tcuda.gather(there, destination=-2)), (1, values + values))
    check("of one alone it is itself", tcuda.reduce_add(there[:1], 0) is there[0], True)
    # torch.manual_seed(0); torch.rand(5, device="cuda")
    tcuda.manual_seed(0)
    tcuda.uniform(there[0])
    drawn = numbers(tcuda.gather(there[:1], destination=-2))[1]
    check("torch's numbers", [round(value, 4) for value in drawn[:5]], [0.3990, 0.5167, 0.0249, 0.9401, 0.9459])
    # Given to another library that does not take it in the end, and as that library would be used by tcuda.
    capsule = there[0].__dlpack__(stream=1, max_version=(1, 0))
    try:
        tcuda.uniform(there[0])
        check("given away", "no error", "an error")
    except BufferError as error:
        check("given away", "another library" in str(error), True)
    del capsule, there
    gc.collect()
    check("nothing is left", in_use(), 0)

for what, call, wanted in (("numbers on the CPU", lambda: tcuda.uniform(source), "host memory"), ("no such device", lambda: tcuda.broadcast(source, [7]), "7"),
                           ("none", lambda: tcuda.reduce_add([]), "")):
    try:
        call()
        check(what, "no error", "an error")
    except RuntimeError as error:
        check(f"{what}: {error}", bool(str(error)) and wanted in str(error), True)
gc.collect()
check("nothing is left after errors", in_use(), 0)
check("all views are given back", Host.given_back, 4)
try:
    tcuda.broadcast(source, [0])[0].__dlpack__()
    check("without a version", "no error", "an error")
except BufferError:
    passed += 1
print(f"dlpack_host: {passed} passed, {failed} failed")
sys.exit(failed != 0)
