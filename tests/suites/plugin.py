"""A pluggable allocator in plain C, loaded by name, under a pool: with virtual memory for the rest and without, and with shuffled streams.
And tcuda as PyTorch's allocator: its errors as PyTorch's exceptions, with stand-ins for PyTorch's libraries."""

import kit


def build(suite, folder):
    """The program and its allocator, in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "plugin_load"
    arena = [*kit.compiler("c11"), *kit.STRICT, "-O2", "-fPIC", "-shared", kit.ROOT / "tests_c/plugin_arena.c", "-o", folder / "libarena.so"]
    load = [*kit.compiler("c11"), *kit.STRICT, "-D_GNU_SOURCE", "-O2", kit.ROOT / "tests_c/plugin_load.c", *kit.shared_link(), "-ldl", "-o", program]
    built = [suite.runs(what, command) for what, command in {"compile the allocator": arena, "compile the program": load}.items()]
    return None if None in built else program


def run(suite):
    program = build(suite, kit.BUILD / "tests/plugin")
    if program is None:
        return
    for options in ("", "expandable_segments:False"):
        for seed in ("", "3"):
            env = kit.environment(TCUDA_ALLOC_CONF=options, **({"TCUDA_SIM_SEED": seed} if seed else {}))
            suite.runs(f"plugin_load {options} {seed}", [program], env=env)
    throws(suite, kit.BUILD / "tests/plugin")


def throws(suite, folder):
    source = kit.ROOT / "tests_c/stand_in/c10.cpp"
    library = [*kit.compiler("c++17"), *kit.STRICT, "-O1", "-fPIC", "-shared", source]
    suite.runs("compile the stand-in of libc10", [*library, "-Wl,-soname,libc10.so", "-o", folder / "libc10.so"])
    suite.runs("compile that of libc10_cuda", [*library, "-DCUDA", "-Wl,-soname,libc10_cuda.so", "-x", "none", f"-L{folder}", "-lc10",
                                               "-o", folder / "libc10_cuda.so"])
    program = folder / "torch_throws"
    suite.runs("compile the program that catches",
               [*kit.compiler("c++17"), *kit.STRICT, "-O1", kit.ROOT / "tests_c/torch_throws.cpp", *kit.shared_link(), f"-L{folder}",
                "-Wl,--no-as-needed", "-lc10_cuda", "-lc10", "-Wl,-rpath,$ORIGIN", "-o", program])
    output = suite.runs("PyTorch's exceptions", [program])
    suite.check("each is the right one", output and "2001 passed, 0 failed" in output, output)
