"""The process from which Spark forks its Python workers, with the modules of Levada's tasks already imported.

Spark starts it instead of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker then starts in milliseconds and
shares the memory of these modules. Otherwise each worker would spend seconds of CPU on the imports, again after each
idle minute. A destination whose tasks need more has a module of its own that imports it and calls `main`.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import levada.copy.snapshot

__all__ = ["levada", "main"]


def main() -> None:
    """Fork workers until Spark ends."""
    # Keeps the garbage collection of the workers from visiting these modules, which would copy their memory pages.
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]  # as pyspark has it


if __name__ == "__main__":
    main()
