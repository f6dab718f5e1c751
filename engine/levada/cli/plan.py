"""`levada plan`: prints what a run would do, before anything is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from levada.cli.check import problems_json, refused, show_problems
from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.formatting import duration, number, size
from levada.cli.hints import runnable
from levada.cli.output import UNBOUNDED, Output, console, working, write_json
from levada.errors import LevadaError
from levada.printable import counted, one_record
from levada.runtime.host.plan import PlannedTable, RunPlan, plan_run
from levada.runtime.host.readiness import start_problems
from levada.spec import Manifests
from levada.status import RetryPolicy
from levada.values import CopiedRows

_FIRST: Final = {
    CopiedRows.ALL: "yes",
    CopiedRows.NONE: "no rows (copy.mode None)",
    CopiedRows.PART: "a part (copy.where)",
}
"""The first copy of a table, by the rows that it takes."""
_MOST: Final = 10
"""The number of tables that one list has."""


def plan(manifests: Manifests, secrets: Path | None, work_dir: Path, output: Output) -> Exit:
    """Print the plan and the problems. With a problem that prevents the start, there may be no plan."""
    prepare(manifests)
    with working("checking the source and the destination"):
        problems = start_problems(manifests, secrets=secrets, work_dir=work_dir)
        stopped = refused(problems)
        found = _plan(manifests, secrets, work_dir, must=not stopped)
    if output is Output.JSON:
        write_json(
            {
                "ok": not stopped,
                "problems": problems_json(problems),
                "plan": None if found is None else plan_json(found),
            }
        )
    else:
        if found is not None:
            console().print(fitting_grid(found, console()))
            for line in lines(found):
                # Statements are copied from the terminal, so they have no line breaks of its width.
                console().print(line, markup=False, soft_wrap=line.startswith(" "))
        show_problems(problems)
    return Exit.PREFLIGHT if stopped else Exit.OK


def _plan(manifests: Manifests, secrets: Path | None, work_dir: Path, *, must: bool) -> RunPlan | None:
    """Return the plan. Unless it ``must`` be there, return None if it has no tables or cannot be made.

    The problems of the check then say why. A lake that refuses its key does not hide the estimates, for example.
    """
    try:
        found = plan_run(manifests, secrets=secrets, work_dir=work_dir)
    except LevadaError:
        if must:
            raise
        return None
    return found if must or found.tables else None


def plan_json(found: RunPlan) -> dict[str, Any]:
    """Return the plan as plain values for JSON."""
    return {
        "tables": [
            {
                "schema": table.name.schema,
                "name": table.name.name,
                "destinationTable": table.target,
                "mode": table.mode,
                "identity": table.estimate.identity,
                "rows": table.estimate.rows,
                "bytes": table.estimate.bytes,
                "copied": table.copied,
                "copiedRows": table.copied_rows.value,
                "masks": {
                    column: {"method": mask.method.value, "length": mask.length or None}
                    for column, mask in table.masks.entries
                },
                "copiedAgain": table.again or None,
                "formerTable": None if table.former is None else table.former.target,
                "formerTableStays": None if table.former is None else table.former.stays,
                "errorCode": None if table.error is None else table.error.code,
            }
            for table in found.tables
        ],
        "leaving": [
            {
                "schema": table.name.schema,
                "name": table.name.name,
                "destinationTable": table.target,
                "dropped": table.dropped,
            }
            for table in found.leaving
        ],
        "changesAtSource": list(found.changes),
        "cutsThatLoseTables": found.cuts,
        "approvalRequired": found.waits,
        "copyBytes": found.bytes,
        "copySecondsAtLeast": found.copy_s,
        "connections": found.connections,
        "readBytesPerSecond": found.rates.read,
        "walBytesPerSecond": found.rates.wal,
        "stagedBytes": found.staged,
        "stagingFreeBytes": found.staging_free,
    }


def fitting_grid(found: RunPlan, target: Console) -> Table:
    """Return the tables as wide as the console allows."""
    wide = grid(found)
    needed = Measurement.get(target, target.options.update(max_width=UNBOUNDED), wide).maximum
    return grid(found, narrow=True) if needed > target.width else wide


def grid(found: RunPlan, *, narrow: bool = False) -> Table:
    """Return the tables, the largest first. ``narrow`` puts names at the destination below those at the source."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("TABLE", "ROWS", "SIZE", "IDENTITY", "MODE", "COPY", *(() if narrow else ("DESTINATION",))):
        justify: Literal["left", "right"] = "right" if name in ("ROWS", "SIZE") else "left"
        wraps = name in ("TABLE", "COPY", "DESTINATION")
        made.add_column(name, justify=justify, overflow="fold", no_wrap=not wraps)
    for table in sorted(found.tables, key=lambda t: (t.copied and not t.again, -t.estimate.bytes, t.name)):
        name, target = one_record(str(table.name)), one_record(table.target)
        of_name = [f"{name}\n  {target}"] if narrow else [name]
        made.add_row(*map(Text, (*of_name, *_cells(table), *(() if narrow else (target,)))))
    return made


def _cells(table: PlannedTable) -> tuple[str, ...]:
    """Return what is between the table's two names."""
    rows = "" if table.estimate.rows is None else f"~{number(table.estimate.rows)}"
    copy = table.again or ("no" if table.copied else _FIRST[table.copied_rows])
    if table.again and table.copied_rows is not CopiedRows.ALL:
        copy += f", {_FIRST[table.copied_rows]}"
    if table.error is not None and not table.again:
        copy += f", Errored [{table.error.code}]"
    return rows, size(table.estimate.bytes), table.estimate.identity, table.mode, one_record(copy)


def lines(found: RunPlan) -> Iterator[str]:
    """Yield what is copied and staged, how long that takes, and what changes at the source."""
    yield f"to copy: {counted(len(found.to_copy), 'table')}, {size(found.bytes)}"
    for reason, count in Counter(table.again for table in found.to_copy if table.again).items():
        yield f"copied again: {counted(count, 'table')}, {reason}"
    yield from _masked(found)
    yield from _moved(found)
    yield from _parked(found)
    for gone in found.leaving:
        why = "dropped at the source" if gone.dropped else "no longer selected"
        stays = f", and its table {gone.target} at the destination stays" if gone.target else ""
        yield one_record(f"{why}: {gone.name}. Its state is forgotten{stays}")
    if found.waits:
        yield "spec.approval is Manual: only levada run with the option --approve starts"
    if found.copy_s is not None and found.rates.read is not None:
        read = size(found.rates.read)
        yield (
            f"at least {duration(found.copy_s)}: a connection reads {read}/s of the largest table,"
            f" and {found.connections} read at the same time"
        )
    elif found.to_copy:
        yield "how long that takes is not known: the tables are too small to measure it"
    free = "" if found.staging_free is None else f", and {size(found.staging_free)} are free"
    yield f"the source writes {size(found.rates.wal)} of WAL a second now" + (
        "" if found.staged is None else f": about {size(found.staged)} are staged while tables are copied{free}"
    )
    if found.changes:
        yield "a run executes at the source, besides creating its state and, as a superuser, its DDL trigger:"
        yield from (f"  {change}" for change in found.changes)
    else:
        yield "a run changes nothing at the source, besides its state"


def _masked(found: RunPlan) -> Iterator[str]:
    """Yield the tables with masked columns, each with their masks."""
    masked = [table for table in found.tables if table.masks]
    for table in masked[:_MOST]:
        masks = ", ".join(
            f"{column} by {mask.method.value}{f' to {mask.length}' if mask.length else ''}"
            for column, mask in table.masks.entries
        )
        yield "  " + one_record(f"{table.name} is masked: {masks}")
    if len(masked) > _MOST:
        yield f"  and {len(masked) - _MOST:,} more"


def _moved(found: RunPlan) -> Iterator[str]:
    """Yield the tables whose next copy has another place, what becomes of their tables there, and of the cuts."""
    moved = [(table, table.former) for table in found.tables if table.former is not None]
    for table, former in moved[:_MOST]:
        fate = "stays until you drop it" if former.stays else "is dropped"
        yield "  " + one_record(f"{table.name} is copied again into {table.target}. Its table {former.target} {fate}")
    if len(moved) > _MOST:
        yield f"  and {len(moved) - _MOST:,} more"
    if found.cuts:
        yield f"{counted(found.cuts, 'cut')} will no longer have them, see levada cuts"


def _parked(found: RunPlan) -> Iterator[str]:
    """Yield the parked tables, each with its error and what resolves it."""
    if found.parked:
        yield f"parked: {counted(len(found.parked), 'table')}. A run copies none of them"
    for table in found.parked:
        assert table.error is not None
        error = table.error
        yield f"  {one_record(f'{table.name}: {error.reason}')} [{error.code}]"
        if error.retry_policy == RetryPolicy.TIMED_RETRY:
            yield "    a run retries it by itself"
        else:
            solution = error.solution or f"levada retry MANIFEST {table.name.argument}"
            yield f"    hint: {one_record(runnable(solution))}"
