"""Tensors of PyTorch, CuPy, NumPy and others for tcuda, and tcuda's for them: capsules of DLPack, by ctypes, with no copy.

    tcuda = tcuda_dlpack.Dlpack("libtcuda.so")
    tcuda.manual_seed(42)
    tcuda.uniform(tensor)                                        # in place, the numbers that torch.cuda draws
    total = torch.from_dlpack(tcuda.reduce_add(tensors))         # one tensor on each device

Both sides work on their current streams, which one tells the other as DLPack has it.
"""

import ctypes

from tcuda_memory import Memory

CPU, CUDA = 1, 2  # DLDeviceType
CURRENT_STREAM = 0x80  # TCUDA_STREAM_CURRENT
OLD, VERSIONED, TAKEN = b"dltensor", b"dltensor_versioned", b"used_dltensor_versioned"
HEAD = 32  # bytes of tcuda_managed_tensor_t (DLManagedTensorVersioned) before its tensor; in the old kind there are none


def python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


Object, Pointer = ctypes.py_object, ctypes.c_void_p
capsule_new = python("PyCapsule_New", Object, Pointer, ctypes.c_char_p, Pointer)
capsule_pointer = python("PyCapsule_GetPointer", Pointer, Object, ctypes.c_char_p)
capsule_is = python("PyCapsule_IsValid", ctypes.c_int, Object, ctypes.c_char_p)
# For a capsule that is about to go, of which no reference may be taken.
going_pointer = python("PyCapsule_GetPointer", Pointer, Pointer, ctypes.c_char_p)
going_is = python("PyCapsule_IsValid", ctypes.c_int, Pointer, ctypes.c_char_p)
Deleter = ctypes.CFUNCTYPE(None, Pointer)


@ctypes.PYFUNCTYPE(None, Pointer)
def nobody_took_it(capsule):
    if going_is(capsule, VERSIONED):
        managed = going_pointer(capsule, VERSIONED)
        Deleter(Pointer.from_address(managed + 16).value)(managed)


class View:
    """A tcuda_tensor_t of another library's tensor, which stays for as long as this does."""

    def __init__(self, memory, exporter):
        kind, index = exporter.__dlpack_device__()
        options = {"stream": memory.stream(index)} if kind == CUDA else {}
        try:
            self.capsule = exporter.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # it knows nothing of versions
            self.capsule = exporter.__dlpack__(**options)
        if capsule_is(self.capsule, VERSIONED):
            self._as_parameter_ = Pointer(capsule_pointer(self.capsule, VERSIONED) + HEAD)
        else:
            self._as_parameter_ = Pointer(capsule_pointer(self.capsule, OLD))


class Tensor:
    """A tensor of tcuda's, for any library's from_dlpack, once."""

    def __init__(self, memory, managed):
        self.memory, self.managed = memory, managed

    def __del__(self):
        if self.managed:
            self.memory.tcuda.tcuda_tensor_destroy(self.managed)

    def view(self):
        """Its tcuda_tensor_t."""
        if not self.managed:
            raise BufferError("another library has this tensor now")
        return Pointer(self.managed.value + HEAD)

    def __dlpack_device__(self):
        return tuple((ctypes.c_int32 * 2).from_address(self.view().value + 8))

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        place = self.__dlpack_device__()
        if max_version is None or max_version[0] < 1 or copy or dl_device not in (None, place):
            raise BufferError("tcuda gives tensors out as they are, and with a version of DLPack")
        if place[0] == CUDA and stream not in (None, -1):
            self.memory.wait(stream, place[1])
        capsule = capsule_new(self.managed, VERSIONED, ctypes.cast(nobody_took_it, Pointer))
        self.managed = None
        return capsule


class Dlpack(Memory):
    def __init__(self, library=None):
        super().__init__(library)
        self.tcuda.tcuda_tensor_destroy.argtypes = [Pointer]

    def stream(self, device):
        """The current stream of a device, as DLPack names it: 1 is the default one."""
        current, native = Pointer(), Pointer()
        self.check(self.tcuda.tcuda_current_stream(ctypes.byref(current), ctypes.c_int32(device)))
        self.check(self.tcuda.tcuda_stream_native(current, ctypes.byref(native)))
        return native.value or 1

    def wait(self, stream, device):
        """Another library's stream for tcuda's current one."""
        other = Pointer(0x100 + device if stream == 1 else stream)  # TCUDA_STREAM_DEFAULT(device)
        mine = self.stream(device)
        self.check(self.tcuda.tcuda_stream_wait_stream(other, Pointer(0x100 + device if mine == 1 else mine)))

    def view(self, tensor):
        return tensor.view() if isinstance(tensor, Tensor) else View(self, tensor)

    def result(self, managed, inputs):
        """A result; where it is one of the inputs itself, that one."""
        origin, address = ctypes.c_int32(), Pointer(managed)
        self.check(self.tcuda.tcuda_tensor_origin(address, ctypes.byref(origin)))
        made = Tensor(self, address)
        return made if origin.value == 0 else inputs[0]  # TCUDA_TENSOR_NEW

    def manual_seed(self, seed):
        self.check(self.tcuda.tcuda_manual_seed_all(ctypes.c_uint64(seed)))

    def uniform(self, tensor, low=0.0, high=1.0, generator=None):
        """Draws into a tensor on a device: Tensor.uniform_."""
        view = self.view(tensor)
        self.check(self.tcuda.tcuda_random_uniform(view, ctypes.c_double(low), ctypes.c_double(high), generator, Pointer(CURRENT_STREAM)))

    def broadcast(self, tensor, devices):
        """torch.cuda.comm.broadcast"""
        outs, view = (Pointer * len(devices))(), self.view(tensor)
        self.check(self.tcuda.tcuda_comm_broadcast(outs, view, (ctypes.c_int32 * len(devices))(*devices), ctypes.c_size_t(len(devices))))
        return [self.result(out, [tensor]) for out in outs]

    def reduce_add(self, tensors, destination=-1):
        """torch.cuda.comm.reduce_add"""
        return self.joined(self.tcuda.tcuda_comm_reduce_add, tensors, ctypes.c_int32(destination))

    def gather(self, tensors, dim=0, destination=-1):
        """torch.cuda.comm.gather; destination -2 is the CPU."""
        return self.joined(self.tcuda.tcuda_comm_gather, tensors, ctypes.c_int32(dim), ctypes.c_int32(destination))

    def joined(self, function, tensors, *arguments):
        out, views = Pointer(), [self.view(tensor) for tensor in tensors]
        pointers = (Pointer * len(views))(*[getattr(view, "_as_parameter_", view) for view in views])
        self.check(function(ctypes.byref(out), pointers, ctypes.c_size_t(len(views)), *arguments))
        return self.result(out.value, tensors)
