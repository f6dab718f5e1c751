"""The names of workers, whose progress is stored by name."""

from __future__ import annotations

from typing import Final

from levada.values import TableId

_TABLE: Final = "table_"


def table_worker(table: TableId) -> str:
    """Return the name of the worker whose progress belongs to a table, and is deleted with the table."""
    return f"{_TABLE}{int(table)}"


def resync_worker(table: TableId) -> str:
    """Return the name of the worker whose progress is the LSN at which the table's shadow copy was started."""
    return f"resync_{int(table)}"


def table_of_worker(worker: str) -> TableId | None:
    """Return the table of `table_worker`'s result, or None for every other name."""
    digits = worker.removeprefix(_TABLE)
    return TableId(digits) if digits != worker and digits.isdecimal() else None
