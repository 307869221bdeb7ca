"""Calls every function of include/tcuda.h with NULL, dead handles, bad devices, huge sizes and broken structs.

The program is generated from the header: a new function is covered without a line here, and a parameter of a type that is not known
here stops the suite. tests_c/every.h has what is checked of each call.
"""

import fnmatch
import re

import cheader
import kit

# Functions for which a bad device, a dead handle or a dead pointer is no error, and why.
TOLERANT = {
    "tcuda_set_device": "a negative index does nothing, as torch documents",
    "tcuda_exchange_device": "likewise",
    "tcuda_sanitizer_annotate_access": "while the sanitizer is off it looks at nothing but mode, pointer and name",
}
# Outputs that may be NULL: NULL and no capacity ask for the size of a text; what else is told of a result need not be asked for.
OPTIONAL = ("text", "needed", "replaced", "origin")
# What a new handle takes to be of use.
PREPARE = {"tcuda_event_t": "tcuda_event_record(handle, NULL);",
           "tcuda_graph_t": "{ tcuda_stream_t stream = NULL; tcuda_pool_id_t pool = {0, 0}; tcuda_graph_capture_stream(&stream, 0);"
                            " tcuda_graph_capture_begin(handle, stream, pool, 2); tcuda_graph_capture_end(handle); tcuda_graph_instantiate(handle); }"}
# Handles that are not made by tcuda_NOUN_create, and how.
MAKERS = {"tcuda_snapshot_t": "tcuda_memory_record_history(2, 100, false, 0);\n    every_block(0);\n    every_block(0);\n"
                              "    tcuda_memory_snapshot(&handle, 0);",
          "tcuda_graphed_callable_t": "tcuda_callable_t nothing = {every_callable, NULL, NULL, 0, NULL, 0};\n    tcuda_pool_id_t own = {0, 0};\n"
                                      "    tcuda_graphed_callable_create(&handle, &nothing, 1, 0, own, NULL);",
          "tcuda_communicator_t": "{ tcuda_communicator_id_t id; tcuda_communicator_unique_id(&id);"
                                  " tcuda_communicator_init_rank(&handle, 1, &id, 0, 0, NULL); }",
          # The simulated device makes none.
          "tcuda_kernel_module_t": "handle = (tcuda_kernel_module_t)(uintptr_t)77;",
          "tcuda_kernel_t": "handle = (tcuda_kernel_t)(uintptr_t)77;"}
# Texts that mean something to a function, where any other is an error (or, as a file's name, leaves a file).
TEXTS = {"tcuda_memory_stat_get": "num_ooms", "tcuda_host_memory_stat_get": "num_host_alloc", "tcuda_generator_geometry_of": "A100",
         "tcuda_snapshot_write": "/dev/null", "tcuda_memory_dump_snapshot": "/dev/null",
         "tcuda_graph_debug_dump": "/dev/null",
         "tcuda_jit_create": "template <typename T> T f(T x) { return x; }",
         "tcuda_jit_create_multi_output": "template <typename T> void f(T x, T &y) { y = x; }"}
# Numbers that mean something to a function, where any other is an error.
NUMBERS = {"tcuda_generator_set_state": {"size": "16"}, "tcuda_set_rng_state": {"size": "16"}, "tcuda_set_rng_state_all": {"size": "16"},
           "tcuda_graphed_callable_call": {"index": "0", "input_count": "0"},
           "tcuda_communicator_broadcast": {"root": "0"}, "tcuda_communicator_reduce": {"root": "0"},
           "tcuda_generator_set_offset": {"offset": "4"}, "tcuda_generator_set_geometry": {"threads": "2048"}}
# What else messages quote: as torch has it, and what functions that are compiled are called.
QUOTED = ("cpu", "f")
# Functions whose text may be NULL, and why.
NO_TEXT = {"tcuda_memory_stat_key": "NULL ends the list", "tcuda_host_memory_stat_key": "likewise"}
# Functions that cannot succeed with the arguments made here, and why.
NEVER_SUCCEED = {
    "tcuda_unregister_pressure_callback": "1 is the number of no registration",
    "tcuda_unregister_oom_observer": "likewise",
    "tcuda_trace_unregister": "likewise",
    "tcuda_sanitizer_report_get": "nothing was reported",
    "tcuda_mem_pool_end": "the pool is not open",
    "tcuda_nvtx_stream_range_end": "the number 1 is that of no range",
    "tcuda_nvtx_domain_mark": "the event has no message",
    "tcuda_nvtx_domain_range_start": "likewise",
    "tcuda_graph_capture_begin": "the graph was captured",
    "tcuda_graph_capture_end": "likewise",
    "tcuda_pluggable_allocator_load": "one text is no library and its functions",
    **dict.fromkeys(["tcuda_current_blas_handle", "tcuda_blas_handle", "tcuda_blas_library", "tcuda_cufft_plan_cache_get",
                     "tcuda_cufft_plan_cache_put", "tcuda_cufft_library"], "the simulated device runs no library for GPUs"),
    "tcuda_random_permutation": "the tensors have two dimensions",
    "tcuda_graphed_callable_create": "zeros are no function",
    "tcuda_graph_pool_stats": "zeros are no pool",
    "tcuda_ipc_import": "zeros are no handle",
    **dict.fromkeys(["tcuda_ipc_withdraw", "tcuda_event_from_ipc_handle"], "likewise"),
    "tcuda_ipc_producer_is_alive": "a block of this process's own was not imported",
    "tcuda_event_ipc_handle": "the event is not for other processes",
    "tcuda_communicator_init_rank": "the bytes are no id",
    "tcuda_communicator_init_from_env": "no launcher has set a rank",
    "tcuda_communicator_group_end": "no group was begun",
    "tcuda_communicator_send": "the only rank would have to receive in the same group",
    "tcuda_communicator_recv": "likewise",
    "tcuda_memory_check_poison": "only with TCUDA_MEMORY_POISON=1",
    **dict.fromkeys(["tcuda_kernel_compile", "tcuda_kernel_load", "tcuda_kernel_get", "tcuda_kernel_launch", "tcuda_kernel_occupancy",
                     "tcuda_kernel_best_block", "tcuda_kernel_attributes"],
                    "the simulated device runs no whole kernels"),
}


def works_at_any_time():
    """What docs/THREADS.md says of calls after tcuda_shutdown and in a forked child: (pattern, works, works)."""
    text = (kit.ROOT / "docs/THREADS.md").read_text().split("## What works at any time", 1)[1].split("\n## ", 1)[0]
    answers = {"yes": 1, "no": 0}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    return [(pattern, *(answers.get(cell, -1) for cell in row[1:3])) for row in rows for pattern in re.findall(r"`(\w[\w*]*)`", row[0])]


HUGE = {"size_t": "SIZE_MAX", "uint64_t": "UINT64_MAX", "uint32_t": "UINT32_MAX", "uint8_t": "UINT8_MAX", "uint16_t": "UINT16_MAX"}
INTEGERS = {"int32_t": ("INT32_MIN", "INT32_MAX"), "int64_t": ("INT64_MIN", "INT64_MAX"), "int": ("INT32_MIN", "INT32_MAX"),
            "ptrdiff_t": ("PTRDIFF_MIN", "PTRDIFF_MAX"),
            "long": ("LONG_MIN", "LONG_MAX")}
# What may be wrong with a tensor, and how.
BROKEN = {"ndim negative": "t->ndim = -1;", "ndim huge": "t->ndim = INT32_MAX;", "no shape": "t->shape = NULL;",
          "no data": "t->data = NULL;", "a bad device": "t->device.device_id = 9999;", "an unknown kind of device":
          "t->device.device_type = 77;", "a negative extent": "t->shape[0] = -1;", "huge extents":
          "t->shape[0] = INT64_MAX / 2; t->ndim = 2; t->shape[1] = INT64_MAX / 2;", "an unknown element type": "t->dtype.code = 99;",
          "an element of no bits": "t->dtype.bits = 0;",
          "memory of the CPU": "t->device.device_type = 1; t->data = &every_in[BUFFERS - 3];",
          "data where no memory is": "t->data = (void *)(uintptr_t)4096;",
          "data of the CPU where no memory is": "t->device.device_type = 1; t->data = (void *)(uintptr_t)4096;",
          "data behind the end of its block": "t->shape[0] = 1 << 20;",
          "one element for all": "static int64_t none[64]; t->strides = none;"}
PLAIN = ("bool", "double", "float", *HUGE, *INTEGERS)
DEVICES = r"(.*_)?(device|destination|peer)(_.*)?|from_device|to_device"


class Generator:
    def __init__(self, header):
        self.header = header
        self.by_name = {function.name: function for function in header.functions}
        self.makers = {}

    # What a parameter is, as (declaration of the good argument, [(label, assignment, expectation)]).

    def argument(self, function, index):
        parameter = function.parameters[index]
        kind = self.resolve(parameter.type)
        var = f"a{index}"
        for test, make in ((self.is_plain, self.plain), (self.is_handle, self.handle), (self.is_callback, self.callback),
                           (self.is_value, self.value), (self.is_pointer, self.pointer)):
            if test(kind):
                return make(function, parameter, kind, var, index)
        raise ValueError(f"{function.name}: nothing is known of the type '{parameter.type}' of '{parameter.name}'; teach tests/suites/every.py")

    def resolve(self, kind):
        while kind in self.header.scalars:
            kind = self.header.scalars[kind]
        return kind

    def is_plain(self, kind):
        return kind in PLAIN

    def plain(self, function, parameter, kind, var, index):
        name, number = parameter.name, NUMBERS.get(function.name, {}).get(parameter.name)
        if kind == "bool":
            return f"bool {var} = true;", [(f"{name} false", f"{var} = false;", "ANY")]
        if kind in ("double", "float"):
            return f"{kind} {var} = 0.5;", [(f"{name} {label}", f"{var} = {value};", "ANY") for label, value in
                                             (("negative", "-1"), ("huge", "1e300 * 1e300"), ("not a number", "(1e300 * 1e300) * 0"))]
        if kind in INTEGERS:
            variants = [(f"{name} {value}", f"{var} = {value};", "ANY") for value in (*INTEGERS[kind], "-1", "-2", "-3")]
            if re.fullmatch(DEVICES, name) and "priority" not in name:
                expected = "ANY" if function.name in TOLERANT else "FAIL"
                variants += [(f"{name} 9999", f"{var} = 9999;", "FAIL"), (f"{name} -77", f"{var} = -77;", expected)]
                return f"{kind} {var} = 0;", variants
            return f"{kind} {var} = {number or 1};", variants
        good = number or {"size": "64", "capacity": "BUFFER", "alignment": "64", "scalar_count": "0"}.get(name, "BUFFER / 64" if "capacity" in name else "1")
        huge = HUGE[kind]
        values = (("huge", huge), ("half of huge", f"{huge} / 2 + 1"), ("zero", "0"))
        return f"{kind} {var} = {good};", [(f"{name} {label}", f"{var} = {value};", "ANY") for label, value in values]

    def is_handle(self, kind):
        return kind in self.header.handles

    def handle(self, function, parameter, kind, var, index):
        name = parameter.name
        dead = "ANY" if function.name in TOLERANT else "FAIL"
        maker = self.maker(kind)
        return f"{kind} {var} = {maker}(0);", [
            (f"{name} NULL", f"{var} = NULL;", "ANY"),
            (f"{name} destroyed", f"{var} = {maker}(1);", dead),
            (f"{name} garbage", f"{var} = ({kind})(void *)&every_in[BUFFERS - 1];", dead),
        ]

    def is_callback(self, kind):
        return kind in self.header.callbacks or "(*)" in kind

    def callback(self, function, parameter, kind, var, index):
        if kind in self.header.callbacks:
            returns, parameters = self.header.callbacks[kind]
            declaration = f"{kind} {var}"
        else:
            returns, parameters = re.fullmatch(r"(.*) \(\*\)\((.*)\)", kind, re.S).groups()
            declaration = f"{returns} (*{var})({parameters})"
        name = f"callback_{function.name}_{index}"
        unused = [part.name for part in (cheader.parameter(p, name) for p in cheader.split_parameters(parameters))]
        body = "".join(f"(void){part}; " for part in unused) + ("" if returns == "void" else "return 0; ")
        definition = f"static {returns} {name}({parameters or 'void'}) {{ {body}}}"
        if definition not in self.extra:
            self.extra.append(definition)
        return f"{declaration} = {name};", [(f"{parameter.name} NULL", f"{var} = NULL;", "ANY")]

    def is_value(self, kind):
        return kind in self.header.structs

    def value(self, function, parameter, kind, var, index):
        good = "{2, 32, 1}" if kind == "tcuda_dtype_t" else "{0}"
        fill = f"memset(&{var}, 0xFF, sizeof {var});"
        return f"{kind} {var} = {good};", [(f"{parameter.name} all ones", fill, "ANY")]

    def is_pointer(self, kind):
        return kind.endswith("*") or kind.endswith("* const")

    def pointer(self, function, parameter, kind, var, index):
        name, target = parameter.name, re.sub(r"\s*\*( const)?$", "", kind)
        base = target.replace("const ", "").strip()
        constant = target.startswith("const ") or kind.endswith("* const") or target.endswith("const")
        null = (f"{name} NULL", f"{var} = NULL;", "ANY")
        declare = f"{parameter.type} {var}" if parameter.type.endswith("*") else f"{parameter.type.replace('* const', '*')} {var}"
        if base == "void" and name == "value":
            # Host memory that the call reads: an address that is none would end the process, as it may.
            return f"{declare} = &every_in[{index}];", [null]
        if base == "void":
            return self.memory(function, parameter, var, declare, null)
        if base == "char" and constant:
            good = TEXTS.get(function.name, "x")
            return f'{declare} = "{good}";', [null, (f"{name} empty", f'{var} = "";', "ANY"), (f"{name} no UTF-8", f'{var} = "\\xff\\xfe";', "ANY"),
                                         (f"{name} long", f"{var} = every_long_text();", "ANY")]
        if base in self.header.structs and "struct_size" in self.header.structs[base]:
            buffer = f"&every_{'in' if constant else 'out'}[{index}]"
            sizes = [(f"{name} of size {size}", f"(({base} *)(void *){buffer})->struct_size = {size};", expected)
                     for size, expected in (("0", "FAIL"), ("1", "FAIL"), ("SIZE_MAX", "FAIL"))]
            missing = (null[0], null[1], "ANY" if constant else "FAIL")
            return f"{declare} = ({kind})every_sized({buffer}, sizeof({base}));", [missing, *sizes]
        if base in ("tcuda_tensor_t", "DLTensor"):
            return self.tensor(parameter, var, declare, kind, null)
        if base == "tcuda_managed_tensor_t":
            return f"{declare} = every_managed();", [null]
        known = base in PLAIN or base in self.header.scalars or base in self.header.structs or base in self.header.handles or base == "char"
        if known and constant:
            return f"{declare} = ({kind})(const void *)&every_in[{index}];", [null]
        if known or self.is_pointer(base):
            free = f" every_may_change[{index}] = 1;" if name == "needed" else ""
            if constant or "const" in kind:
                variants = [null]
                if "tcuda_tensor_t" in base:
                    variants += [(f"{name}[0] with {label}", f"{{ tcuda_tensor_t *t = every_tensor(); {change} *(void **)(uintptr_t){var} = t; }}", "ANY")
                                 for label, change in BROKEN.items()]
                return f"{declare} = ({kind})(const void *)every_pointers();", variants
            missing = "ANY" if name in OPTIONAL else "FAIL"
            variants = [(null[0], null[1], missing)]
            if base in self.header.handles:
                variants.append((f"NULL in {name}", f"every_out[{index}].pointer = NULL;", "ANY"))
            return f"{declare} = ({kind})(void *)&every_out[{index}];{free}", variants
        raise ValueError(f"{function.name}: nothing is known of the type '{parameter.type}' of '{name}'; teach tests/suites/every.py")

    def memory(self, function, parameter, var, declare, null):
        name = parameter.name
        # An object of C++ cannot be told from what is none.
        if name in ("user_data", "filter") or name.endswith("_data"):
            return f"{declare} = NULL;", []
        place = "every_host_block" if "host" in function.name and "host_function" not in function.name else "every_block"
        dead = "FAIL" if re.search(r"_free|_record_stream", function.name) and function.name not in TOLERANT else "ANY"
        return f"{declare} = {place}(0);", [
            null, (f"{name} freed", f"{var} = {place}(1);", dead),
            (f"{name} not ours", f"{var} = (void *)&every_out[BUFFERS - 1];", dead),
            (f"{name} garbage", f"{var} = (void *)(uintptr_t)0x10;", dead)]

    def tensor(self, parameter, var, declare, kind, null):
        name = parameter.name
        variants = [(f"{name} with {label}", f"{{ tcuda_tensor_t *t = every_tensor(); {change} {var} = ({kind})t; }}", "ANY")
                    for label, change in BROKEN.items()]
        return f"{declare} = ({kind})every_tensor();", [null, *variants]

    def maker(self, handle):
        """The name of a C function that makes a handle, and destroys it again when asked."""
        if handle not in self.makers:
            self.makers[handle] = f"every_{handle}"
            noun = re.sub(r"^tcuda_|_t$", "", handle)
            create, destroy = self.by_name.get(f"tcuda_{noun}_create"), self.by_name.get(f"tcuda_{noun}_destroy")
            if not (create and destroy) and handle not in MAKERS:
                raise ValueError(f"the handle {handle} has no tcuda_{noun}_create and tcuda_{noun}_destroy; teach tests/suites/every.py")
            lines, made = [], MAKERS.get(handle)
            if made is None:
                lines = [self.argument(create, index)[0] for index in range(1, len(create.parameters))]
                made = f"{create.name}({', '.join(['&handle'] + [f'a{index}' for index in range(1, len(create.parameters))])});"
            self.extra.append(f"static {handle} every_{handle}(int dead)\n{{\n    {handle} handle = NULL;\n    " + "\n    ".join(lines) +
                              f"\n    if (every_mode == FIRST)\n        return NULL;\n    {made}\n"
                              f"    {PREPARE.get(handle, '')}\n"
                              f"    if (dead)\n        {destroy.name + '(handle)' if destroy else ''};\n    return handle;\n}}")
        return self.makers[handle]

    def function(self, function):
        arguments = [self.argument(function, index) for index in range(len(function.parameters))]
        nulls = "".join(f" a{i} = NULL;" for i, p in enumerate(function.parameters)
                        if self.is_pointer(self.resolve(p.type)) or self.is_handle(p.type) or self.is_callback(self.resolve(p.type)))
        variants = [variant for _, variants in arguments for variant in variants]
        if nulls:
            variants.append(("every pointer NULL", nulls.strip(), "ANY"))
        call = f"{function.name}({', '.join(f'a{i}' for i in range(len(arguments)))})"
        lines = [f"static int call_{function.name}(int variant)", "{"]
        lines += [f"    {declaration}" for declaration, _ in arguments]
        lines += ["    switch (variant) {", "    case 0:", "        break;"]
        for number, (label, change, expected) in enumerate(variants, 1):
            lines += [f"    case {number}:", f'        every_vary("{label}", {expected});', f"        {change}", "        break;"]
        lines += ["    default:", "        return 0;", "    }", f'    every_begin("{function.name}");']
        kind = self.resolve(function.returns)
        if function.returns == "tcuda_status_t":
            lines.append(f'    every_end_status("{function.name}", (int){call});')
        elif kind == "const char *":
            lines.append(f"    every_end_text({call}, {int(function.name in NO_TEXT)});")
        elif kind in ("void", "void *") or kind in PLAIN:
            lines += [f"    (void){call};" if kind != "void" else f"    {call};", "    every_end_value();"]
        else:
            raise ValueError(f"{function.name}: nothing is known of the return type '{function.returns}'; teach tests/suites/every.py")
        return "\n".join(lines + ["    return 1;", "}"])

    def program(self):
        self.extra = []
        bodies = [self.function(function) for function in self.header.functions]
        statuses = [name for name in self.header.enums if name == "TCUDA_SUCCESS" or name.startswith("TCUDA_ERROR_")]
        cases = "".join(f"    case {name}:\n" for name in statuses)
        rules = works_at_any_time()
        works = {f.name: next((rule[1:] for rule in rules if fnmatch.fnmatchcase(f.name, rule[0])), (0, 0)) for f in self.header.functions}
        table = "".join(f'    {{"{f.name}", "{self.names(f)}", call_{f.name}, {{1, 1, {works[f.name][0]}, {works[f.name][1]}}}}},\n'
                        for f in self.header.functions)
        parts = ["/* Generated by tests/suites/every.py from include/tcuda.h. */", "#define _GNU_SOURCE", '#include "every.h"', "#include <limits.h>",
                 f"static int every_known_status(int status)\n{{\n    switch (status) {{\n{cases}        return 1;\n    }}\n    return 0;\n}}",
                 self.helpers(), *self.extra, *bodies,
                 f"static const struct every_function functions[] = {{\n{table}}};",
                 "int main(void)\n{\n    return every_main(functions, sizeof functions / sizeof functions[0]);\n}\n"]
        return "\n\n".join(parts)

    def names(self, function):
        """What a message of it may quote, each between blanks."""
        types = [re.sub(r"const|\*", " ", parameter.type).strip() for parameter in function.parameters]
        fields = [field for kind in types for field in self.header.structs.get(kind, [])]
        return f" {' '.join([*(parameter.name for parameter in function.parameters), *fields, *QUOTED])} "

    def helpers(self):
        def block(name, allocate, free):
            stream = ", NULL" if len(self.by_name[allocate].parameters) > 2 else ""
            return (f"static void *{name}(int dead)\n{{\n    void *block = NULL;\n    if (every_mode == FIRST)\n        return NULL;\n"
                    f"    {allocate}(&block, BUFFER{stream});\n    if (dead)\n        {free}(block);\n    return block;\n}}")
        parts = [block("every_block", "tcuda_malloc_cached", "tcuda_free_cached"),
                 block("every_host_block", "tcuda_host_malloc_cached", "tcuda_host_free_cached")
                 if "tcuda_host_malloc_cached" in self.by_name else "",
                 "static const char *every_long_text(void)\n{\n    static char text[1 << 20];\n    memset(text, 'x', sizeof text - 1);\n"
                 "    return text;\n}"]
        if "tcuda_tensor_t" in self.header.structs:
            parts.append("/* Eight by eight floats on device 0. */\nstatic tcuda_tensor_t *every_tensor(void)\n{\n"
                         "    static tcuda_tensor_t tensors[8];\n    static int64_t shapes[8][64];\n    static int next;\n    int i = next++ % 8;\n"
                         "    memset(&tensors[i], 0, sizeof tensors[i]);\n    shapes[i][0] = shapes[i][1] = 8;\n"
                         "    tensors[i].data = every_block(0);\n    tensors[i].device.device_type = 2;\n    tensors[i].ndim = 2;\n"
                         "    tensors[i].dtype.code = 2;\n    tensors[i].dtype.bits = 32;\n    tensors[i].dtype.lanes = 1;\n"
                         "    tensors[i].shape = shapes[i];\n    return &tensors[i];\n}")
            parts.append("/* Room for a list: pointers to tensors, which may also be read as pointers to anything. */\n"
                         "static void *every_pointers(void)\n{\n    static void *pointers[64];\n    int i;\n    for (i = 0; i < 64; i++)\n"
                         "        pointers[i] = every_tensor();\n    return pointers;\n}")
        if "tcuda_callable_t" in self.header.structs:
            parts.append("static int32_t every_callable(const tcuda_tensor_t *inputs, size_t input_count, const tcuda_tensor_t *outputs,\n"
                         "                              size_t output_count, tcuda_stream_t stream, void *user_data)\n{\n"
                         "    (void)inputs; (void)input_count; (void)outputs; (void)output_count; (void)stream; (void)user_data;\n"
                         "    return 0;\n}")
        if "tcuda_tensor_empty" in self.by_name:
            parts.append("static tcuda_managed_tensor_t *every_managed(void)\n{\n    tcuda_managed_tensor_t *tensor = NULL;\n"
                         "    tcuda_dtype_t dtype = {2, 32, 1};\n    int64_t shape[1] = {8};\n    if (every_mode != FIRST)\n"
                         "        tcuda_tensor_empty(&tensor, 0, dtype, 1, shape, NULL);\n    return tensor;\n}")
        return "\n\n".join(filter(None, parts))


def write(folder):
    """The program's source, from the header as it is now."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "every.c"
    source.write_text(Generator(read_header()).program())
    return source


def read_header():
    return cheader.parse((kit.ROOT / "include/tcuda.h").read_text())


def judge(suite, program, env=None):
    """Runs the program and counts each of its calls as a check."""
    functions = len(read_header().functions)
    code, output = kit.run([program], env=env, timeout=900)
    counts = re.search(r"every: (\d+) calls of (\d+) functions, (\d+) passed, (\d+) failed", output)
    if not suite.check("the program of every call ends", counts, f"ended with {code}\n{output}"):
        return ""
    suite.check("every function was called", int(counts[2]) == functions, counts[0])
    suite.passed += int(counts[3])
    for line in output.splitlines():
        if line.startswith("tcuda_"):
            suite.check(line, False)
    return output


def run(suite):
    folder = kit.BUILD / "tests/every"
    source, program = write(folder), folder / "every"
    listed = set((kit.ROOT / "tests/tcuda.symbols").read_text().split())
    called = {function.name for function in read_header().functions}
    suite.check("every exported function is called", called == listed and listed, sorted(called ^ listed))
    command = [*kit.CC, "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-g", *kit.INCLUDE, source,
               *kit.shared_link(), "-o", program]
    if suite.runs("compile the generated program", command) is not None:
        output = judge(suite, program)
        never = set(re.findall(r"^never succeeded: (\w+)$", output, re.M))
        suite.check("every function succeeds at least once", never == set(NEVER_SUCCEED), sorted(never ^ set(NEVER_SUCCEED)))
