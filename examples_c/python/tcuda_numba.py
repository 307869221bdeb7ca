"""Numba's device memory from tcuda, by its external memory management: call install() before the first use of a device."""

import ctypes
import os

from numba import cuda
from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

try:
    from cuda.bindings.driver import CUdeviceptr
except ImportError:
    CUdeviceptr = int

from tcuda_memory import Memory

memory = None


class TcudaManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    def memalloc(self, size):
        device = self.context.device.id
        address = memory.allocate(size, None, device)
        # What cuMemAlloc gives, in the binding that Numba uses.
        pointer = CUdeviceptr(address) if getattr(cuda.cudadrv.driver, "USE_NV_BINDING", True) else ctypes.c_uint64(address)

        def give_back():
            # Numba's arrays may be in use on any of its streams: behind the default stream, which waits for them.
            memory.free(address, None, device)

        return MemoryPointer(self.context, pointer, size, finalizer=give_back)

    def get_memory_info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory.check(memory.tcuda.tcuda_mem_get_info(ctypes.byref(free), ctypes.byref(total), self.context.device.id))
        return MemoryInfo(free=free.value, total=total.value)

    def initialize(self):
        super().initialize()

    def reset(self):
        super().reset()

    @property
    def interface_version(self):
        return 1


def install(library=None):
    global memory
    memory = Memory(library or os.environ.get("TCUDA_LIBRARY"))
    cuda.set_memory_manager(TcudaManager)
    return memory.tcuda
