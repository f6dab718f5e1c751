"""``levada run`` with small ranges, which kills itself during a copy.

The arguments are a command: ``python interrupted_copy.py python -m levada run ...``.

``KILL_AT`` in the environment says where: ``range`` after each range that was recorded, ``changes`` after the changed
rows were read, ``closed`` when all rows are in PostgreSQL and do not serve yet, ``commit`` after the commit at the
destination, or nowhere.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from levada.copy import resumable
from levada.copy.plan import RangeLimits
from levada.destinations.ducklake import destination
from levada.destinations.iceberg import resumed_copy
from levada.destinations.postgres import destination as postgres_destination
from levada.destinations.postgres import shadow_copy
from levada.runtime.host import assembly
from levada.runtime.limits import Limits


def then_die(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, and ends all processes of the engine."""

    def dying(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        os.killpg(0, signal.SIGKILL)

    return dying


def die(*_: Any, **__: Any) -> Any:
    """End all processes of the engine."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run the command after the name of this file and that of the interpreter."""
    of, small = assembly.pipeline_config, Limits(ranges=RangeLimits(4 << 20, 4 << 20))
    assembly.pipeline_config = lambda *args, **more: replace(of(*args, **more), limits=small)
    match os.environ.get("KILL_AT"):
        case "range":
            resumable._Journal.finished = then_die(resumable._Journal.finished)  # type: ignore[method-assign]
        case "changes":
            resumable.ResumableRows.check = then_die(resumable.ResumableRows.check)  # type: ignore[method-assign]
        case "closed":
            shadow_copy.serve = die
        case "commit":
            resumed_copy.commit_copy = then_die(resumed_copy.commit_copy)
            destination.commit = then_die(destination.commit)  # type: ignore[attr-defined]  # a name of its imports
            postgres_destination.patiently = then_die(postgres_destination.patiently)  # type: ignore[attr-defined]  # too
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
