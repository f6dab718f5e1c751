"""The process from which Spark forks its Python workers, with the modules of Levada's tasks already imported.

Spark starts it instead of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker then starts in milliseconds and
shares the memory of these modules. Otherwise each worker would spend seconds of CPU on the imports, again after each
idle minute. A destination whose tasks need more has a module of its own that imports it and calls `main`.

The process takes about 100 MB, so it ends when it was idle for some minutes. Spark starts another one for its next
task: it tries once more if it cannot connect.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from typing import Final

from pyspark import daemon

import levada.copy.snapshot

__all__ = ["levada", "main"]

_IDLE_S: Final = 120.0
_CHECKS: Final = 4
"""The number of checks for workers in the idle time."""


def main(idle_s: float = _IDLE_S) -> None:
    """Fork workers until Spark ends, or until there was none for about ``idle_s`` seconds.

    Spark itself ends a worker that had no task for a minute.
    """
    # Keeps the garbage collection of the workers from visiting these modules, which would copy their memory pages.
    gc.freeze()
    _end_when_idle(idle_s)
    daemon.manager()  # type: ignore[no-untyped-call]  # as pyspark has it


def _end_when_idle(idle_s: float) -> None:
    """Check for workers by a timer, because `daemon.manager` does not return. Workers do not inherit the timer."""
    seen_at = time.monotonic()

    def check(*_: object) -> None:
        nonlocal seen_at
        if _has_workers():
            seen_at = time.monotonic()
        elif time.monotonic() - seen_at >= idle_s:
            sys.exit(0)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, idle_s / _CHECKS, idle_s / _CHECKS)


def _has_workers() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
