"""RMM's device memory from tcuda: a CallbackMemoryResource, with frees in the order of their streams."""

import rmm

from tcuda_memory import Memory


def install(library=None):
    memory = Memory(library)

    def allocate(size, stream):
        return memory.allocate(size, int(stream.ptr) if hasattr(stream, "ptr") else stream.__cuda_stream__()[1])

    def deallocate(pointer, size, stream):
        handle = int(stream.ptr) if hasattr(stream, "ptr") else stream.__cuda_stream__()[1]
        memory.check(memory.tcuda.tcuda_free_cached_on(pointer, handle or 0x100))

    rmm.mr.set_current_device_resource(rmm.mr.CallbackMemoryResource(allocate, deallocate))
    return memory.tcuda
