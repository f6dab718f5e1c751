"""``levada run`` that compacts small tables every few batches, and kills itself at a step of it.

The arguments are a command: ``python -m tests.faults.killed_compaction python -m levada run ...``.

``KILL_AT`` in the environment says where. With an empty one the command is not killed.
"""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import replace
from typing import Any

from tests.faults.killed_release import dying

from levada.destinations.iceberg import destination, small_tables
from levada.destinations.iceberg.maintenance import FileLimits, MaintenanceSettings
from levada.destinations.iceberg.retention import RETENTION, RetentionLimits
from levada.destinations.iceberg.table import IcebergTable
from levada.runtime.stages import apply

POINTS: dict[str, tuple[Any, str, bool]] = {
    "read": (small_tables, "live_files", True),
    "written": (IcebergTable, "rewrite", False),
    "committed": (IcebergTable, "rewrite", True),
    "indexed": (destination, "remove_left_tags", False),
}
"""The function of each point, and True to be killed after it, False before it. The last one needs no compaction."""


def main() -> None:
    """Run the command after the name of this module and that of the interpreter."""
    kept = RetentionLimits(newest=3, together=3, intervals=(), longest=0) if os.environ.get("EXPIRE") else RETENTION
    settings = MaintenanceSettings(0.1, files=FileLimits(data_files=3, delete_files=3), retention=kept)
    MaintenanceSettings.of = lambda _: settings  # type: ignore[method-assign, assignment, misc]
    is_due = apply.maintenance_is_due
    apply.maintenance_is_due = lambda record, config, now: is_due(record, replace(config, maintenance_s=0.5), now)  # type: ignore[attr-defined]
    if point := os.environ.get("KILL_AT"):
        owner, name, after = POINTS[point]
        setattr(owner, name, dying(getattr(owner, name), after=after))
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
