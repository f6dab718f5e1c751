"""``python -m levada.local``: find Java, download the jars of the built-in destinations, and print their paths.

It needs neither the command line's packages nor the destinations, for the build of the image.
"""

from __future__ import annotations

import logging
import sys

from levada.errors import LevadaError
from levada.local.jars import built_in_jars, ensure_jars
from levada.local.java import require_java


def main() -> int:
    """Run the command and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        java = require_java()
        print(f"Java {java.version}: {java.home}")
        jars = built_in_jars()
        for jar, path in zip(jars, ensure_jars(jars), strict=True):
            print(f"{jar}: {path}")
    except LevadaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
