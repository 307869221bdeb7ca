"""tcuda's cache of device memory for libraries of Python that take an allocator: what their files here have in common."""

import ctypes
import os

DEFAULT_STREAM = 0x100  # TCUDA_STREAM_DEFAULT(0): the default stream of device 0, whichever is current


def load(library=None):
    tcuda = ctypes.CDLL(library or os.environ.get("TCUDA_LIBRARY", "libtcuda.so"))
    tcuda.tcuda_last_error_message.restype = ctypes.c_char_p
    tcuda.tcuda_malloc_cached.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p]
    tcuda.tcuda_free_cached.argtypes = [ctypes.c_void_p]
    tcuda.tcuda_free_cached_on.argtypes = tcuda.tcuda_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return tcuda


class Memory:
    def __init__(self, library=None):
        self.tcuda = load(library)

    def check(self, status):
        if status:
            text = self.tcuda.tcuda_last_error_message().decode()
            raise (MemoryError if text.startswith("CUDA out of memory") else RuntimeError)(text)

    def allocate(self, size, stream, device=0):
        pointer = ctypes.c_void_p()
        self.check(self.tcuda.tcuda_malloc_cached(ctypes.byref(pointer), size, stream or DEFAULT_STREAM + device))
        return pointer.value or 0

    def free(self, pointer, stream, device=0):
        """Used last on this stream, and before on that of its allocation."""
        self.check(self.tcuda.tcuda_record_stream(pointer, stream or DEFAULT_STREAM + device))
        self.check(self.tcuda.tcuda_free_cached(pointer))
