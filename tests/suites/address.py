"""The C tests and the call of every function under AddressSanitizer (library and program), LeakSanitizer, and UndefinedBehaviorSanitizer (program)."""

import every
import kit
import sanitized

PLANTED = {
    "0": None,
    "f": r"heap-use-after-free(.|\n)*tcuda_device_count",
    "h": r"heap-buffer-overflow",
    "u": r"signed integer overflow",
    "l": r"LeakSanitizer: detected memory leaks",
}


def run(suite):
    env = kit.environment(ASAN_OPTIONS="allow_addr2line=1:detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1",
                          UBSAN_OPTIONS="print_stacktrace=1")
    # vptr needs the C++ half of a runtime of which Rust's toolchain brings the C half.
    flags = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"]
    build = sanitized.run(suite, "address", flags, env, PLANTED)
    if build:
        folder = kit.BUILD / "tests/address"
        code, output = build(every.write(folder), folder / "every")
        suite.check("compile the program of every call", code == 0, output)
        every.judge(suite, folder / "every", env)
