"""tcuda.h compiles alone, twice, with all its macros, and beside cuda_runtime.h in either order, in every standard; tcuda.hpp alone and in two
files."""

import re

import kit

STANDARDS = ["c99", "c11", "c17", "c2x", "c++11", "c++14", "c++17", "c++20"]
# What programs turn on beyond the usual; a macro is expanded in their own lines.
STRICTER = ["-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wundef"]
STRICTER_CXX = ["-Wold-style-cast", "-Wuseless-cast", "-Wzero-as-null-pointer-constant"]

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
    stricter = STRICTER + (STRICTER_CXX if "+" in standard else [])
    command = [*kit.compiler(standard), *kit.STRICT, *stricter, "-c", source, "-o", source.with_suffix(f".{standard}.o")]
    return lambda: suite.runs(f"{source.stem} as {standard}", command)


def macros():
    """A program that uses every macro of the header."""
    lines = []
    for name, parameters, value in re.findall(r"^#define (TCUDA_\w+)(\([^)]*\))? (.+)$", (kit.ROOT / "include/tcuda.h").read_text(), re.M):
        if name.endswith("_INIT"):
            kind = re.match(r"\{sizeof\((\w+)\)", value)[1]
            lines.append(f"{{ {kind} made = {name}; (void)made; }}")
        else:
            lines.append(f"(void)({name}{re.sub(r'[a-z]+', '1', parameters)});")
    assert len(lines) > 100, len(lines)
    return '#include "tcuda.h"\nvoid use(void);\nvoid use(void) {\n' + "\n".join(lines) + "\n}\n"


def run(suite):
    folder = kit.BUILD / "tests/header"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for name, text in {**TEXTS, "macros": macros(), **HPP}.items():
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
