"""Progress on a terminal and in a log."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console
from tests.runtime import samples
from tests.runtime.samples import progress

from levada.cli.render import applied_rates, cells, changed_lines, dashboard, errors, summary
from levada.runtime.report.snapshot import starting_progress
from levada.status import (
    CaptureProgress,
    CatchUpProgress,
    CatchUpState,
    CopyProgress,
    Progress,
    ResyncProgress,
    ResyncStep,
    StoreProgress,
)


def drawn(now: Progress, before: Progress | None = None) -> str:
    """Return the dashboard as text, wide enough for everything."""
    console = Console(width=160, force_terminal=False)
    with console.capture() as captured:
        console.print(dashboard(now, before))
    return captured.get()


def test_dashboard_answers_the_three_questions() -> None:
    """Disk, rightness, and when it will be done are all on it."""
    text = drawn(
        progress(
            samples.table("orders", phase="DataSync", copy=samples.copying(), lag_seconds=None),
            samples.table("payments", phase="Errored", error=samples.error()),
            samples.table("items", lag_seconds=4.2, pending_rows=1200),
            slot=samples.slot(lag_bytes=1 << 20, retained_bytes=20 << 20, wal_status="unreserved"),
        )
    )
    assert "lag 1.0 MiB, retained 20.0 MiB, staged 2.0 KiB, WAL is unreserved" in text
    assert "1/3 tables ready" in text
    for expected in ("public.orders", "DataSync", "50.0%", "500", "100/s", "5.0s"):
        assert expected in text
    assert "4.2s" in text
    assert "1,200" in text
    assert "public.payments: public.orders has no key [no_replica_identity]" in text
    assert "hint: ALTER TABLE" in text


def test_a_process_that_waits_is_not_called_running() -> None:
    """After an error of the store or the source, the headline says what the process waits for."""
    away = samples.error()
    assert "Running" in drawn(progress()).splitlines()[0]
    for now, waits in (
        (progress(store=StoreProgress(away)), "waits for its store"),
        (progress(capture=CaptureProgress(connected=False, error=away)), "waits for its source"),
    ):
        assert waits in drawn(now).splitlines()[0]
        assert "Running" not in drawn(now)


@pytest.mark.parametrize(("width", "headings"), [(40, 3), (60, 5), (80, 5), (200, 9)])
def test_a_narrow_terminal_leaves_out_columns_and_cuts_none(width: int, headings: int) -> None:
    """The table's name and phase are always there, and whatever column is shown has its whole figures."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(dashboard(progress(samples.table("a_table_with_a_name_of_forty_characters_", pending_rows=1200))))
    [heading] = [line for line in captured.get().splitlines() if line.startswith("TABLE")]
    assert heading.split()[:2] == ["TABLE", "PHASE"]
    assert len(heading.split()) == headings
    assert "…" not in captured.get()
    assert ("1,200" in captured.get()) == ("WAITING" in heading)


def test_passed_limits_of_the_guard_are_shown() -> None:
    """The figure, its limit, the last action, and that copies wait. In a log each action is one line."""
    now = progress(guard=samples.guard())
    text = drawn(now)
    assert "guard: staged is 2.0 GiB, the limit of ParkSlowest is 1.0 GiB" in text
    assert "guard: orders is parked (2026-01-31T12:00:00.000Z)" in text
    assert "no copy begins" in text
    assert "guard: orders is parked" in list(changed_lines(now, progress()))
    assert "guard: orders is parked" not in list(changed_lines(now, now))


def test_the_last_action_of_the_guard_is_shown_for_a_day() -> None:
    """It outlives the limit, and a restart, after which a log does not repeat it. Unknown WAL pauses copies too."""
    acted = replace(samples.guard(), policy="", passed=())
    now = progress(guard=acted)
    text = drawn(now)
    assert "guard: orders is parked (2026-01-31T12:00:00.000Z)" in text
    assert "no copy begins until the WAL that the slot keeps is known" in text
    assert "orders is parked" not in drawn(replace(now, at=now.at + timedelta(days=2)))
    restarted = replace(now, started_at=acted.actions[0].at + timedelta(seconds=1))
    assert "guard: orders is parked" not in list(changed_lines(restarted, None))


def test_cuts_are_shown() -> None:
    """The newest complete cut, and the pending one with the tables that it lacks."""
    text = drawn(progress(cuts=samples.cuts()))
    assert "cuts: levada_cut_20260131T110000Z at 0/3E8 is the newest complete one (2026-01-31T11:00:00" in text
    assert "cuts: mönthly at 0/7D0 has 1 of 3 tables" in text
    assert "cuts: mönthly is without public.orders: suspended" in text
    assert "cuts:" not in drawn(progress())


def test_the_time_to_catch_up_is_shown() -> None:
    """The first line has the time of the whole, and each table's column its own. An endless time is "never"."""
    left = CatchUpProgress(CatchUpState.CATCHING_UP, 200.0)
    text = drawn(progress(samples.table(lag_seconds=500.0, catch_up=left), catch_up=left))
    assert "3m 20s to catch up" in text
    assert text.count("3m 20s") == 2
    never = CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE)
    text = drawn(progress(samples.table(lag_seconds=500.0, catch_up=never), catch_up=never))
    assert "does not catch up at this rate" in text
    assert "never" in text
    caught_up = CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)
    assert "catch up" not in drawn(progress(samples.table(catch_up=caught_up), catch_up=caught_up))


def test_a_table_that_differed_is_shown() -> None:
    """With the number of keys, the LSN and the time, once in a log. An equal table is not worth a line."""
    now = progress(samples.table(verified=samples.verified()))
    line = "public.orders: differs from the source in 2 keys at 0/FF (2026-01-31T12:00:00.000Z)"
    assert line in drawn(now)
    assert line in list(changed_lines(now, progress()))
    assert line not in list(changed_lines(now, now))
    assert "differs" not in drawn(progress(samples.table(verified=samples.verified(equal=True))))
    damaged = progress(samples.table(verified=samples.verified(differences=0, problem="a file is missing")))
    line = "public.orders: differs from the source at 0/FF (2026-01-31T12:00:00.000Z): a file is missing"
    assert line in drawn(damaged)


def test_a_resync_is_reported() -> None:
    """Its progress and its error are shown while the table streams. The log has a line for each step and tenth."""
    copying = samples.table("orders", resync=ResyncProgress(ResyncStep.COPYING, samples.copying(), 7))
    text = drawn(progress(copying))
    assert "public.orders: resync: copying (the table stays readable), 50.0%, 500 rows, 5.0s left" in text
    assert "1/1 table ready" in text
    behind = progress(samples.table("orders", resync=ResyncProgress(ResyncStep.CATCHING_UP, None, 7, samples.error())))
    assert "7 changes" in drawn(behind)
    assert "resync of public.orders: " in drawn(behind)
    plain = progress(samples.table("orders"))
    assert "(the table stays readable), 50.0%" in "\n".join(changed_lines(progress(copying), plain))
    assert not list(changed_lines(progress(copying), progress(copying)))
    assert "resynced" in "\n".join(changed_lines(plain, behind))


def test_a_copy_says_what_an_interruption_leaves_of_it() -> None:
    """While the table is copied, or parked before it was: its finished ranges, or why it begins again."""
    half = samples.copying(ranges=8, ranges_finished=3, resumable=True)
    kept = "public.orders: 3 of 8 ranges are copied, which an interrupted copy keeps"
    for phase in ("Init", "DataSync", "Errored"):
        assert kept in drawn(progress(samples.table(phase=phase, copy=half)))
    assert kept not in drawn(progress(samples.table(copy=half)))
    again = samples.copying(resumable=True, note="the source was restarted")
    assert "keeps (the source was restarted)" in drawn(progress(samples.table(phase="DataSync", copy=again)))
    note = "an interrupted copy begins again, because the table has no key"
    assert note in drawn(progress(samples.table(phase="DataSync", copy=samples.copying(note=note))))


def test_rates_come_from_two_documents_of_one_process() -> None:
    """Counters of another epoch start from zero, so that no rate follows from them."""
    before = progress(samples.table(rows_applied=100))
    later = progress(samples.table(rows_applied=160), at=samples.seconds(2))
    [rate] = applied_rates(later, before).values()
    assert rate == 30
    assert applied_rates(later, None) == {}
    assert applied_rates(before, before) == {}
    assert applied_rates(progress(at=samples.seconds(2), epoch=4), before) == {}


def test_names_with_markup_are_shown_as_they_are() -> None:
    """A bracket in a name is not rich's markup."""
    assert "public.a[b]c" in drawn(progress(samples.table("a[b]c")))
    assert "[red]" in drawn(progress(pipeline="[red]"))


def test_a_line_only_when_something_changed() -> None:
    """An unchanged document prints nothing. A phase, a tenth of a copy and an error print a line."""
    copying = samples.table(phase="DataSync", copy=samples.copying(percent=41.0))
    assert list(changed_lines(progress(copying), progress(copying))) == []
    assert list(changed_lines(progress(copying), None)) == ["shop: Running", "public.orders: DataSync"]
    slightly = samples.table(phase="DataSync", copy=samples.copying(percent=49.9))
    assert list(changed_lines(progress(slightly), progress(copying))) == []
    tenth = samples.table(phase="DataSync", copy=samples.copying(percent=50.0))
    assert list(changed_lines(progress(tenth), progress(slightly))) == [
        "public.orders: DataSync 50.0%, 500 rows at 100/s, 5.0s left"
    ]
    assert list(changed_lines(progress(samples.table()), progress(tenth))) == ["public.orders: Ready"]


def test_an_error_is_told_once() -> None:
    """With its way out, and not again until it is another."""
    parked = progress(samples.table(phase="Errored", error=samples.error()))
    lines = list(changed_lines(parked, progress()))
    assert lines[0] == "public.orders: Errored"
    assert "hint: ALTER TABLE" in lines[1]
    assert list(changed_lines(parked, parked)) == []


def test_a_timed_retry_says_when() -> None:
    """The hint stays: a retry alone does not correct a wrong password."""
    error = samples.error(retry_policy="TimedRetry", next_retry=samples.seconds(10))
    [line] = errors(progress(samples.table(phase="Errored", error=error)))
    assert "attempt 3, retried at 2026-01-31T12:00:10" in line
    assert "\n  hint: ALTER TABLE" in line


def test_a_copy_of_an_earlier_process_has_no_rows() -> None:
    """Its size is not stored: after a restart the column is empty, and not 0. The copy of an empty table has 0 rows."""
    copies = [CopyProgress(percent=100.0), samples.copying(rows=0, total_bytes=0), samples.copying(rows=500)]
    assert [cells(samples.table(copy=copy))[3].plain for copy in copies] == ["", "0", "500"]


def test_before_anything_is_known() -> None:
    """A pipeline that has not looked at its source has no figures, and is drawn all the same."""
    empty = starting_progress("shop", "levada_shop", samples.NOON)
    assert "lag -, retained -" in drawn(empty)
    assert summary(empty).startswith("shop  Starting  0/0 tables ready")
