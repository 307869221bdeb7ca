"""A pluggable allocator in plain C, loaded by name, under a pool: with virtual memory for the rest and without, and with shuffled streams."""

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
