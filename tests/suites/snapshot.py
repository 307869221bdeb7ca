"""Snapshots as Python sees them: recorded runs are replayed with their history, and what is written in the middle is read by Python's own
pickle and json, and by torch's module torch.cuda._memory_viz, whose figures have to be the statistics. That module is taken from an
installed torch, from what `make bench` fetched, or from PyPI (530 MB, once); where it cannot be had, its checks are named as absent.
"""

import base64
import importlib.util
import io
import json
import pickle
import pickletools
import re
import struct
import sys

import kit
import need
import pack_trace

TRACES = ("prefetch_streams", "resnet_varsize", "gpt_varlen")
# What torch's page of the viewer reads too: nothing is named or called.
OPCODES = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "SETITEMS", "EMPTY_LIST", "APPENDS", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
           "NEWTRUE", "NEWFALSE", "TUPLE2", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}
SEGMENT = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type", "segment_pool_id",
           "is_expandable", "frames", "blocks"}
BLOCK = {"address", "size", "requested_size", "state", "stream", "user_metadata", "frames"}
ENTRY = {"action", "size", "stream", "time_us", "compile_context", "user_metadata", "pool_id", "frames"}
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments", "pinned_num_register_threads",
            "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "roundup_power2_divisions"}
# The checks that torch's module makes of a trace, and of the example.
OF_TORCH = ("stats", "trace", "trace_plot", "segment_plot", "flame graph")


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} is named")


def as_json(value):
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return {key: as_json(part) for key, part in value.items()} if isinstance(value, dict) else value


def pictured(page):
    """What is embedded in a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def read(suite, name, folder):
    """The snapshot that was written three times, once each way."""
    raw = (folder / f"{name}.pickle").read_bytes()
    used = {opcode.name for opcode, _, _ in pickletools.genops(raw)}
    suite.check(f"{name}: protocol 2, and no opcode but those for plain values", raw[:2] == b"\x80\x02" and "SETITEMS" in used and used <= OPCODES, used - OPCODES)
    snapshot = Plain(io.BytesIO(raw)).load()
    suite.check(f"{name}: JSON says the same", json.loads((folder / f"{name}.json").read_text()) == as_json(snapshot))
    page = (folder / f"{name}.html").read_text()
    shown = pictured(page)
    lengths = [[len(column) for column in device["trace"].values()] for device in shown["devices"]]
    right = [[len(trace)] * 6 for trace in snapshot["device_traces"]]
    suite.check(f"{name}: the page has each entry, and fetches nothing", lengths == right and not re.search(r"https?:|src=|@import", page), lengths)
    return snapshot


def structure(suite, name, snapshot, figures):
    """torch's keys, and the figures of the statistics."""
    segments = snapshot["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    suite.check(f"{name}: segments have torch's keys", segments and all(set(segment) == SEGMENT for segment in segments))
    suite.check(f"{name}: blocks have torch's keys", blocks and all(set(block) == BLOCK for block in blocks))
    suite.check(f"{name}: entries have torch's keys",
                all(set(entry) == ENTRY | {"device_free" if entry["action"] == "oom" else "addr"} for entry in entries) and len(entries) > 10000)
    suite.check(f"{name}: settings have torch's keys", set(snapshot["allocator_settings"]) >= SETTINGS and snapshot["external_annotations"] == [])
    covered = all(sum(block["size"] for block in segment["blocks"]) == segment["total_size"] and
                  all(block["address"] + block["size"] == after["address"] for block, after in zip(segment["blocks"], segment["blocks"][1:]))
                  for segment in segments)
    suite.check(f"{name}: blocks cover their segments", covered)
    sums = {key: sum(segment[of] for segment in segments) for key, of in
            (("reserved", "total_size"), ("allocated", "allocated_size"), ("active", "active_size"), ("requested", "requested_size"))}
    suite.check(f"{name}: the sums are the statistics", sums == figures, f"{sums}\n{figures}")
    own = snapshot["tcuda"]["memory_stats"][0]
    suite.check(f"{name}: the statistics are in it", all(own[f"{key}_bytes.all.current"] == value for key, value in figures.items()))
    live = {}
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"])
    in_use = {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}
    suite.check(f"{name}: what was allocated and not freed is in use", live == in_use)
    return in_use


# Blocks of the demo's own, the first ones.
OWN = 2


def allocations(recorded, without=0):
    """Sizes and streams, these by the order in which they come; and how many of the blocks were freed."""
    events = list(struct.iter_unpack("<QQII", recorded[8:]))
    made = [(size, stream) for _, size, op, stream in events if op == 0][without:]
    streams = {stream: at for at, stream in enumerate(dict.fromkeys(stream for _, stream in made))}
    return [(size, streams[stream]) for size, stream in made], sum(op for _, _, op, _ in events)


def replayable(suite, name, pickled):
    """The history is a trace again, as far as it came."""
    made, _ = allocations(pack_trace.unpack((kit.ROOT / f"examples_c/data/{name}.trace").read_bytes()))
    again, freed = allocations(pack_trace.unpack(pack_trace.pack(pack_trace.of_snapshot(pickled))), OWN)
    right = len(made) / 4 < len(again) < 2 * freed and again == made[:len(again)]
    suite.check(f"{name}: the history is the trace that was replayed", right, f"{len(again)} of {len(made)}, {freed} freed: {again[:3]} {made[:3]}")
    try:
        pack_trace.of_snapshot(pickle.dumps(Plain))
        suite.check(f"{name}: what names a class is no snapshot", False)
    except pickle.UnpicklingError as error:
        suite.check(f"{name}: what names a class is no snapshot", "no snapshot" in str(error))


def memory_viz():
    """The path of torch's module; a text: why there is none."""
    inside = "torch/cuda/_memory_viz.py"
    fetched = kit.BUILD / "tools/torch"
    for folder in (fetched, kit.BUILD / "bench/work/fetched"):
        if (folder / inside).exists():
            return folder / inside
    try:
        installed = importlib.util.find_spec("torch")
    except ImportError:
        installed = None
    if installed and installed.origin:
        return kit.pathlib.Path(installed.origin).parent / "cuda/_memory_viz.py"
    try:
        need.unpack(fetched, re.escape(inside), need.TORCH)
    except need.Missing as error:
        return f"torch's module is not there: {error}"
    return fetched / inside


def load(path):
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch_reads(suite, name, path, snapshot, figures, folder):
    """The commands that users give."""
    file, made = folder / f"{name}.pickle", folder / f"{name}.viz.html"
    shown = load(path).Bytes
    said = suite.runs(f"{name}: stats", [sys.executable, path, "stats", file]) or ""
    right = [f"segments: {len(snapshot['segments'])}", f"total_reserved: {shown(figures['reserved'])}",
             f"total_allocated: {shown(figures['requested'])}", f"total_free: {shown(figures['reserved'] - figures['requested'])}"]
    suite.check(f"{name}: the figures of stats are the statistics'", all(line in said for line in right), f"{right}\n{said[-1500:]}")
    said = suite.runs(f"{name}: trace", [sys.executable, path, "trace", file]) or ""
    allocs = sum(entry["action"] == "alloc" for entry in snapshot["device_traces"][0])
    suite.check(f"{name}: each allocation is in the trace", len(re.findall(r"^\w+ = \w+\[", said, re.M)) == allocs, said[-500:])
    for kind in ("trace_plot", "segment_plot"):
        suite.runs(f"{name}: {kind}", [sys.executable, path, kind, file, "-o", made])
        carried = re.search(r'"base64": "([^"]*)"', made.read_text())
        same = carried and pickle.loads(base64.b64decode(carried.group(1))) == snapshot
        suite.check(f"{name}: the page of {kind} carries the snapshot", same)


def strange_texts(suite, folder):
    """Annotations of any kind come out of each file as they went in."""
    code = r"""
import ctypes, sys
tcuda, folder = ctypes.CDLL(sys.argv[1]), sys.argv[2]
texts = [b'plain', b'"quoted" \\ \n\t and \x01', '\u00e9\u4e16\U0001f600 </script><!--'.encode()]
ok = lambda status: status == 0 or sys.exit(f"status {status}")
ok(tcuda.tcuda_memory_record_history(2, ctypes.c_uint64(1000), True, 0))
for text in texts:
    ok(tcuda.tcuda_memory_annotate(text))
    ok(tcuda.tcuda_malloc_cached(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(3 << 20), None))
assert tcuda.tcuda_memory_annotate(b'\xff') == 1
for ending in ("pickle", "json", "html"):
    ok(tcuda.tcuda_memory_dump_snapshot(f"{folder}/texts.{ending}".encode()))
"""
    suite.runs("annotations of any kind", [sys.executable, "-c", code, kit.LIB / "libtcuda.so", folder])
    right = ["plain", '"quoted" \\ \n\t and \x01', "\u00e9\u4e16\U0001f600 </script><!--"]
    pickled = Plain(io.BytesIO((folder / "texts.pickle").read_bytes())).load()
    for kind, snapshot in (("pickle", pickled), ("json", json.loads((folder / "texts.json").read_text()))):
        blocks = [block["user_metadata"] for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive"]
        suite.check(f"{kind}: annotations are what they were", blocks == right, blocks)
        spans = [(span["name"], span["stage"]) for span in snapshot["external_annotations"]]
        expected = [(right[0], "START"), (right[0], "END"), (right[1], "START"), (right[1], "END"), (right[2], "START")]
        suite.check(f"{kind}: annotations begin and end", spans == expected, spans)
    suite.check("html: annotations are what they were", pictured((folder / "texts.html").read_text())["notes"] == ["", *right])
    return pickled


def run(suite):
    folder = kit.BUILD / "tests/snapshot"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "replay"
    if suite.runs("compile the demo", [*kit.compiler("c99"), *kit.STRICT, "-O2", kit.ROOT / "examples_c/replay.c", *kit.shared_link(), "-o", program]) is None:
        return
    snapshots = {}
    for name in TRACES:
        files = [folder / f"{name}.{ending}" for ending in ("pickle", "json", "html")]
        said = suite.runs(f"{name}: a replay that writes", [program, name, *files], env=kit.environment(TCUDA_SIM_MEMORY="40GiB"))
        if said is None:
            return
        figures = {key: int(value) for key, value in re.findall(r"snapshot (\w+)_bytes\.all\.current (\d+)", said)}
        snapshot = read(suite, name, folder)
        structure(suite, name, snapshot, figures)
        replayable(suite, name, (folder / f"{name}.pickle").read_bytes())
        snapshots[name] = (snapshot, figures)
    annotated = strange_texts(suite, folder)

    path = memory_viz()
    if isinstance(path, str):
        for what in [f"{name}: {check}" for name in TRACES for check in OF_TORCH[:4]] + [OF_TORCH[4]]:
            suite.absent(f"{what}: {path}")
        return
    for name, (snapshot, figures) in snapshots.items():
        torch_reads(suite, name, path, snapshot, figures, folder)
    flames = load(path).memory(annotated, format_flamegraph=lambda lines: lines)
    suite.check("flame graphs sum up by annotation", "active_allocated;annotation:0:plain 3145728" in flames, flames)
