#!/usr/bin/env python3
"""Draws docs/book/src/img/refresh-cost.svg: the seconds of each refresh over the rows that it computed, from a result of refresh.py.

    benches/refresh_plot.py benches/runs/<date>-refresh.json
"""
import json, math, pathlib, sys

from program import ROOT

WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 760, 420, 70, 56, 24
COLORS = ["#2563eb", "#0891b2", "#059669", "#ca8a04", "#ea580c", "#be123c"]


def label(count):
    return f"{count // 10**6} M" if count >= 10**6 else f"{count:,}"


def plot(result):
    """Returns the picture: a point for each refresh, on logarithmic axes, and the rate of inference of all nodes as a line."""
    rows = result["first_refresh"]["all_rows"]
    powers = [(1, math.ceil(math.log10(rows))), (-2, 2)]

    def x(count):
        low, high = powers[0]
        return LEFT + (WIDTH - LEFT - MARGIN) * (math.log10(count) - low) / (high - low)

    def y(seconds):
        low, high = powers[1]
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - MARGIN) * (math.log10(seconds) - low) / (high - low)

    whole = result["full"]["all"]["median"]
    least = rows * 10 ** powers[1][0] / whole
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title desc">',
        '<title id="title">Cost of a refresh</title>',
        '<desc id="desc">Seconds of a refresh over the rows that it computes, on logarithmic axes. The cost per row falls as more rows are computed.</desc>',
        '<style>text { font-family: Inter, "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2937; } .m { text-anchor: middle; } .e { text-anchor: end; }</style>',
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="14" fill="#ffffff" stroke="#e2e8f0" stroke-width="1.5"/>',
    ]
    for power in range(powers[0][0], powers[0][1] + 1):
        at = x(10**power)
        svg.append(f'<path d="M {at:.1f} {MARGIN} V {HEIGHT - BOTTOM}" stroke="#e2e8f0"/>')
        svg.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" class="m">{label(10**power)}</text>')
    for power in range(powers[1][0], powers[1][1] + 1):
        at = y(10**power)
        svg.append(f'<path d="M {LEFT} {at:.1f} H {WIDTH - MARGIN}" stroke="#e2e8f0"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" class="e">{10.0**power:g} s</text>')
    svg.append(f'<path d="M {x(least):.1f} {y(10 ** powers[1][0]):.1f} L {x(rows):.1f} {y(whole):.1f}" stroke="#64748b" stroke-dasharray="6 4"/>')
    svg.append(f'<text x="{x(rows) - 12:.1f}" y="{y(whole) - 10:.1f}" class="e">infer: {whole:.1f} s, all rows</text>')
    for at, (change, color) in enumerate(zip(result["refresh"], COLORS)):
        svg += [f'<circle cx="{x(max(count, 10)):.1f}" cy="{y(seconds):.1f}" r="4" fill="{color}" fill-opacity="0.75"/>' for count, seconds in change["reached"]]
        svg.append(f'<circle cx="{LEFT + 16}" cy="{MARGIN + 14 + 20 * at}" r="4" fill="{color}"/>')
        svg.append(f'<text x="{LEFT + 28}" y="{MARGIN + 18 + 20 * at}">{change["change"]}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - MARGIN) / 2:.1f}" y="{HEIGHT - 14}" class="m">rows computed</text></svg>')
    return "\n".join(svg) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    result = json.loads(pathlib.Path(sys.argv[1]).read_text())
    (ROOT / "docs" / "book" / "src" / "img" / "refresh-cost.svg").write_text(plot(result))


if __name__ == "__main__":
    main()
