#!/usr/bin/env python3
"""Writes tests/data/complex.txt: complex functions of points that are hard, by mpmath with many digits. A zero is taken as the
positive one: parts are moved off the axes by less than any result shows."""

import pathlib
import struct

import mpmath

mpmath.mp.prec = 6000
NEXT_TO_ZERO = mpmath.mpf(10) ** -1500
FUNCTIONS = {name: getattr(mpmath, name) for name in "exp log sqrt sinh cosh tanh asinh acos atanh".split()}
FUNCTIONS["log1p"] = lambda z: mpmath.log(1 + z)

single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
PARTS = [0.0, 2.0**-140, single(1e-20), single(0.6), single(0.8), 1.0, 1 + 2.0**-23, single(3.7), 2.0**70]
ONE = 1 - 2.0**-24
POINTS = [(x, y) for x in PARTS for y in PARTS] + [
    (ONE, 2.0**-12), (ONE, 2.0**-70), (1.0, 2.0**-30), (1.0, 2.0**-100), (2.0**-30, 1.0), (2.0**-12, ONE), (0.5, single(0.8660254)),
    (100.0, 1.5), (89.0, single(1.5707964)), (20.5, 0.25), (9.5, single(1.5707964)), (single(3.3e38), single(3.3e38)), (2.0**-149, 2.0**-149),
    (single(3e38), 1.0), (1.0, single(3e38)), (2.0**30, 2.0**-30), (1e-300, 1e-310), (1.0, 1e-200), (1.7e308, 1.7e308), (1e300, 1.0),
    (0.5168118476867676, 0.856099009513855), (single(0.600000143), single(0.799999893)),  # all but on the unit circle
    (0.6132402038000417, 0.7898964821059044), (0.6681199492226987, 0.7440535823787549),
    (16.5, 1.25), (7.0625, 1.25), (1 + 2.0**-52, 2.0**-60), (710.0, 1.0), (0.28, 0.96), (5e-324, 5e-324), (1e-155, 1e200),
]
NEGATIVE = [(-x, y) for x, y in POINTS] + [(single(-0.0754277185), single(0.381006688)), (-2.0**-9, 2.0**-4), (-2.0**-21, 2.0**-10), (-2 + 2.0**-22, 2.0**-12), (-0.3, 0.7141428), (-0.5, 0.8660254)]
WITH_NEGATIVE = {"exp", "sqrt", "acos", "log1p"}


def near(value):
    return value if abs(value) > NEXT_TO_ZERO ** mpmath.mpf(0.25) else mpmath.mpf(0)


def main():
    lines = ["# function, real and imaginary part, those of the result; tests/data/complex.py writes this"]
    for name, function in sorted(FUNCTIONS.items()):
        for x, y in POINTS + (NEGATIVE if name in WITH_NEGATIVE else []):
            if name in ("exp", "sinh", "cosh") and abs(x) > 2000 or (name, x, y) in {("atanh", 1.0, 0.0), ("log", 0.0, 0.0), ("log1p", -1.0, 0.0)}:
                continue  # no numbers
            z = mpmath.mpc(mpmath.mpf(x) or NEXT_TO_ZERO, mpmath.mpf(y) or NEXT_TO_ZERO)
            result = function(z)
            # mpmath's own formatting: a double would not hold what is too large or too small for it.
            parts = [mpmath.nstr(near(part), 20, min_fixed=0, max_fixed=0) for part in (result.real, result.imag)]
            lines.append(f"{name} {x!r} {y!r} {parts[0]} {parts[1]}")
    pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
