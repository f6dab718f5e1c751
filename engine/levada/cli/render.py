"""The document of ``/v1/progress``, rendered as a table for terminals and as lines for logs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from levada.cli.formatting import duration, number, percent, rate, size
from levada.cli.hints import runnable

Document = Mapping[str, Any]

_STYLES: Mapping[str, str] = {"Ready": "green", "Errored": "bold red", "DataSync": "cyan", "Init": "dim"}


def dashboard(now: Document, before: Document | None = None) -> RenderableType:
    """Return the whole document for a terminal. Rates are computed from the difference to ``before``."""
    parts: list[RenderableType] = [Text.from_markup(headline(now)), Text.from_markup(slot_line(now), style="dim")]
    if now["tables"]:
        parts.append(tables(now, before))
    parts += [Text(line, style="cyan") for line in (*renamed_tables(now), *notes(now), *resyncs(now))]
    parts += [Text(line, style="red") for line in errors(now)]
    return Group(*parts)


def headline(now: Document) -> str:
    """Return the pipeline's name, state and number of ready tables, with markup."""
    ready = now["tablesByPhase"].get("Ready", 0)
    text = f"[bold]{escape(now['pipeline'])}[/bold]  {now['state']}  {ready}/{len(now['tables'])} tables ready"
    arriving = rate(now["capture"]["rowsPerSecond"])
    return f"{text}  {arriving} arriving" if arriving else text


def slot_line(now: Document) -> str:
    """Return the slot's lag, its retained WAL and the size of the staging area, with markup."""
    slot, staging = now["slot"], now["staging"]
    figures = [
        f"slot {escape(slot['name'])}: lag {size(slot['lagBytes'])}",
        f"retained {size(slot['retainedBytes'])}",
        f"staged {size(staging['bytes'])}",
    ]
    if slot["walStatus"] not in (None, "reserved"):
        figures.append(f"[yellow]WAL is {escape(slot['walStatus'])}[/yellow]")
    return ", ".join(figures)


def tables(now: Document, before: Document | None = None) -> Table:
    """Return a table with one row for each replicated table."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("TABLE", overflow="ellipsis")
    grid.add_column("PHASE")
    for name in ("COPIED", "ROWS", "RATE", "LEFT", "BEHIND", "WAITING"):
        grid.add_column(name, justify="right", no_wrap=True)
    rates = applied_rates(now, before)
    for table in now["tables"]:
        grid.add_row(*cells(table, rates.get(table["id"])))
    return grid


def cells(table: Document, applied_rate: float | None = None) -> tuple[RenderableType, ...]:
    """Return one table's row.

    Rows and rate are the copy's while it runs. Afterwards they are those of applied changes.
    """
    copy = table["copy"]
    copying = table["phase"] == "DataSync" and copy is not None
    return (
        Text(f"{table['schema']}.{table['name']}"),
        Text(table["phase"], style=_STYLES.get(table["phase"], "")),
        percent(copy["percent"]) if copy is not None else "",
        number(copy["rows"] if copying else table["rowsApplied"]),
        rate(copy["rowsPerSecond"] if copying else applied_rate),
        duration(copy["secondsLeft"]) if copying else "",
        "" if table["lagSeconds"] is None else duration(table["lagSeconds"]),
        number(table["pendingRows"]) if table["pendingRows"] else "",
    )


def applied_rates(now: Document, before: Document | None) -> dict[int, float]:
    """Return each table's applied changes per second between two documents of the same process."""
    seconds = 0.0 if before is None else _seconds_between(before, now)
    if before is None or seconds <= 0 or before["epoch"] != now["epoch"]:
        return {}
    applied = {t["id"]: t["rowsApplied"] for t in before["tables"]}
    return {t["id"]: max(0, t["rowsApplied"] - applied[t["id"]]) / seconds for t in now["tables"] if t["id"] in applied}


def renamed_tables(now: Document) -> Iterator[str]:
    """Yield a line for each table whose name at the destination differs from its name at the source."""
    for table in now["tables"]:
        place = table.get("destinationTable", "")
        if place and not f".{place}".endswith(f".{table['name']}"):
            yield f"{table['schema']}.{table['name']}: named {place} at the destination"


def resyncs(now: Document) -> Iterator[str]:
    """Yield a line with the progress of each resync."""
    for table in now["tables"]:
        text = _resync_text(table)
        if text:
            yield f"{table['schema']}.{table['name']}: {text}"


def _resync_text(table: Document) -> str:
    resync = table["resync"]
    step = "" if resync is None else resync["step"]
    match step:
        case "Waiting":
            return "resync queued (the table stays readable)"
        case "Copying":
            copy = resync["copy"]
            done = "" if copy is None else f", {percent(copy['percent'])}, {number(copy['rows'])} rows"
            left = f", {duration(copy['secondsLeft'])} left" if copy and copy["secondsLeft"] else ""
            return f"resync: copying (the table stays readable){done}{left}"
        case "CatchingUp":
            return f"resync: the shadow copy is catching up, {number(resync['pendingRows'])} changes left"
        case "GivenUp":
            return "resync failed, the table continues without it"
    return ""


def notes(now: Document) -> Iterator[str]:
    """Yield a line for each table with a note: something unusual that is not an error."""
    for table in now["tables"]:
        if table["note"]:
            yield f"{table['schema']}.{table['name']}: {table['note']}"


def errors(now: Document) -> Iterator[str]:
    """Yield the errors with their hints, the pipeline's own errors first."""
    for what, holder in (("pipeline", now), ("store", now["store"]), ("capture", now["capture"])):
        if holder["error"] is not None:
            yield error_text(what, holder["error"])
    if now["manifest"]["error"] is not None:
        yield error_text("changed manifest", now["manifest"]["error"])
    if now["manifest"]["waiting"]:
        fields = ", ".join(f"{w['field']} ({w['change']})" for w in now["manifest"]["waiting"])
        yield f"changed manifest: these fields take effect after a restart: {fields}"
    for table in now["tables"]:
        name = f"{table['schema']}.{table['name']}"
        if table["error"] is not None:
            yield error_text(name, table["error"])
        if table["resync"] is not None and table["resync"]["error"] is not None:
            yield error_text(f"resync of {name}", table["resync"]["error"])


def error_text(what: str, error: Document) -> str:
    """Return one error with its next retry or its hint."""
    text = f"{what}: {error['reason']} [{error['code']}]"
    if error["nextRetry"] is not None:
        text += f", attempt {error['attempts']}, retried at {error['nextRetry']}"
    elif error["solution"]:
        text += f"\n  hint: {runnable(error['solution'])}"
    return text


def changed_lines(now: Document, before: Document | None) -> Iterator[str]:
    """Yield a line of plain text for each change since ``before``: states, phases, tenths of copies, errors."""
    if before is None or before["state"] != now["state"]:
        yield f"{now['pipeline']}: {now['state']}"
    known = {} if before is None else {t["id"]: t for t in before["tables"]}
    for table in now["tables"]:
        line = _table_change(table, known.get(table["id"]))
        if line:
            yield f"{table['schema']}.{table['name']}: {line}"
    old_errors = set() if before is None else set(errors(before))
    yield from (line for line in errors(now) if line not in old_errors)


def _table_change(table: Document, before: Document | None) -> str:
    phase, copy = table["phase"], table["copy"]
    if before is None or before["phase"] != phase:
        return f"{phase}, {table['note']}" if table["note"] and before is None else str(phase)
    if _resync_stage(table) != _resync_stage(before):
        swapped = before["resync"] is not None and before["resync"]["step"] == "CatchingUp"
        return _resync_text(table) or ("resynced: the shadow copy has replaced the table" if swapped else "")
    if copy is None or phase != "DataSync":
        return ""
    done = 0.0 if before["copy"] is None else before["copy"]["percent"]
    if int(copy["percent"]) // 10 == int(done) // 10:
        return ""
    speed = f" at {rate(copy['rowsPerSecond'])}" if copy["rowsPerSecond"] else ""
    left = f", {duration(copy['secondsLeft'])} left" if copy["secondsLeft"] else ""
    return f"{phase} {percent(copy['percent'])}, {number(copy['rows'])} rows{speed}{left}"


def _resync_stage(table: Document) -> tuple[str, int] | None:
    """Return the part of a resync whose changes are logged: the step, and the tenths of a copy."""
    resync = table["resync"]
    if resync is None:
        return None
    copying = resync["step"] == "Copying" and resync["copy"] is not None
    return resync["step"], int(resync["copy"]["percent"]) // 10 if copying else 0


def summary(now: Document) -> str:
    """Return one line of plain text about the whole pipeline."""
    behind = [t["lagSeconds"] for t in now["tables"] if t["lagSeconds"] is not None]
    return Text.from_markup(f"{headline(now)}, behind {duration(max(behind, default=0.0))}, {slot_line(now)}").plain


def _seconds_between(before: Document, now: Document) -> float:
    return (datetime.fromisoformat(now["at"]) - datetime.fromisoformat(before["at"])).total_seconds()
