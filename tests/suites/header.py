"""tcuda.h compiles alone, twice, and beside cuda_runtime.h in either order, in every standard; tcuda.hpp alone and in two files."""

import kit

STANDARDS = ["c99", "c11", "c17", "c2x", "c++11", "c++14", "c++17", "c++20"]

TEXTS = {
    "alone": '#include "tcuda.h"\ntcuda_stream_t use(tcuda_stream_t s);\ntcuda_stream_t use(tcuda_stream_t s) { return s; }\n',
    "twice": '#include "tcuda.h"\n#include "tcuda.h"\nint32_t use(void);\nint32_t use(void) { return TCUDA_SUCCESS; }\n',
    "after_cuda": '#include "stand_in/cuda_runtime.h"\n#include "tcuda.h"\n',
    "before_cuda": '#include "tcuda.h"\n#include "stand_in/cuda_runtime.h"\n',
}
# Streams and events are CUDA's own types: each way without a cast.
SAME = """
tcuda_stream_t stream(cudaStream_t s);
tcuda_stream_t stream(cudaStream_t s) { return s; }
cudaEvent_t event(tcuda_event_t e);
cudaEvent_t event(tcuda_event_t e) { return e; }
"""
HPP = {
    "hpp_alone": '#include "tcuda.hpp"\n',
    "hpp_twice_after_h": '#include "tcuda.h"\n#include "tcuda.hpp"\n#include "tcuda.hpp"\n',
}


def compiles(suite, source, standard):
    """A job: the source compiles in this standard."""
    command = [*kit.compiler(standard), *kit.STRICT, "-c", source, "-o", source.with_suffix(f".{standard}.o")]
    return lambda: suite.runs(f"{source.stem} as {standard}", command)


def run(suite):
    folder = kit.BUILD / "tests/header"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for name, text in {**TEXTS, **HPP}.items():
        source = folder / f"{name}.c"
        source.write_text(text + (SAME if "cuda_runtime" in text else ""))
        jobs += [compiles(suite, source, standard) for standard in (("c++17", "c++20") if name in HPP else STANDARDS)]
    suite.each(jobs)
    two_files(suite, folder)
    bad = folder / "bad.c"
    bad.write_text('#include "tcuda.h"\nint use(void) { return tcuda_device_count(3.5, 1); }\n')
    code, _ = kit.run([*kit.compiler("c11"), *kit.STRICT, "-c", bad, "-o", "/dev/null"])
    suite.check("a wrong program is refused, so the flags work", code != 0)


def two_files(suite, folder):
    """A definition in the C++ header that lacks `inline` shows when two files have it."""
    for name, body in (("one", "int other();\nint main() { return other(); }\n"), ("two", "int other();\nint other() { return 0; }\n")):
        (folder / f"{name}.cpp").write_text('#include "tcuda.hpp"\n' + body)
    program = folder / "two_files"
    command = [*kit.CXX, "-std=c++17", *kit.STRICT, folder / "one.cpp", folder / "two.cpp", "-o", program, *kit.shared_link()]
    suite.runs("tcuda.hpp in two files links", command)
    suite.runs("and runs", [program])
