"""torch's cache of pinned memory: what a program in Python pays for torch.empty(..., pin_memory=True)."""

import torch

import anchor_python


def malloc(size):
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


if __name__ == "__main__":
    torch.cuda.init()
    malloc(512)
    anchor_python.serve({
        "pair": lambda size: anchor_python.pair(malloc, int(size)),
        "set": lambda count, most: anchor_python.working_set(malloc, int(count), int(most)),
    }, RuntimeError, torch._C._host_emptyCache)  # out of pinned memory is an error of CUDA as any other
