"""``python -m levada.local``: install Java and the jars of the built-in destinations, and print their paths.

They are installed into the cache. The jars are read from the files of the destinations, which need not be importable.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from levada.errors import LevadaError
from levada.local.jars import ensure_jars, read_jars
from levada.local.java import ensure_java


def main() -> int:
    """Run the command and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        java = ensure_java()
        print(f"Java {java.version}: {java.home}")
        destinations = Path(__file__).parents[1] / "destinations"
        jars = [jar for file in sorted(destinations.glob("*/jars.toml")) for jar in read_jars(file)]
        for jar, path in zip(jars, ensure_jars(jars), strict=True):
            print(f"{jar}: {path}")
    except LevadaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
