"""The policy of a retry follows from the error's type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from levada.errors import (
    AccessDenied,
    DestinationChanged,
    LevadaError,
    LoginFailed,
    NeedsOperator,
    StaleEpoch,
    Transient,
    Yielded,
    rebuild,
)
from levada.runtime.config import RetryLimits
from levada.runtime.source.reconnect import reconnect_delay
from levada.runtime.tables.phases import TRANSITIONS, at_restart, check_transition
from levada.runtime.tables.retries import RetryState, named, park, with_new_name
from levada.status import RetryPolicy
from levada.stores.codecs import phase_from_json, phase_to_json
from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.values import Lsn, QualifiedTable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RetryLimits(max_attempts=3, delay_s=10, max_delay_s=15)
PARKED = Errored("x", "reason", "solution", RetryPolicy.TIMED_RETRY, 2, NOW)
EVERY: tuple[TableReplicationPhase, ...] = (
    Init(), DataSync(), FinishedCopy(Lsn(1)), SyncWait(Lsn(2)), Catchup(Lsn(3)), SyncDone(Lsn(4)), Ready(), PARKED,
)  # fmt: skip


def test_transient_errors_wait_longer_each_time_then_ask() -> None:
    """A Transient error is retried after a doubling, bounded delay until its attempts are used up.

    Its hint then has the command for another attempt.
    """
    error = Transient("commit_conflict", "another writer", hint="free disk space")
    waits = [park(error, n, LIMITS, NOW) for n in (1, 2, 3)]
    assert [w.next_retry for w in waits] == [NOW + timedelta(seconds=10), NOW + timedelta(seconds=15), None]
    assert waits[2].retry_policy is RetryPolicy.MANUAL_RETRY
    asked = "free disk space, then: levada retry MANIFEST TABLE"
    assert [w.solution for w in waits] == ["free disk space", "free disk space", asked]


def test_a_table_that_missed_changes_is_not_retried() -> None:
    """Whatever the error was, a retry would go on without those changes."""
    for error in (Transient("source_unreachable", "no route"), NeedsOperator("rows_locked", "wait"), ValueError()):
        parked = park(error, 1, LIMITS, NOW, needs_resync=True)
        assert (parked.retry_policy, parked.next_retry) == (RetryPolicy.NO_RETRY, None)


@pytest.mark.parametrize("code", ["destination_unavailable", "destination_full", "work_dir_full"])
def test_a_destination_that_is_away_is_retried_without_end(code: str) -> None:
    """It needs a person only if other tables were written meanwhile, or if nothing is retried."""
    error = Transient(code, "no answer")
    away = park(error, 1000, LIMITS, NOW, alone=2)
    assert (away.retry_policy, away.attempts, away.next_retry) == (
        RetryPolicy.TIMED_RETRY,
        1000,
        NOW + timedelta(seconds=15),
    )
    for parked in (
        park(error, 1000, LIMITS, NOW, alone=3),
        park(error, 1, RetryLimits(max_attempts=1), NOW, alone=0),
        park(Transient("commit_conflict", "again"), 3, LIMITS, NOW, alone=0),
    ):
        assert parked.retry_policy is RetryPolicy.MANUAL_RETRY


def test_errors_for_the_operator_carry_their_hint() -> None:
    """A NeedsOperator error is parked with its remedy, and is not retried by itself."""
    parked = park(NeedsOperator("bad_data", "what", hint="do this"), 1, LIMITS, NOW)
    assert (parked.retry_policy, parked.solution, parked.next_retry) == (RetryPolicy.MANUAL_RETRY, "do this", None)


@pytest.mark.parametrize("kind", [LoginFailed, AccessDenied])
def test_a_refusal_is_retried_without_end(kind: type[LevadaError]) -> None:
    """A person can take it back within minutes, also while other tables are written. The delays grow to their limit."""
    refused = kind("refused", "no")
    for attempt in (1, 3, 1000):
        for alone in (None, attempt):
            assert park(refused, attempt, LIMITS, NOW, alone=alone).retry_policy is RetryPolicy.TIMED_RETRY
    assert park(refused, 1000, LIMITS, NOW).next_retry == NOW + timedelta(seconds=15)
    assert park(refused, 1, RetryLimits(max_attempts=1), NOW).retry_policy is RetryPolicy.MANUAL_RETRY


def test_a_copy_that_yields_is_retried_without_end() -> None:
    """It is no failed attempt."""
    assert park(Yielded("copy_yielded", "waits"), 1000, LIMITS, NOW).retry_policy is RetryPolicy.TIMED_RETRY


@pytest.mark.parametrize(
    "error",
    [
        Transient("source_unreachable", "the network broke"),
        Transient("no_free_slot", "all are in use"),
        LoginFailed("source_auth_failed", "the password changes"),
    ],
    ids=lambda e: e.code,
)
def test_a_source_that_is_away_is_no_failure_of_a_table(error: LevadaError) -> None:
    """The table is retried without end, after the shortest delay, and its failed attempts are not counted."""
    state = RetryState()
    for now in range(100):
        attempt = state.failed(error, 0.0, now)
        parked = park(error, attempt, LIMITS, NOW)
        assert (parked.retry_policy, parked.next_retry) == (RetryPolicy.TIMED_RETRY, NOW + timedelta(seconds=10))
    assert state.failed(Transient("commit_conflict", "another writer"), 0.0, 100.0) == 1


def test_the_stream_reconnects_within_ten_seconds() -> None:
    """The delays grow to that, however long the source is away."""
    assert [reconnect_delay(n) for n in (1, 2, 3, 4, 5, 6, 7, 10_000)] == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_an_error_of_another_process_keeps_its_policy() -> None:
    """The name of its class is enough to rebuild it. A name of another version needs a person."""
    for kind in (Transient, Yielded, NeedsOperator, LoginFailed, AccessDenied, DestinationChanged):
        error = rebuild(kind.__name__, "code", "message", "hint")
        assert (type(error), error.code, error.message, error.hint) == (kind, "code", "message", "hint")
    assert type(rebuild("OfALaterVersion", "code", "message", "")) is NeedsOperator


def test_unexpected_errors_are_parked_not_lost() -> None:
    """An unexpected error becomes a manual retry that names its type."""
    parked = park(KeyError("boom"), 1, LIMITS, NOW)
    assert parked.code == "internal_error"
    assert "KeyError" in parked.reason
    assert park(StaleEpoch(1, 2), 1, LIMITS, NOW).retry_policy is RetryPolicy.NO_RETRY


@pytest.mark.parametrize("phase", EVERY, ids=lambda p: p.name)
def test_phase_survives_json(phase: TableReplicationPhase) -> None:
    """Every phase is the same after it was stored and read."""
    assert phase_from_json(phase_to_json(phase)) == phase


def test_every_phase_has_its_transitions() -> None:
    """The table of transitions names every phase, and a step that it lacks is refused."""
    assert TRANSITIONS.keys() == {p.name for p in EVERY}
    with pytest.raises(ValueError, match="Ready cannot follow Init"):
        check_transition(Init(), Ready())


def test_restart_copies_again_only_what_was_half_copied() -> None:
    """After a restart a half-made copy begins again, a finished one does not."""
    assert at_restart(DataSync()) == Init()
    assert at_restart(None) == Init()
    for phase in (FinishedCopy(Lsn(1)), SyncDone(Lsn(4)), Ready(), PARKED):
        assert at_restart(phase) == phase


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("levada resync MANIFEST app.t", "levada resync MANIFEST app.u"),
        ("copy: levada resync MANIFEST app.t. To avoid it", "copy: levada resync MANIFEST app.u. To avoid it"),
        ("levada verify MANIFEST --table app.t --repair", "levada verify MANIFEST --table app.u --repair"),
        ("""levada retry MANIFEST 'app."a b"'; or wait""", "levada retry MANIFEST app.u; or wait"),
        ("levada retry MANIFEST " + QualifiedTable("app", "it's").argument, "levada retry MANIFEST app.u"),
        ("levada retry MANIFEST. If not, levada resync MANIFEST --all", None),
        ('ALTER TABLE "app"."t" REPLICA IDENTITY FULL; wait', 'ALTER TABLE "app"."u" REPLICA IDENTITY FULL; wait'),
    ],
)
def test_a_solution_follows_the_name_of_its_table(solution: str, expected: str | None) -> None:
    """Its commands and its SQL name the table, whatever it was called when it was parked."""
    parked = Errored("code", "reason", solution, RetryPolicy.MANUAL_RETRY)
    found = with_new_name(parked, QualifiedTable("app", "t"), QualifiedTable("app", "u"))
    assert found.solution == (expected or solution)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("table app.t was set UNLOGGED", "table app.u was set UNLOGGED"),
        ("app.t: column n became boolean", "app.u: column n became boolean"),
        ("table app.t.x has no key", None),
        ("its place is that of table app.t now", None),
    ],
)
def test_a_reason_begins_with_the_name_of_its_table(reason: str, expected: str | None) -> None:
    """It has the same name as the commands of the solution. Another table that it speaks of keeps its own."""
    parked = Errored("code", reason, "levada resync MANIFEST app.t", RetryPolicy.MANUAL_RETRY)
    found = named(parked, QualifiedTable("app", "u"))
    assert found.reason == (expected or reason)
    assert found.solution == "levada resync MANIFEST app.u"


@pytest.mark.parametrize("former", [QualifiedTable("app", n) for n in ("t", "u", "a b", "it's", 'a"b', "Ä.x")])
def test_a_solution_has_the_name_of_its_table(former: QualifiedTable) -> None:
    """The command of an error that has a former name of the table reaches the table, and no other one."""
    solution = f"levada resync MANIFEST {former.argument}. If not: ALTER TABLE {former.sql} SET LOGGED;"
    parked = Errored("code", "reason", f"{solution} then levada retry MANIFEST TABLE", RetryPolicy.MANUAL_RETRY)
    assert named(parked, QualifiedTable("app", "u")).solution == (
        'levada resync MANIFEST app.u. If not: ALTER TABLE "app"."u" SET LOGGED; then levada retry MANIFEST app.u'
    )
