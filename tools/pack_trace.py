#!/usr/bin/env python3
"""Turns a recorded trace into the small form that examples_c/trace.h reads, and back: pack_trace.py pack|unpack FROM TO. With `snapshot`
instead of `pack` FROM is what torch.cuda.memory._dump_snapshot or tcuda_snapshot_write wrote (.pickle or .json) of a program whose history was
recorded:

    torch.cuda.memory._record_memory_history(context=None, max_entries=10**7)
    ...
    torch.cuda.memory._dump_snapshot("program.pickle")

    python3 tools/pack_trace.py snapshot program.pickle program.trace; build/demo/replay program.trace      # after `make demo`

Recorded, little endian: u64 count, then records of u64 id, u64 size, u32 op (0 allocate, 1 free), u32 stream.

Packed: the eight bytes "tcudatr1", then numbers of 7 bits a byte, low bits first, the high bit set on all but the last byte:
count of events, count of streams, count of different sizes, those sizes (most frequent first), then each event:
    2 * rank            frees the block that is number `rank` among the live ones, 0 being the youngest
    2 * index + 3       allocates a block of the size number `index` on the stream in effect (0 at first)
    1, stream           puts another stream into effect; no event
"""

import collections
import io
import json
import pickle
import struct
import sys

MAGIC = b"tcudatr1"


def number(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack(data):
    (count,) = struct.unpack_from("<Q", data)
    events = list(struct.iter_unpack("<QQII", data[8:]))
    if len(events) != count:
        raise ValueError(f"{count} events are announced, {len(events)} are there")
    sizes = [size for size, _ in collections.Counter(size for _, size, op, _ in events if op == 0).most_common()]
    index = {size: at for at, size in enumerate(sizes)}
    out = [MAGIC, number(count), number(1 + max(event[3] for event in events)), number(len(sizes)), *map(number, sizes)]
    live, current = [], 0
    for ident, size, op, stream in events:
        if op == 0:
            if stream != current:
                out += [number(1), number(stream)]
                current = stream
            out.append(number(2 * index[size] + 3))
            live.append((ident, size, stream))
        else:
            rank = live[::-1].index((ident, size, stream))
            out.append(number(2 * rank))
            del live[len(live) - 1 - rank]
    return b"".join(out)


class Plain(pickle.Unpickler):
    """Of a snapshot nothing is called."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is named: this is no snapshot")


def of_snapshot(data, device=0):
    """The recorded form of a device's history: each allocation, and each free once it was done. What was there before is left out."""
    live, streams, out, made = {}, {}, [], 0
    snapshot = json.loads(data) if data.startswith(b"{") else Plain(io.BytesIO(data)).load()
    for entry in snapshot["device_traces"][device]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = (made, entry["size"], streams.setdefault(entry["stream"], len(streams)))
            out.append((*live[entry["addr"]][:2], 0, live[entry["addr"]][2]))
            made += 1
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            ident, size, stream = live.pop(entry["addr"])
            out.append((ident, size, 1, stream))
    if not out:
        raise ValueError("no allocation was recorded")
    return struct.pack("<Q", len(out)) + b"".join(struct.pack("<QQII", *event) for event in out)


def unpack(data):
    """The recorded form; ids count the allocations from 0."""
    if data[:8] != MAGIC:
        raise ValueError("this is no packed trace")
    at = 8

    def take():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    count, _, different = take(), take(), take()
    sizes = [take() for _ in range(different)]
    out, live, stream, made = [struct.pack("<Q", count)], [], 0, 0
    while len(out) <= count:
        token = take()
        if token == 1:
            stream = take()
        elif token % 2:
            live.append((made, sizes[(token - 3) // 2], stream))
            out.append(struct.pack("<QQII", made, live[-1][1], 0, stream))
            made += 1
        else:
            ident, size, of = live.pop(len(live) - 1 - token // 2)
            out.append(struct.pack("<QQII", ident, size, 1, of))
    return b"".join(out)


if __name__ == "__main__":
    ways = {"pack": pack, "unpack": unpack, "snapshot": lambda data: pack(of_snapshot(data))}
    if len(sys.argv) != 4 or sys.argv[1] not in ways:
        sys.exit(__doc__)
    with open(sys.argv[2], "rb") as source:
        result = ways[sys.argv[1]](source.read())
    with open(sys.argv[3], "wb") as target:
        target.write(result)
