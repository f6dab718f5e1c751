"""The progress of a pipeline, rendered as a table for terminals and as lines for logs. Pure.

Names and messages come from elsewhere. `dashboard`, `changed_lines` and `summary` escape their control characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from levada import codes
from levada.cli.fitted_table import FittedTable
from levada.cli.formatting import duration, number, percent, rate, size
from levada.cli.hints import runnable
from levada.printable import counted, one_record
from levada.status import (
    CatchUpProgress,
    CatchUpState,
    CopyProgress,
    ErrorProgress,
    GuardMeasure,
    PipelineState,
    Progress,
    ResyncStep,
    TablePhase,
    TableProgress,
    utc_text,
)
from levada.values import CopiedRows

_NEVER: Final = "never"
_HEADINGS: Final = ("TABLE", "PHASE", "COPIED", "ROWS", "CHANGES", "RATE", "LEFT", "BEHIND", "WAITING")
_OPTIONAL: Final = ("CHANGES", "ROWS", "RATE", "WAITING", "COPIED", "LEFT", "BEHIND")
"""The columns that a narrow terminal leaves out, the first ones first."""
_ACTION_SHOWN: Final = timedelta(days=1)
_STYLES: Mapping[str, str] = {
    TablePhase.READY: "green",
    TablePhase.ERRORED: "bold red",
    TablePhase.DATA_SYNC: "cyan",
    TablePhase.INIT: "dim",
}


_SLOT_GONE: Final = frozenset({codes.SLOT_LOST, codes.SLOT_MISSING})
"""Codes of an error after which no table is ready, whatever its phase was."""
_UNCOPIED: Final = frozenset({TablePhase.INIT, TablePhase.DATA_SYNC, TablePhase.ERRORED})


def dashboard(now: Progress, before: Progress | None = None, most_tables: int | None = None) -> RenderableType:
    """Return the whole pipeline for a terminal. Rates are computed from the difference to ``before``.

    If there are more than ``most_tables``, those are listed that are most worth a look, and the others are counted.
    """
    parts: list[RenderableType] = [_markup(headline(now)), _markup(slot_line(now), "dim")]
    if now.tables:
        listed = most_urgent(now.tables, most_tables)
        parts.append(tables(now, before, listed))
        parts += [_text(line, "dim") for line in unlisted_lines(now.tables, listed)]
    parts += [_text(line, "yellow") for line in (*memory_lines(now), *guard_lines(now), *differences(now))]
    parts += [
        _text(line, "cyan") for line in (*renamed_tables(now), *notes(now), *copies(now), *resyncs(now), *proofs(now))
    ]
    parts += [_text(line, "dim") for line in cut_lines(now)]
    parts += [_text(line, "red") for line in errors(now)]
    return Group(*parts)


def headline(now: Progress) -> str:
    """Return the pipeline's name, state and number of ready tables, with markup."""
    ready = f"{now.tables_by_phase.get(TablePhase.READY, 0)}/{counted(len(now.tables), 'table')} ready"
    if now.error is not None and now.error.code in _SLOT_GONE:
        ready = f"[bold red]slot lost[/bold red], {counted(len(now.tables), 'table')}"
    text = f"[bold]{escape(now.pipeline)}[/bold]  {_state(now)}  {ready}"
    arriving = rate(now.capture.rows_per_second)
    text += f"  {arriving} arriving" if arriving else ""
    left = _outlook(now.catch_up)
    if not left:
        return text
    return (
        f"{text}  [yellow]does not catch up at this rate[/yellow]" if left == _NEVER else f"{text}  {left} to catch up"
    )


def _state(now: Progress) -> str:
    """Return what the pipeline does, with markup. A process that runs may wait for its store or its source."""
    if now.error is not None and now.error.code == codes.ENGINE_ELSEWHERE:
        return "runs elsewhere"
    if now.state == PipelineState.RUNNING and now.store.error is not None:
        return "[red]waits for its store[/red]"
    if now.state == PipelineState.RUNNING and now.capture.error is not None and not now.capture.connected:
        return "[red]waits for its source[/red]"
    return escape(now.state)


def slot_line(now: Progress) -> str:
    """Return the slot's lag, its retained WAL and the size of the staging area, with markup."""
    slot = now.slot
    figures = [
        f"slot {escape(slot.name)}: lag {size(slot.lag_bytes)}",
        f"retained {size(slot.retained_bytes)}",
        f"staged {size(now.staging.bytes)}",
    ]
    if slot.wal_status is not None and slot.wal_status != "reserved":
        figures.append(f"[yellow]WAL is {escape(slot.wal_status)}[/yellow]")
    return ", ".join(figures)


def memory_lines(now: Progress) -> Iterator[str]:
    """Yield a line while capture waits for memory."""
    if now.memory.waiting:
        held, budget = size(now.memory.used_bytes), size(now.memory.budget_bytes)
        yield f"memory: capture waits, because batches hold {held} of {budget} (spec.memory)"


def guard_lines(now: Progress) -> Iterator[str]:
    """Yield a line for each passed limit of the guard, then the last action, and whether copies are paused.

    The last action is shown for a day, so that it explains the copies that follow the end of a slot.
    """
    for passed in now.guard.passed:
        percent_of = passed.measure == GuardMeasure.RETAINED_WAL_PERCENT
        limit, value = (f"{n}%" if percent_of else size(n) for n in (passed.limit, passed.value))
        yield f"guard: {passed.measure} is {value}, the limit of {passed.policy} is {limit}"
    newest = now.guard.actions[-1] if now.guard.actions else None
    if newest is not None and (now.guard.passed or now.at - newest.at < _ACTION_SHOWN):
        yield f"guard: {newest.message} ({utc_text(newest.at)})"
    if now.guard.pauses_copies:
        until = "the pipeline is within its limits" if now.guard.passed else "the WAL that the slot keeps is known"
        yield f"guard: no copy begins until {until}"


def cut_lines(now: Progress) -> Iterator[str]:
    """Yield a line for the newest complete cut, and one for the pending one."""
    last, pending = now.cuts.last_complete, now.cuts.pending
    if last is not None and last.at is not None:
        yield f"cuts: {last.name} at {last.lsn} is the newest complete one ({utc_text(last.at)})"
    if pending is not None:
        yield f"cuts: {pending.name} at {pending.lsn} has {pending.tagged} of {counted(pending.tables, 'table')}"
        yield from (f"cuts: {pending.name} is without {why}" for why in pending.left_out)


def most_urgent(tables: Sequence[TableProgress], most: int | None) -> Sequence[TableProgress]:
    """Return at most ``most`` tables in their order: those with errors first, then copies, then those that trail."""
    if most is None or len(tables) <= most:
        return tables

    def urgency(table: TableProgress) -> tuple[bool, int, float]:
        phases = (TablePhase.DATA_SYNC, TablePhase.INIT, TablePhase.READY)
        place = phases.index(table.phase) if table.phase in phases else 0
        return table.error is None, place, -(table.lag_seconds or 0.0)

    chosen = {table.id for table in sorted(tables, key=urgency)[:most]}
    return [table for table in tables if table.id in chosen]


def unlisted_lines(tables: Sequence[TableProgress], listed: Sequence[TableProgress]) -> Iterator[str]:
    """Yield a line with the phases of the tables that are not listed, if there are any."""
    if len(listed) < len(tables):
        known = {table.id for table in listed}
        phases = Counter(str(table.phase) for table in tables if table.id not in known)
        each = ", ".join(f"{count:,} {phase}" for phase, count in phases.most_common())
        yield f"and {counted(len(tables) - len(listed), 'more table')}: {each}"


def tables(now: Progress, before: Progress | None, listed: Sequence[TableProgress]) -> FittedTable:
    """Return a table with one row for each listed table."""
    rates = applied_rates(now, before)
    return FittedTable(_HEADINGS, [cells(table, rates.get(table.id)) for table in listed], _OPTIONAL)


def cells(table: TableProgress, applied_rate: float | None = None) -> tuple[Text, ...]:
    """Return one table's row. Rows are those of its copy, and the rate is that of applied changes after the copy.

    The size of a copy that an earlier process finished is not known.
    """
    copy = table.copy
    running = copy if table.phase == TablePhase.DATA_SYNC else None
    figures = (
        _copied(table, copy),
        number(copy.rows) if copy is not None and copy.total_bytes is not None else "",
        number(table.rows_applied) if table.rows_applied else "",
        rate(applied_rate if running is None else running.rows_per_second),
        _outlook(table.catch_up) if running is None else duration(running.seconds_left),
        "" if table.lag_seconds is None else duration(table.lag_seconds),
        number(table.pending_rows) if table.pending_rows else "",
    )
    name, phase = _text(str(table.table)), _text(table.phase, _STYLES.get(table.phase, ""))
    return (name, phase, *map(Text, figures))


def _copied(table: TableProgress, copy: CopyProgress | None) -> str:
    """Return how much of the table is copied, and whether that is a part of its rows."""
    if table.copied_rows == CopiedRows.NONE:
        return "no rows"
    done = percent(copy.percent) if copy is not None else ""
    return f"{done} of a part" if done and table.copied_rows == CopiedRows.PART else done


def _outlook(catch_up: CatchUpProgress | None) -> str:
    """Return the time that is left until something has caught up. Empty if it has, or if that is not known."""
    if catch_up is None or catch_up.state == CatchUpState.CAUGHT_UP:
        return ""
    return _NEVER if catch_up.seconds_left is None else duration(catch_up.seconds_left)


def applied_rates(now: Progress, before: Progress | None) -> dict[int, float]:
    """Return each table's applied changes per second between two snapshots of the same process."""
    seconds = 0.0 if before is None else (now.at - before.at).total_seconds()
    if before is None or seconds <= 0 or before.epoch != now.epoch:
        return {}
    applied = {t.id: t.rows_applied for t in before.tables}
    return {t.id: max(0, t.rows_applied - applied[t.id]) / seconds for t in now.tables if t.id in applied}


def renamed_tables(now: Progress) -> Iterator[str]:
    """Yield a line for each table whose name at the destination differs from its name at the source."""
    for table in now.tables:
        place = table.destination_table
        if place and not f".{place}".endswith(f".{table.name}"):
            yield f"{table.table}: named {place} at the destination"


def differences(now: Progress) -> Iterator[str]:
    """Yield a line for each table that differed from the source when it was last verified."""
    for table in now.tables:
        if table.verified is not None and not table.verified.equal:
            found = table.verified
            count = f" in {counted(found.differences, 'key')}" if found.differences or not found.problem else ""
            problem = f": {found.problem}" if found.problem else ""
            yield f"{table.table}: differs from the source{count} at {found.lsn} ({utc_text(found.at)}){problem}"


def proofs(now: Progress) -> Iterator[str]:
    """Yield a line for each table that is compared range by range."""
    for table in now.tables:
        proof = table.proof
        if proof is None:
            continue
        # The problem is that of the last attempt, and the next one follows by itself.
        text = [f"every row proved since {utc_text(proof.oldest)}" if proof.oldest else "not every row proved yet"]
        if proof.began is not None:
            text.append(f"a pass has compared {counted(proof.rows, 'row')}")
        if proof.differences:
            text.append(f"{counted(proof.differences, 'key')} differed and were repaired")
        if proof.problem:
            text.append(f"not compared: {proof.problem}")
        yield f"{table.table}: {', '.join(text)}"


def resyncs(now: Progress) -> Iterator[str]:
    """Yield a line with the progress of each resync."""
    for table in now.tables:
        text = _resync_text(table)
        if text:
            yield f"{table.table}: {text}"


def _resync_text(table: TableProgress) -> str:
    resync = table.resync
    if resync is None:
        return ""
    match resync.step:
        case ResyncStep.WAITING:
            return "resync queued (the table stays readable)"
        case ResyncStep.COPYING:
            copy = resync.copy
            done = "" if copy is None else f", {percent(copy.percent)}, {counted(copy.rows, 'row')}"
            left = f", {duration(copy.seconds_left)} left" if copy is not None and copy.seconds_left else ""
            return f"resync: copying (the table stays readable){done}{left}"
        case ResyncStep.CATCHING_UP:
            return f"resync: the shadow copy is catching up, {counted(resync.pending_rows, 'change')} left"
        case ResyncStep.GIVEN_UP:
            return "resync failed, the table continues without it"
    return ""


def copies(now: Progress) -> Iterator[str]:
    """Yield a line for each table whose copy is not complete: what remains of it after an interruption."""
    for table in now.tables:
        if table.phase in _UNCOPIED and table.copy is not None and (text := copy_text(table.copy)):
            yield f"{table.table}: {text}"


def copy_text(copy: CopyProgress) -> str:
    """Return the ranges of a copy that continues after an interruption, or why it does not. Empty without either."""
    if not copy.resumable:
        return copy.note
    note = f" ({copy.note})" if copy.note else ""
    return f"{copy.ranges_finished} of {copy.ranges} ranges are copied, which an interrupted copy keeps{note}"


def notes(now: Progress) -> Iterator[str]:
    """Yield a line for each table with a note: something unusual that is not an error."""
    for table in now.tables:
        if table.note:
            yield f"{table.table}: {table.note}"


def errors(now: Progress) -> Iterator[str]:
    """Yield the errors with their hints, the pipeline's own errors first."""
    own = (
        ("pipeline", now.error),
        ("store", now.store.error),
        ("capture", now.capture.error),
        ("publication", now.publication.error),
        ("publication", now.publication.lent),
        ("event trigger", now.publication.trigger),
        ("changed manifest", now.manifest.error),
    )
    yield from (error_text(what, error, now.at) for what, error in own if error is not None)
    if now.manifest.waiting:
        fields = ", ".join(f"{w.field} ({w.change})" for w in now.manifest.waiting)
        yield f"changed manifest: these fields take effect after a restart: {fields}"
    for table in now.tables:
        if table.error is not None:
            yield error_text(str(table.table), table.error, now.at)
        if table.resync is not None and table.resync.error is not None:
            yield error_text(f"resync of {table.table}", table.resync.error, now.at)


def error_text(what: str, error: ErrorProgress, at: datetime) -> str:
    """Return one error with its next retry, as of a time, and its hint. A retry alone corrects no wrong password."""
    text = f"{what}: {error.reason} [{error.code}]"
    if error.next_retry is not None:
        # A table that waits for another one to try the destination is retried later than at that time.
        when = "due for a retry" if error.next_retry <= at else f"retried at {utc_text(error.next_retry)}"
        text += f", attempt {error.attempts}, {when}"
    if error.solution:
        text += f"\n  hint: {runnable(error.solution)}"
    return text


def changed_lines(now: Progress, before: Progress | None) -> Iterator[str]:
    """Return a line of plain text for each change since ``before``: states, phases, tenths of copies, errors."""
    return map(one_record, _changes(now, before))


def _changes(now: Progress, before: Progress | None) -> Iterator[str]:
    if before is None or before.state != now.state:
        yield f"{now.pipeline}: {now.state}"
    known = {} if before is None else {t.id: t for t in before.tables}
    for table in now.tables:
        line = _table_change(table, known.get(table.id))
        if line:
            yield f"{table.table}: {line}"
    told = before.guard.actions if before is not None else ()
    new = (action for action in now.guard.actions if action not in told and action.at >= now.started_at)
    yield from (f"guard: {action.message}" for action in new)
    shown = set() if before is None else {*errors(before), *differences(before)}
    yield from (line for line in (*differences(now), *errors(now)) if line not in shown)


def _table_change(table: TableProgress, before: TableProgress | None) -> str:
    phase, copy = table.phase, table.copy
    if before is None or before.phase != phase:
        return f"{phase}, {table.note}" if table.note and before is None else str(phase)
    if _resync_stage(table) != _resync_stage(before):
        swapped = before.resync is not None and before.resync.step == ResyncStep.CATCHING_UP
        return _resync_text(table) or ("resynced: the shadow copy has replaced the table" if swapped else "")
    if copy is None or phase != TablePhase.DATA_SYNC:
        return ""
    done = 0.0 if before.copy is None else before.copy.percent
    if int(copy.percent) // 10 == int(done) // 10:
        return ""
    speed = rate(copy.rows_per_second)
    left = f", {duration(copy.seconds_left)} left" if copy.seconds_left else ""
    return f"{phase} {percent(copy.percent)}, {counted(copy.rows, 'row')}" + (f" at {speed}" if speed else "") + left


def _resync_stage(table: TableProgress) -> tuple[str, int] | None:
    """Return the part of a resync whose changes are logged: the step, and the tenths of a copy."""
    resync = table.resync
    if resync is None:
        return None
    copy = resync.copy if resync.step == ResyncStep.COPYING else None
    return resync.step, 0 if copy is None else int(copy.percent) // 10


def summary(now: Progress) -> str:
    """Return one line of plain text about the whole pipeline."""
    behind = [t.lag_seconds for t in now.tables if t.lag_seconds is not None]
    return _markup(f"{headline(now)}, behind {duration(max(behind, default=0.0))}, {slot_line(now)}").plain


def _text(text: str, style: str = "") -> Text:
    return Text(one_record(text), style=style)


def _markup(text: str, style: str = "") -> Text:
    return Text.from_markup(one_record(text), style=style)
