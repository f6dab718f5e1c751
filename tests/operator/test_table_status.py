"""The status of a TableSync: its phase, copy, lag and errors."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.decisions import SUSPENDED, conditions, copies, creation_failure, statuses
from tests.operator.samples import (
    at,
    error_document,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    table_sync,
    waiting,
    written,
)

from levada_operator.decide.comparison import beyond_counters
from levada_operator.decide.conditions import Condition
from levada_operator.decide.events import transitions
from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.objects import ObjectKey
from levada_operator.observe.observed import Observed


def test_refused_pod_of_a_dedicated_copy_is_its_tables() -> None:
    """The table whose copy cannot have a pod says why."""
    told = progress(table_document(phase="DataSync", copyOrder="first"))
    (job,) = copies(running(report=told))
    message = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged'
    failed = {ObjectKey("Job", job["metadata"]["name"]): creation_failure(message)}
    plan = reconcile(running(report=told, creation_failures=failed))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    (ready,) = (c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodRefused")
    assert "violates PodSecurity" in ready["message"]


def test_table_status_tells_copy_lag_and_error() -> None:
    """A TableSync has the progress of its copy, the time that is left, and an error with its remedy."""
    copying = table_document(
        phase="DataSync",
        copy={"rows": 88_123_456, "bytes": 5 << 30, "percent": 37.4, "secondsLeft": 3900.0},
        lagSeconds=None,
        appliedLsn=None,
    )
    plan = reconcile(running(report=progress(copying)))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    assert status["display"] == {"table": "public.orders", "copied": "37%", "rows": "88.1M", "lag": "", "left": "2h"}
    assert status["copy"] == {"rows": 88_100_000, "bytes": 5 << 30, "percent": 37, "secondsLeft": 7200}
    errored = table_document(phase="Errored", error=error_document())
    plan = reconcile(running(report=progress(errored)))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    assert (status["phase"], status["error"]["solution"][:11]) == ("Errored", "ALTER TABLE")
    assert "TableErrored" in {n.reason for n in plan.events}


def test_a_table_that_differs_is_not_ready() -> None:
    """Its reason is TableDiffers, and the Pipeline is not Ready either. A person is needed."""
    differs = table_document(phase="Errored", lagSeconds=2, error=error_document(code="rows_differ"))
    whole, table = statuses(running(WAS_READY, report=progress(differs)))
    conditions = {c["type"]: (c["status"], c["reason"]) for c in table["conditions"]}
    assert conditions["Ready"] == ("False", "TableDiffers")
    assert conditions["Stalled"] == ("True", "TableDiffers")
    assert (table["lagSeconds"], whole["display"]["tables"]) == (2, "0/1")
    of_pipeline = {c["type"]: (c["status"], c["reason"]) for c in whole["conditions"]}
    assert of_pipeline["Ready"] == ("False", "TablesErrored")


def test_a_table_that_is_copied_again_by_itself_says_why() -> None:
    """The cause is in the status until the table is Ready, with the time that the copy needs."""
    copying = table_document(
        phase="DataSync",
        copy={"rows": 5, "bytes": 5, "percent": 50.0, "secondsLeft": 60.0},
        copiedAgain=error_document(code="table_rewritten"),
        lagSeconds=None,
        appliedLsn=None,
    )
    plan = reconcile(running(report=progress(copying)))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    assert status["copiedAgain"]["code"] == "table_rewritten"
    assert status["display"]["left"]


DOWN = {"type": "Replicating", "status": "False", "reason": "Stopped", "message": "",
        "lastTransitionTime": written(at(-280))}  # fmt: skip
CRASHED = pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message="error: no [source_auth_failed]"))
WAS_READY = table_sync() | {"status": {"phase": "Ready", "copy": {"rows": 5, "bytes": 5, "percent": 100}}}
ALL_READY = {"total": 1, "byPhase": {"Ready": 1}}
SILENT = DOWN | {"status": "Unknown", "reason": "ProgressStale"}
UNREAD: dict[str, Observed] = {
    "the operator is new, and the driver never answers it": running(
        WAS_READY, body=pipeline(status={"conditions": [SILENT], "tables": ALL_READY}), report=None
    ),
    "the driver has ended": running(WAS_READY, report=progress(fetched=-280), pods=(CRASHED,)),
    "the operator is new": running(
        WAS_READY, body=pipeline(status={"conditions": [DOWN], "tables": ALL_READY}), report=None, pods=(CRASHED,)
    ),
    "the engine cannot log in": running(
        WAS_READY,
        report=progress(
            table_document(lagSeconds=280),
            capture={"connected": False, "error": error_document(code="source_auth_failed")},
        ),
    ),
    "the engine's store does not answer": running(
        WAS_READY,
        report=progress(table_document(lagSeconds=280), store={"error": error_document(code="store_unreachable")}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_table_whose_changes_are_not_read_is_not_ready(name: str) -> None:
    """While no driver reads the WAL, a table is Stale and not Ready, and its lag grows. The Pipeline counts none."""
    whole, table = statuses(UNREAD[name])
    assert (table["phase"], table["lagSeconds"], table["display"]["lag"]) == ("Stale", 300, "5m")
    (ready,) = (c for c in table["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NotReplicating")
    assert (whole["tables"]["byPhase"], whole["display"]["tables"]) == ({"Stale": 1}, "0/1")


def test_short_interruptions_change_no_table() -> None:
    """A stream that is opened again, and a driver that an operator has not asked yet, leave a table Ready."""
    opening = progress(table_document(lagSeconds=20), capture={"connected": False})
    soon = pipeline(status={"conditions": [SILENT | {"lastTransitionTime": written(at(-20))}]})
    for seen in (
        running(WAS_READY, report=opening),
        running(WAS_READY, report=None),
        running(WAS_READY, body=soon, report=None),
    ):
        assert next(w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync")["phase"] == "Ready"


def test_the_newest_complete_cut_is_kept() -> None:
    """It is in the Pipeline's status, also while no driver reports. A new one alone is written as a counter."""
    last = {"name": "noon", "phase": "Complete", "lsn": "0/FF", "at": "2026-01-31T12:00:00.000+00:00"}
    none = progress(table_document())
    some = progress(table_document(), cuts={"kept": 1, "lastComplete": last})
    expected = {"lastComplete": {"name": "noon", "lsn": "0/FF", "at": "2026-01-31T12:00:00Z"}}

    def of(seen: Observed) -> dict[str, Any]:
        return dict(next(w.status for w in reconcile(seen).statuses if w.key.kind == "Pipeline"))

    assert "cuts" not in of(running(report=none))
    whole = of(running(report=some))
    assert whole["cuts"] == expected
    assert of(running(body=pipeline(status={"cuts": expected}), report=None))["cuts"] == expected
    assert not beyond_counters(whole, whole | {"cuts": {"lastComplete": {**expected["lastComplete"], "name": "x"}}})


def test_suspended_table_does_not_count_as_ready() -> None:
    """One of a suspended TableSync, or Pipeline, counts as Suspended. A Pipeline can be Ready with suspended tables."""
    parked = running(table_sync(suspend=True), table_sync("events"), report=progress(
        table_document(), table_document("events")))  # fmt: skip
    status = next(w.status for w in reconcile(parked).statuses if w.key.kind == "Pipeline")
    assert (status["tables"]["byPhase"], status["display"]["tables"]) == ({"Ready": 1, "Suspended": 1}, "1/2")
    assert conditions(parked)["Ready"].status is True
    whole, table = statuses(running(body=SUSPENDED, pods=(), report=progress(fetched=-280)))
    assert (whole["tables"]["byPhase"], table["phase"], table["display"]["lag"]) == (
        {"Suspended": 1},
        "Suspended",
        "5m",
    )


@pytest.mark.parametrize(
    "report",
    [
        table_document(phase="DataSync", copy=None),
        table_document(phase="DataSync", copy={"rows": 0, "bytes": 0, "percent": 0.0, "secondsLeft": None}),
        table_document(
            resync={"step": "Copying", "copy": {"rows": 0, "bytes": 0, "percent": 0.0, "secondsLeft": None}}
        ),
        table_document(resync={"step": "Waiting", "copy": None}),
    ],
)
def test_new_copy_does_not_show_the_size_of_the_last(report: dict[str, Any]) -> None:
    """A table that is copied again, in place or as a shadow copy, shows the new copy's rows and percentage."""
    _, table = statuses(running(WAS_READY, report=progress(report)))
    assert (table["display"]["copied"], table["display"]["rows"]) == ("0%", "0")


def test_copy_says_whether_it_is_resumable() -> None:
    """The finished ranges, and why a copy begins again. Both are no longer there once the table is Ready."""
    copy = {"rows": 5, "bytes": 5, "percent": 37.4, "secondsLeft": None, "ranges": 8, "rangesFinished": 3}
    note = "an interrupted copy begins again, because the table has no key"
    for more, shown in (
        ({"resumable": True}, {"resumable": True}),
        ({"note": note}, {"resumable": False, "note": note}),
    ):
        report = progress(table_document(phase="DataSync", copy=copy | more))
        assert (
            statuses(running(report=report))[1]["copy"].items() >= ({"ranges": 8, "rangesFinished": 3} | shown).items()
        )
    ready = progress(table_document(phase="Ready", copy=copy | {"percent": 100.0}))
    assert "ranges" not in statuses(running(report=ready))[1]["copy"]


def test_the_last_verification_outlives_the_driver() -> None:
    """It is that of the driver. While no driver reports the table, the stored one stays, with its condition."""
    found = {"at": written(at(0)), "lsn": "0/FF", "rows": 1000, "equal": False, "differences": 2}
    shown = found | {"at": at(0).strftime("%Y-%m-%dT%H:%M:%SZ")}
    first = statuses(running(report=progress(table_document(verified=found, verifyNonce=4))))[1]
    assert (first["verified"], first["verifyNonce"]) == (shown, 4)
    body = table_sync() | {"status": first}
    seen = running(body, report=None)
    status = next(w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync")
    assert status["verified"] == shown
    assert of_type("Verified", status) == of_type("Verified", first)
    # The driver has copied the table again.
    status = next(w.status for w in reconcile(running(body, report=progress())).statuses if w.key.kind == "TableSync")
    assert "verified" not in status


def of_type(type_: str, status: dict[str, Any]) -> tuple[str, str]:
    """Return a condition's status and reason."""
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == type_)


EQUAL = {"at": written(at(0)), "lsn": "0/FF", "rows": 1000, "equal": True}


@pytest.mark.parametrize(
    ("document", "condition"),
    [
        ({}, ("Unknown", "NotCompared")),
        ({"verified": EQUAL}, ("True", "Equal")),
        ({"verified": EQUAL | {"differences": 2, "repaired": 2}}, ("True", "Repaired")),
        ({"verified": EQUAL | {"equal": False, "differences": 2}}, ("False", "Different")),
        ({"verified": EQUAL, "verifyError": error_document()}, ("Unknown", "NotComparable")),
        (
            {"verified": EQUAL | {"equal": False, "differences": 2}, "verifyError": error_document()},
            ("False", "Different"),
        ),
    ],
)
def test_the_condition_verified_has_the_last_comparison(document: dict[str, Any], condition: tuple[str, str]) -> None:
    """A difference stays reported, also if the next comparison fails. The table's Ready does not depend on it."""
    status = statuses(running(report=progress(table_document(**document))))[1]
    assert of_type("Verified", status) == condition
    if condition[1] == "Different":
        message = next(c["message"] for c in status["conditions"] if c["type"] == "Verified")
        command = "kubectl -n data exec shop-driver-0 -c driver -- levada verify --table public.orders"
        assert message.endswith(f"see: {command}")
    assert of_type("Ready", status) == ("True", "Streaming")


def test_a_damaged_file_is_the_message_of_verified() -> None:
    """No key could be compared, so the message has the problem and no number of keys."""
    problem = "a file of shop.orders is missing or damaged: file:///lake/1.parquet"
    found = EQUAL | {"rows": 0, "equal": False, "differences": 0, "problem": problem}
    status = statuses(running(report=progress(table_document(verified=found))))[1]
    message = next(c["message"] for c in status["conditions"] if c["type"] == "Verified")
    assert message.startswith(f"at 0/FF the table differed from the source: {problem}; see: ")


def test_a_difference_and_its_end_are_events() -> None:
    """A first comparison without differences is none, and neither is a further one with the same result."""
    key = ObjectKey("TableSync", "orders")

    def told(before: str | None, now: str) -> list[str]:
        stored = [] if before is None else [{"type": "Verified", "reason": before}]
        return [e.reason for e in transitions(key, stored, [Condition("Verified", None, now, "why")])]

    assert told(None, "NotCompared") == told("NotCompared", "Equal") == told("Different", "Different") == []
    assert told("NotCompared", "Different") == told("Equal", "Different") == ["TableDiffers"]
    assert told("Different", "Equal") == told("Different", "Repaired") == ["TableEqual"]


def test_copy_finished_by_an_earlier_driver_keeps_its_size() -> None:
    """A driver that found the copy finished knows no rows. The rows of the earlier report stay."""
    before = {"copy": {"rows": 12_600_000, "bytes": 1 << 30, "percent": 99}}
    body = table_sync() | {"status": before}
    finished = table_document(copy={"rows": 0, "bytes": 0, "percent": 100.0, "secondsLeft": None})
    status = next(
        w.status for w in reconcile(running(body, report=progress(finished))).statuses if w.key.kind == "TableSync"
    )
    assert status["copy"] == {"rows": 12_600_000, "bytes": 1 << 30, "percent": 100}


def test_the_size_at_the_source_outlives_the_driver() -> None:
    """It is rounded, kept without a report, and no reason for a write of its own."""
    sizes: list[Any] = []
    before: dict[str, Any] = {}
    for report in (
        progress(table_document(sourceBytes=(5 << 30) + 1)),
        None,
        progress(table_document(sourceBytes=None)),
        progress(table_document(sourceBytes=6 << 30)),
    ):
        seen = running({**table_sync(), "status": before} if before else table_sync(), report=report)
        status = next((w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync"), before)
        sizes.append(status["sourceBytes"])
        if report is not None:
            assert not before or not beyond_counters({**status, "sourceBytes": 1}, status)
        before = status
    assert sizes == [5 << 30, 5 << 30, 5 << 30, 6 << 30]


def test_status_tells_of_a_new_copy_beside_its_table() -> None:
    """The table stays Ready. The status has the step, the copy's progress and the values that were acted on."""
    beside = {"step": "Copying", "copy": {"rows": 1_000, "bytes": 1 << 20, "percent": 37.4, "secondsLeft": 90}}
    seen = running(report=progress(table_document(resync=beside, resyncNonce=2)))
    (status,) = [w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync"]
    assert status["phase"] == "Ready"
    assert (status["resync"]["step"], status["resync"]["copy"]["percent"]) == ("Copying", 37)
    assert (status["resyncNonce"], "retryNonce" in status) == (2, False)


def test_phase_of_a_newer_operator_is_no_obstacle() -> None:
    """After a rollback, a phase that this version does not know is Pending until the driver reports the table."""
    newer = table_sync() | {"status": {"phase": "Pondering"}}
    starting = pod(phase="Running", conditions=[{"type": "Ready", "status": "False"}])
    _, table = statuses(running(newer, report=None, pods=(starting,)))
    assert table["phase"] == "Pending"


@pytest.mark.parametrize(("phase", "reason"), [("Init", "NotAccepted"), ("DataSync", "InitialCopy")])
def test_a_table_that_waits_for_its_table_sync_says_so(phase: str, reason: str) -> None:
    """An invalid TableSync prevents the first copy, so the table is not on its way. A copy that runs continues."""
    invalid = table_sync(columns={"exclude": 1})
    status = statuses(running(invalid, report=progress(table_document(phase=phase))))[1]
    ready, accepted = status["conditions"][:2]
    assert (accepted["type"], accepted["status"]) == ("Accepted", "False")
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", reason)
