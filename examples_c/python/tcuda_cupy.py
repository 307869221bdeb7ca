"""CuPy's device memory from tcuda: call install() first.

CuPy tells its allocator no stream. Memory is for the stream that is current when it is allocated, and what drops the last reference
does so on the stream that used it last: both are known to tcuda, so memory that went from one stream to another is safe.
"""

import cupy

from tcuda_memory import Memory


def install(library=None):
    memory = Memory(library)
    current = cupy.cuda.get_current_stream

    def malloc(size, device):
        return memory.allocate(size, current().ptr, device)

    def free(pointer, device):
        if pointer:
            memory.free(pointer, current().ptr, device)

    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(malloc, free).malloc)
    return memory.tcuda
