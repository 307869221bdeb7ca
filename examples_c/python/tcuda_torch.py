"""PyTorch's device memory from tcuda: call install() before anything allocates on a GPU."""

import ctypes
import os

import torch

SETTERS = {"set_record_stream_fn": "record_stream", "set_memory_fraction_fn": "set_memory_fraction", "set_reset_fn": "empty_cache",
           "set_begin_allocate_to_pool": "begin_allocate_to_pool", "set_end_allocate_to_pool_fn": "end_allocate_to_pool",
           "set_release_pool": "release_pool"}


def install(library=os.environ.get("TCUDA_LIBRARY", "libtcuda.so")):
    """The library, for what PyTorch cannot tell of another allocator: tcuda_memory_summary, tcuda_memory_dump_snapshot ..."""
    tcuda = ctypes.CDLL(library)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "tcuda_torch_alloc", "tcuda_torch_free")
    for setter, name in SETTERS.items():
        getattr(allocator.allocator(), setter)(ctypes.cast(getattr(tcuda, "tcuda_torch_" + name), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)
    return tcuda
