"""Measure curves. Usage::

    python -m benchmarks.scale [CURVE ...] [--sizes 1000 10000] [--full] [-o json] [--plots docs/images/scale]

Without names it measures all curves at sizes that take minutes. ``--full`` takes hours and tens of gigabytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import table
from benchmarks.scale import applying, backlog, capturing, copying, indexing, streaming, updating
from benchmarks.scale.curve import Curve
from benchmarks.scale.plot import svg

DEFINITIONS = {
    d.name: d
    for module in (capturing, applying, indexing, copying, backlog, streaming, updating)
    for d in module.DEFINITIONS
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=", ".join(DEFINITIONS))
    parser.add_argument("--sizes", type=int, nargs="+", help="the values of x, for every curve that is named")
    parser.add_argument("--full", action="store_true", help="all sizes of each curve")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--plots", type=Path, help="write an SVG for each curve into this folder")
    options = parser.parse_args()
    if unknown := set(options.curves) - set(DEFINITIONS):
        parser.error(f"there is no curve {', '.join(sorted(unknown))}")
    documents = []
    for name in options.curves or DEFINITIONS:
        definition = DEFINITIONS[name]
        sizes = options.sizes or (definition.full if options.full else definition.quick)
        with tempfile.TemporaryDirectory(prefix="levada-scale-") as folder:
            curve = Curve(definition, definition.run(sizes, Path(folder)))
        documents.append(curve.document())
        if options.plots:
            options.plots.mkdir(parents=True, exist_ok=True)
            (options.plots / f"{name}.svg").write_text(svg(curve))
        if options.output == "table":
            print(f"\n## {definition.title}\n\n{_table(curve)}", flush=True)
        else:
            print(f"{name}: {curve.exponents()}", file=sys.stderr, flush=True)
    if options.output == "json":
        print(json.dumps(documents, indent=2))


def _table(curve: Curve) -> str:
    names = list(curve.points)
    xs = sorted({x for points in curve.points.values() for x, _ in points})
    found = {name: dict(points) for name, points in curve.points.items()}
    rows = [[f"{x:,.0f}", *(f"{y:.3g}" if (y := found[n].get(x)) is not None else "" for n in names)] for x in xs]
    slopes = curve.exponents()
    rows.append(["exponent", *(str(slopes.get(n, "")) for n in names)])
    return table([curve.definition.x, *(f"{n}: {curve.definition.y}" for n in names)], rows)


if __name__ == "__main__":
    main()
