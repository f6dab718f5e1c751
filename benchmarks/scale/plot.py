"""A curve as an SVG with logarithmic axes, readable on a light and on a dark page."""

from __future__ import annotations

import math
from html import escape

from benchmarks.scale.curve import Curve

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 46, 84
_LINE = 18
"""The height of a line of the legend, which has two series. There is space for two lines below the plot."""
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-size:15px;font-weight:600}
.grid{stroke:#d0d7de}.s0{--c:#0969da}.s1{--c:#bc4c00}.s2{--c:#1a7f37}.s3{--c:#8250df}.s4{--c:#cf222e}
.line{stroke:var(--c);fill:none;stroke-width:2}.dot{fill:var(--c)}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#3d444d}
.s0{--c:#58a6ff}.s1{--c:#ffa657}.s2{--c:#56d364}.s3{--c:#d2a8ff}.s4{--c:#ff7b72}}
"""


def svg(curve: Curve) -> str:
    """Return the plot. The legend has the exponent of each series."""
    d, exponents = curve.definition, curve.exponents()
    every = [p for points in curve.points.values() for p in points]
    x_low, x_high = _decades([x for x, _ in every])
    y_low, y_high = _decades([y for _, y in every])

    def at_x(x: float) -> float:
        return _LEFT + (math.log10(x) - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(y) - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    height = _HEIGHT + _LINE * max(0, math.ceil(len(curve.points) / 2) - 2)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(d.title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="20">{escape(d.title)}</text>',
        f'<text x="{_LEFT}" y="38">{escape(d.y)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - _BOTTOM + 34}" text-anchor="end">{escape(d.x)}</text>',
    ]
    for power in range(x_low, x_high + 1):
        x = at_x(10.0**power)
        out.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        label = _number(10.0**power)
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>')
    for power in range(y_low, y_high + 1):
        y = at_y(10.0**power)
        out.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(10.0**power)}</text>')
    for number, (name, points) in enumerate(curve.points.items()):
        places = [(at_x(x), at_y(max(y, 10.0**y_low))) for x, y in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dots = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        x, y = _LEFT + 285 * (number % 2), _HEIGHT - 30 + _LINE * (number // 2)
        slope = f" (exponent {exponents[name]})" if name in exponents else ""
        out.append(
            f'<g class="s{number % 5}"><path class="line" d="M{path}"/>{dots}'
            f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>'
            f'<text x="{x + 10}" y="{y + 4}">{escape(name)}{slope}</text></g>'
        )
    return "\n".join([*out, "</svg>", ""])


def _decades(values: list[float]) -> tuple[int, int]:
    positive = [v for v in values if v > 0]
    low, high = math.floor(math.log10(min(positive)) + 1e-9), math.ceil(math.log10(max(positive)) - 1e-9)
    return low, max(high, low + 1)


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
