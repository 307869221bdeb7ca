"""Reads what include/tcuda.h declares: functions with their parameters, structs, handles, function pointers, enumerations."""

import re
from typing import NamedTuple


class Parameter(NamedTuple):
    type: str  # without the name, one space between words, `*` apart: "const int32_t *"
    name: str


class Function(NamedTuple):
    name: str
    returns: str
    parameters: list


class Header(NamedTuple):
    functions: list
    handles: dict    # typedef struct X *name
    structs: dict    # name: the names of its fields
    callbacks: dict  # name: (returns, parameters as text)
    enums: dict      # constant: number
    scalars: dict    # typedef: what it stands for


def strip(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
    return re.sub(r'extern\s+"C"\s*\{', "", text)


def split_parameters(text):
    """At the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def parameter(text, where):
    inline = re.fullmatch(r"(.+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", text, re.S)
    if inline:
        return Parameter(f"{inline[1].strip()} (*)({inline[3].strip()})", inline[2])
    array = re.fullmatch(r"(.+?)\b(\w+)\s*\[\s*\w*\s*\]", text, re.S)
    if array:
        return Parameter(tidy(array[1] + "*"), array[2])
    plain = re.fullmatch(r"(.+?)\b(\w+)", text, re.S)
    if not plain:
        raise ValueError(f"{where}: cannot read the parameter '{text}'")
    return Parameter(tidy(plain[1]), plain[2])


def tidy(text):
    text = re.sub(r"\b(struct|union|enum)\s+", "", text)
    return re.sub(r"\s+", " ", text.replace("*", " * ")).strip()


def statements(text):
    """Top-level declarations, each without its semicolon."""
    depth, start = 0, 0
    for at, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if depth < 0:  # the brace that closes extern "C"
            depth, start = 0, at + 1
        elif c == ";" and depth == 0:
            yield text[start:at].strip()
            start = at + 1


def parse(source):
    header = Header([], {}, {}, {}, {}, {})
    text = strip(source)
    for statement in statements(text):
        enum = re.search(r"\benum\b[^{]*\{(.*)\}", statement, re.S)
        callback = re.fullmatch(r"typedef\s+(.+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)", statement, re.S)
        struct = re.fullmatch(r"(?:typedef\s+)?(?:struct|union)\s*(\w*)\s*\{(.*)\}\s*(\w*)", statement, re.S)
        handle = re.fullmatch(r"typedef\s+struct\s+\w+\s*\*\s*(\w+)", statement)
        forward = re.fullmatch(r"(?:typedef\s+)?struct\s+\w+(?:\s+\w+)?", statement)
        scalar = re.fullmatch(r"typedef\s+([\w ]+?)\s+(\w+)", statement)
        function = re.fullmatch(r"(.+?)\b(tcuda_\w+)\s*\((.*)\)", statement, re.S)
        if enum:
            add_enum(header, enum[1])
            name = re.search(r"\}\s*(\w+)$", statement)
            if name:
                header.scalars.setdefault(name[1], "int32_t")
        elif struct:
            fields = [re.findall(r"\w+", re.sub(r"\[.*?\]", "", field))[-1] if "(*" not in field.replace(" ", "") else
                      re.search(r"\(\s*\*\s*(\w+)", field)[1] for field in struct[2].split(";") if field.strip()]
            header.structs[struct[3] or struct[1]] = fields
        elif callback:
            header.callbacks[callback[2]] = (tidy(callback[1]), callback[3])
        elif handle:
            header.handles[handle[1]] = True
        elif forward:
            continue
        elif scalar:
            header.scalars[scalar[2]] = scalar[1]
        elif function and not statement.startswith("typedef"):
            parameters = [parameter(part, function[2]) for part in split_parameters(function[3])]
            header.functions.append(Function(function[2], tidy(function[1]), parameters))
        elif statement:
            raise ValueError(f"include/tcuda.h: cannot read '{statement}'")
    return header


def add_enum(header, body):
    number = -1
    for entry in filter(None, (part.strip() for part in body.split(","))):
        name, _, value = (part.strip() for part in entry.partition("="))
        number = int(value, 0) if value else number + 1
        header.enums[name] = number
