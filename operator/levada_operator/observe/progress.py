"""The progress of a driver as the operator fetched it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from levada.status import ErrorProgress, Progress, TableProgress, runnable


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of a driver. ``fetched_at`` is by the operator's clock."""

    progress: Progress
    fetched_at: datetime


def read_report(progress: Progress, fetched_at: datetime) -> ProgressReport:
    """Return the report, with solutions of errors as commands that run where kubectl does."""

    def of(error: ErrorProgress | None) -> ErrorProgress | None:
        return None if error is None else replace(error, solution=runnable(error.solution, progress.manifest))

    progress = replace(
        progress,
        error=of(progress.error),
        store=replace(progress.store, error=of(progress.store.error)),
        publication=replace(
            progress.publication,
            error=of(progress.publication.error),
            lent=of(progress.publication.lent),
            trigger=of(progress.publication.trigger),
        ),
        capture=replace(progress.capture, error=of(progress.capture.error)),
        tables=tuple(_of_table(table, of) for table in progress.tables),
    )
    return ProgressReport(progress, fetched_at)


def _of_table(table: TableProgress, of: Callable[[ErrorProgress | None], ErrorProgress | None]) -> TableProgress:
    if table.error is None and table.verify_error is None and (table.resync is None or table.resync.error is None):
        return table
    resync = None if table.resync is None else replace(table.resync, error=of(table.resync.error))
    return replace(table, error=of(table.error), verify_error=of(table.verify_error), resync=resync)


def error_text(error: ErrorProgress) -> str:
    """Return the reason, the code and the solution of an error in one line."""
    said = error.solution in error.reason
    return f"{error.reason} [{error.code}]" + ("" if said else f"; {error.solution}")
