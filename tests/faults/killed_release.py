"""``levada run`` that kills itself around the drop of the slot by the guard, which is less patient than usual.

The arguments are a command: ``python killed_release.py python -m levada run ...``.

``KILL_AT`` in the environment says where. With an empty one the command is not killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from levada.destinations.postgres.destination import PostgresDestination
from levada.runtime.source import preparation, slot_release
from levada.runtime.source.record import SourceRecord
from levada.runtime.stages import guard
from levada.runtime.tables.guard_patience import Patience
from levada.segments.log import SegmentLog

POINTS: dict[str, tuple[Any, str, bool]] = {
    "recorded": (guard, "record_release", True),
    "dropping": (slot_release, "drop_slot", False),
    "dropped": (slot_release, "drop_slot", True),
    "forgotten": (preparation, "drop_slot", False),
    "creating": (preparation, "create_guarded_slot", False),
    "created": (preparation, "create_guarded_slot", True),
    "begun": (SourceRecord, "begin", True),
    "existing": (preparation, "slot_exists", True),
    "removed": (SegmentLog, "remove", True),
    "repaired": (PostgresDestination, "repair", True),
    "accepted": (PostgresDestination, "accept_repair", True),
}
"""The function of each point, and True to be killed after it, False before it."""


def dying(function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Return a function that ends all processes of the engine, after or before it does its work."""

    def dies(*args: Any, **kwargs: Any) -> None:
        if after:
            function(*args, **kwargs)
        os.killpg(0, signal.SIGKILL)

    return dies


def main() -> None:
    """Run the command after the name of this file and that of the interpreter."""
    is_due = Patience.is_due
    Patience.is_due = lambda self, limit, figure, now, _: is_due(self, limit, figure, now, 1.0)  # type: ignore[method-assign]
    if point := os.environ.get("KILL_AT"):
        owner, name, after = POINTS[point]
        setattr(owner, name, dying(getattr(owner, name), after=after))
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
