"""Draws what was measured as SVG: lines over threads or sizes, bars over traces. No packages."""

import html
import math

COLOURS = ["#d62728", "#1f77b4", "#17becf", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f"]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 380, 260, 56, 40, 30


def text(x, y, words, size=12, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {more}>{html.escape(str(words))}</text>'


def page(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def legend(names, x, y):
    parts = []
    for i, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="{y + 18 * i - 9}" width="12" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(text(x + 18, y + 18 * i, name, anchor="start"))
    return parts


def panel(left, title, xs, series, names, low, high, below, label=str):
    """One diagram with a logarithmic height, from 10^low to 10^high. series: {name: {x: y}}; `below` and `label` are for what lies along it."""
    wide, tall = WIDTH - LEFT - 20, HEIGHT - BOTTOM - TOP

    def x_of(x):
        return left + LEFT + wide * xs.index(x) / max(len(xs) - 1, 1)

    def y_of(y):
        return TOP + tall * (high - math.log10(y)) / (high - low)

    parts = [text(left + LEFT + wide / 2, 18, title, 13, more='font-weight="bold"')]
    for power in range(low, high + 1):
        y = y_of(10 ** power)
        parts.append(f'<line x1="{left + LEFT}" y1="{y:.1f}" x2="{left + LEFT + wide}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(left + LEFT - 6, y + 4, f"{10 ** power:,}" if power >= 0 else f"{10 ** power:g}", 11, "end"))
    for x in xs:
        parts.append(text(x_of(x), HEIGHT - BOTTOM + 16, label(x), 11))
    parts.append(text(left + LEFT + wide / 2, HEIGHT - 8, below))
    for name, line in series.items():
        colour = COLOURS[names.index(name) % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(line[x]):.1f}" for x in xs if x in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(line[x]):.1f}" r="3" fill="{colour}"/>' for x in xs if x in line]
    return parts


def threads(panels, names):
    """panels: {title: {name: {threads: ns}}}. Nanoseconds a pair, for each thread."""
    parts, left = [], 0
    values = [y for series in panels.values() for line in series.values() for y in line.values()]
    # One scale for all panels.
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    for title, series in panels.items():
        series = {name: line for name, line in series.items() if line}
        if series:
            parts += panel(left, title, sorted({x for line in series.values() for x in line}), series, names, low, max(high, low + 1), "threads")
            left += WIDTH
    return page(left + 190, HEIGHT + 10, parts + legend(names, left + 20, TOP + 20))


def bandwidth(panels, names):
    """panels: {operation: {name: {bytes: GB/s}}}."""
    values = [y for series in panels.values() for line in series.values() for y in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    parts, left = [], 0

    def label(size):
        power = size.bit_length() - 1
        return f"{1 << power % 10} {('B', 'KiB', 'MiB', 'GiB')[power // 10]}" if power % 5 == 0 else ""

    for title, series in panels.items():
        parts += panel(left, title, sorted({x for line in series.values() for x in line}), series, names, low, high, "bytes; GB/s upwards", label)
        left += WIDTH
    return page(left + 190, HEIGHT + 10, parts + legend(names, left + 20, TOP + 20))


def waste(traces, names):
    """traces: {trace: {name: ratio}}. How much more is held than is asked for."""
    bar, gap, tall = 22, 40, 200
    highest = max((ratio - 1 for ratios in traces.values() for ratio in ratios.values()), default=1) * 110 or 1
    parts, left = [text(LEFT, 18, "Waste: per cent held beyond what is requested, at the peak of the third pass", 13, "start", 'font-weight="bold"')], LEFT + 10
    step = 10 ** math.floor(math.log10(highest))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2, 5, 10) if highest / (step * factor) <= 7)
    base = TOP + tall

    def y_of(percent):
        return base - tall * percent / highest

    lines = []
    for i in range(int(highest / step) + 1):
        lines.append((y_of(i * step), f"{i * step:g} %"))
    for trace, ratios in traces.items():
        start = left
        for name in names:
            if name in ratios:
                percent = 100 * (ratios[name] - 1)
                y = min(y_of(percent), base)
                parts.append(f'<rect x="{left}" y="{y:.1f}" width="{bar - 3}" height="{max(base - y, 0.5):.1f}" '
                             f'fill="{COLOURS[names.index(name) % len(COLOURS)]}"/>')
                parts.append(text(left + bar / 2 - 1.5, y - 4, f"{percent:.0f}" if percent >= 10 else f"{percent:.1f}", 9))
                left += bar
        parts.append(text((start + left) / 2, base + 18, trace))
        left += gap
    grid = []
    for y, label in lines:
        grid.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{left - gap / 2:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        grid.append(text(LEFT - 6, y + 4, label, 11, "end"))
    return page(left + 180, base + 40, grid + parts + legend(names, left, TOP + 20))
