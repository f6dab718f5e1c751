"""The plan of each table's next copy, from its phase, its settings and the destination."""

from __future__ import annotations

from levada.runtime.tables.copy_plan import CopyPlan, plan_copy
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import can_replace
from levada.runtime.tables.resync import stays_readable


class NextCopy(Part):
    """Plans copies. It reads the states of tables and changes none."""

    def __init__(self, shared: SharedParts) -> None:
        super().__init__(shared)
        self._can_replace = can_replace(shared.destination)

    def plan(self, record: TableRecord) -> CopyPlan:
        """Return the plan of a copy that starts now. Unless the table streams, the copy has the stream's columns."""
        wanted, streams = self._handled.wanted_settings(record), stays_readable(record)
        return plan_copy(
            self._handled.last_settings(record),
            wanted if streams else self._columns.with_columns(record, wanted),
            replaces=self._can_replace,
            streams=streams,
            dedicated=self._config_ref.current.table(record.name).dedicated_copy,
        )
