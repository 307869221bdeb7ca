"""A synthetic serving load as a trace: 4 streams, bursts that shift between them, each a transformer's forward pass over requests of
different lengths, with a KV cache that lives for a random number of bursts. `serving_trace.py FILE` writes it in the recorded form of
tools/pack_trace.py. It is the same at each call."""

import random
import struct
import sys

HIDDEN, LAYERS, STREAMS, BURSTS = 4096, 32, 4, 160


def events():
    """(id, size, op, stream) of each event; op 1 frees."""
    chance = random.Random(3)
    out, live = [], {}

    def allocate(size, stream):
        ident = len(live) + 1
        live[ident] = (int(size), stream)
        out.append((ident, int(size), 0, stream))
        return ident

    def free(ident):
        size, stream = live[ident]
        out.append((ident, size, 1, stream))

    weights = [allocate(12 * HIDDEN * HIDDEN * 2, 0) for _ in range(LAYERS)]
    caches = []
    for burst in range(BURSTS):
        stream, scale = chance.randrange(STREAMS), chance.choice((1, 1, 2, 4))
        for _ in range(chance.randrange(1, 6)):
            length = chance.randrange(64, 8192) * scale
            cache = [allocate(length * HIDDEN * 2 // 4, stream) for _ in range(2 * LAYERS)]
            caches.append((burst + chance.randrange(1, 10), cache))
            for _ in range(LAYERS):
                hidden = allocate(length * HIDDEN * 2, stream)
                attention = allocate(length * 3 * HIDDEN * 2 // 2, stream)
                inner = allocate(length * 4 * HIDDEN * 2, stream)
                free(attention)
                result = allocate(length * HIDDEN * 2, stream)
                for block in (hidden, inner, result):
                    free(block)
        for until, cache in caches:
            if until <= burst:
                for block in cache:
                    free(block)
        caches = [one for one in caches if one[0] > burst]
    for block in [block for _, cache in caches for block in cache] + weights:
        free(block)
    return out


def recorded():
    made = events()
    return struct.pack("<Q", len(made)) + b"".join(struct.pack("<QQII", *event) for event in made)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], "wb") as target:
        target.write(recorded())
