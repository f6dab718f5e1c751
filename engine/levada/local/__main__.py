"""``python -m levada.local``: install Java and Spark's jars into the cache, and print their paths."""

from __future__ import annotations

import logging
import sys

from levada.errors import LevadaError
from levada.local.jars import JARS, ensure_jars
from levada.local.java import ensure_java


def main() -> int:
    """Run the command and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        java = ensure_java()
        print(f"Java {java.version}: {java.home}")
        for jar, path in zip(JARS, ensure_jars(), strict=True):
            print(f"{jar}: {path}")
    except LevadaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
