"""The C tests under ThreadSanitizer. What it cannot see into (Rust's standard library) is in tests/thread_suppressions.txt."""

import kit
import sanitized

PLANTED = {
    "0": None,
    "r": r"data race(.|\n)*tcuda_device_count",
    "c": r"data race(.|\n)*write_here",
}


def run(suite):
    suppressions = kit.ROOT / "tests/thread_suppressions.txt"
    env = kit.environment(TSAN_OPTIONS=f"allow_addr2line=1:suppressions={suppressions}:halt_on_error=0:second_deadlock_stack=1")
    sanitized.run(suite, "thread", ["-fsanitize=thread"], env, PLANTED)
