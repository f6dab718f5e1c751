"""The ageing of figures that the supervisor does not publish again, because it waits, for example for its store. Pure.

Meanwhile no change is applied, and changes at the source are unknown. So each lag grows by the clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from levada.status import CatchUpProgress, CatchUpState, CopyProgress, Progress, TableProgress

_TREND_S: Final = 60.0
"""Seconds of a growing lag that make a trend, as in `levada.runtime.report.outlook`."""


def aged(progress: Progress, age_s: float, rows: int) -> Progress:
    """Return the progress as of ``age_s`` seconds later. ``rows`` are the rows that capture has received by then."""
    outlook = CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE) if age_s >= _TREND_S else None
    rate = max(0, rows - progress.capture.rows) / age_s
    return replace(
        progress,
        catch_up=outlook,
        capture=replace(progress.capture, rows_per_second=rate),
        tables=tuple(_aged_table(table, age_s, outlook) for table in progress.tables),
    )


def _aged_table(table: TableProgress, age_s: float, outlook: CatchUpProgress | None) -> TableProgress:
    streams = table.lag_seconds is not None and not (table.is_parked or table.suspended)
    return replace(
        table,
        copy=table.copy if table.copy is None or table.copy.percent >= 100 else _aged_copy(table.copy),
        lag_seconds=None if table.lag_seconds is None else table.lag_seconds + age_s,
        catch_up=outlook if streams else None,
        resync=table.resync and replace(table.resync, copy=table.resync.copy and _aged_copy(table.resync.copy)),
    )


def _aged_copy(copy: CopyProgress) -> CopyProgress:
    """Return the progress of a copy without the figures that say how fast it is now."""
    return replace(copy, rows_per_second=0.0, seconds_left=None)
