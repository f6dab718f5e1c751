"""Acceptance, conditions, the phase, statuses: as tables of what is observed and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.samples import (
    MANIFEST,
    at,
    document,
    error_document,
    merge,
    observed,
    owned,
    owner,
    owner_of,
    pipeline,
    pod,
    progress,
    running,
    spec,
    table_document,
    table_sync,
    waiting,
    written,
)

from levada_operator.decide.acceptance import accept, describe
from levada_operator.decide.conditions import PIPELINE_REASONS, TABLE_SYNC_REASONS, Condition
from levada_operator.decide.events import EVENT_REASONS, transitions
from levada_operator.decide.phase import pipeline_phase
from levada_operator.decide.pipeline_conditions import pipeline_conditions
from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.creation import CreationFailure, read_creation_failure
from levada_operator.observe.objects import ObjectKey, Refusal, read_job
from levada_operator.observe.observed import Observed


def conditions(seen: Observed) -> dict[str, Condition]:
    """Return the conditions that are told."""
    return pipeline_conditions(seen, accept(seen))


def phase(seen: Observed) -> str:
    """Return the phase that is printed."""
    return pipeline_phase(conditions(seen), deleting=seen.pipeline.deleting_since is not None).value


SUSPENDED = pipeline(spec={"suspend": True})
CASES: dict[str, tuple[Observed, str, str, str]] = {
    "streams": (running(), "Streaming", "True", "Streaming"),
    "copies": (running(progress=progress(table_document(phase="DataSync"))), "Copying", "False", "InitialCopy"),
    "catches up": (running(progress=progress(table_document(phase="Catchup"))), "Copying", "False", "InitialCopy"),
    "a table waits": (
        running(progress=progress(table_document(phase="Errored", error=error_document()))),
        "Degraded",
        "False",
        "TablesErrored",
    ),
    "no news": (running(progress=progress(fetched=-61)), "Stale", "Unknown", "ProgressStale"),
    "never any news, and ready": (running(progress=None), "Stale", "Unknown", "ProgressStale"),
    "no progress": (running(moved_at=at(-901)), "Degraded", "False", "NoProgress"),
    "idle": (running(moved_at=at(-9000), progress=progress(slot={"lagBytes": 0})), "Streaming", "True", "Streaming"),
    "new": (observed(), "Starting", "False", "DriverNotReady"),
    "disconnected": (
        running(progress=progress(capture={"connected": False, "error": error_document()})),
        "Degraded",
        "False",
        "SourceUnreachable",
    ),
    "opens its stream": (
        running(progress=progress(capture={"connected": False})),
        "Starting",
        "False",
        "DriverNotReady",
    ),
    "slot lost": (running(progress=progress(slot={"walStatus": "lost"})), "Failed", "False", "SlotUnhealthy"),
    "slot unreserved": (
        running(progress=progress(slot={"walStatus": "unreserved"})),
        "Failed",
        "False",
        "SlotUnhealthy",
    ),
    "engine failed": (
        running(progress=progress(state="Failed", error=error_document(code="stale_epoch"))),
        "Failed",
        "False",
        "Stopped",
    ),
    "draining": (running(body=SUSPENDED), "Suspending", "False", "Suspended"),
    "drained": (running(body=SUSPENDED, pods=()), "Suspended", "False", "Suspended"),
    "never accepted": (observed(pipeline(spec={"store": {}})), "Failed", "False", "NotAccepted"),
    "refused, but runs": (running(body=pipeline(spec={"store": {}})), "Streaming", "True", "Streaming"),
    "being deleted": (
        running(body=pipeline(metadata={"deletionTimestamp": written(at(-5))})),
        "Deleting",
        "False",
        "Deleting",
    ),
    "cannot be scheduled": (
        running(progress=None, pods=(pod(phase="Pending", conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]),)),
        "Pending", "False", "DriverNotReady",
    ),
    "crashes": (
        running(progress=None, pods=(pod(**waiting("driver", "CrashLoopBackOff", exitCode=1, message="boom")),)),
        "Failed", "False", "DriverNotReady",
    ),
    "refused by the cluster": (
        observed(refusals=(Refusal(ObjectKey("StatefulSet", "shop-driver"), "quota"),)),
        "Failed", "False", "DriverNotReady",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_phase_and_readiness(name: str) -> None:
    """What is printed, and what a machine waits for, follow from the conditions alone."""
    seen, expected, status, reason = CASES[name]
    ready = conditions(seen)["Ready"]
    assert (phase(seen), "Unknown" if ready.status is None else str(ready.status), ready.reason) == (
        expected,
        status,
        reason,
    )


@pytest.mark.parametrize("name", CASES)
def test_reasons_are_of_the_closed_lists(name: str) -> None:
    """Each condition is told in a fixed order, by a reason of its list; so is each Event."""
    seen = CASES[name][0]
    plan = reconcile(seen)
    told = conditions(seen)
    assert list(told) == list(PIPELINE_REASONS)
    assert all(c.reason in PIPELINE_REASONS[type_] for type_, c in told.items())
    assert all(n.reason in EVENT_REASONS for n in plan.notes)
    for write in plan.statuses:
        lists = PIPELINE_REASONS if write.key.kind == "Pipeline" else TABLE_SYNC_REASONS
        assert all(c["reason"] in lists[c["type"]] for c in write.status["conditions"])
        printed = write.status["display"]
        assert all(isinstance(text, str) for text in printed.values())


TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "killed for memory": (
        waiting("driver", "CrashLoopBackOff", exitCode=137, reason="OOMKilled"), "OutOfMemory", "memory"),
    "image is missing": (
        waiting("driver", "ImagePullBackOff", "no such image"), "ImagePullFailed", "spec.driver.image"),
    "secret key is missing": (
        waiting("driver", "CreateContainerConfigError", 'secret "x" not found'), "SecretMissing", "not found"),
    "config is missing": (
        waiting("driver", "CreateContainerConfigError", 'configmap "x" not found'), "ConfigMissing", "not found"),
    "preflight": (
        waiting("preflight", "CrashLoopBackOff", exitCode=3, message=(
            "error: wal_level is replica: changes cannot be decoded [wal_level_not_logical]\n"
            "  hint: ALTER SYSTEM SET wal_level = 'logical'\n")),
        "PreflightFailed", "ALTER SYSTEM SET wal_level = 'logical' [wal_level_not_logical]"),
    "secret is missing": (
        waiting("preflight", "CrashLoopBackOff", exitCode=1, message=(
            "error: Secret shop-cdc has no key username [secret_missing]\n  hint: write it\n")),
        "SecretMissing", "shop-cdc"),
    "preflight between two attempts": (
        {"phase": "Pending", "conditions": [], "initContainerStatuses": [{"name": "preflight", "state": {
            "terminated": {"exitCode": 3, "message": "error: no [source_auth_failed]"}}}]},
        "PreflightFailed", "source_auth_failed"),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": []},
                "Evicted", "low on memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_of_the_pod_has_a_reason_and_a_way_out(name: str) -> None:
    """Each way in which a pod fails is told by a reason of its own, says what to do, and is an Event."""
    status, reason, text = TROUBLES[name]
    seen = running(progress=None, pods=(pod(**status),))
    told = conditions(seen)["DriverAvailable"]
    assert (told.status, told.reason) == (False, reason)
    assert text in told.message
    assert reason in {n.reason for n in reconcile(seen).notes}


REFUSED_PODS = {
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged (container "side" must not set'
    " securityContext.privileged=true)": "spec.driver.podTemplate",
    'pods "x" is forbidden: exceeded quota: small, requested: memory=3Gi, limited: memory=1Gi': "-n data",
    'pods "x" is forbidden: failed quota: small: must specify limits.cpu': "spec.driver.resources",
    'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 3Gi': "describe limitrange -n data",
}


def creation_failure(message: str, uid: str = "uid-sts", seconds: float = -5) -> CreationFailure:
    """Return what a controller's Event reports."""
    text = f"create Pod shop-driver-0 in StatefulSet shop-driver failed error: {message}"
    event = {"metadata": {}, "involvedObject": {"uid": uid}, "message": text, "lastTimestamp": written(at(seconds))}
    return read_creation_failure(event)


@pytest.mark.parametrize("message", REFUSED_PODS)
def test_pod_refused_at_creation_has_a_reason_and_a_way_out(message: str) -> None:
    """A driver's pod that the cluster does not let be created is a condition with the cause and what to do."""
    failed = {ObjectKey("StatefulSet", "shop-driver"): creation_failure(message)}
    seen = running(progress=None, pods=(), creation_failures=failed)
    told = conditions(seen)["DriverAvailable"]
    assert (told.status, told.reason, phase(seen)) == (False, "PodRefused", "Failed")
    assert told.message.startswith(message)
    assert REFUSED_PODS[message] in told.message.removeprefix(message)
    assert "PodRefused" in {n.reason for n in reconcile(seen).notes}
    since = {"type": "DriverAvailable", "status": "False", "reason": "Starting", "message": "",
             "lastTransitionTime": written(at(60))}  # fmt: skip
    later = running(body=pipeline(status={"conditions": [since]}), progress=None, pods=(), creation_failures=failed)
    assert conditions(later)["DriverAvailable"].reason == "Starting", "an Event of an earlier trouble"


def test_refused_pod_of_a_dedicated_copy_is_its_tables() -> None:
    """The table whose copy cannot have a pod says why."""
    told = progress(table_document(phase="DataSync", copyOrder="first"))
    (job,) = copies(running(progress=told))
    message = next(iter(REFUSED_PODS))
    failed = {ObjectKey("Job", job["metadata"]["name"]): creation_failure(message)}
    plan = reconcile(running(progress=told, creation_failures=failed))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    (ready,) = (c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodRefused")
    assert "violates PodSecurity" in ready["message"]


def test_preflight_tells_of_the_source() -> None:
    """An answer of the source to the preflight counts for SourceReachable, though no driver ever ran."""
    text = "error: password authentication failed [source_auth_failed]"
    seen = running(progress=None, pods=(pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message=text)),))
    assert conditions(seen)["SourceReachable"].reason == "Refused"
    status = next(w.status for w in reconcile(seen).statuses if w.key.kind == "Pipeline")
    assert status["driver"]["lastTermination"]["code"] == "source_auth_failed"


SLOT_ERRORS = {"slot_lost": "Lost", "slot_missing": "Missing", "source_changed": "Lost", "slot_foreign": "Missing"}


@pytest.mark.parametrize("code", SLOT_ERRORS)
def test_an_error_about_the_slot_makes_it_unhealthy(code: str) -> None:
    """The slot is unhealthy, and the source reachable, whether the engine reports it or has ended with it."""
    error = error_document(code=code)
    text = f"error: no changes [{code}]\n  hint: levada resync MANIFEST --all"
    ended = pod(**waiting("driver", "CrashLoopBackOff", exitCode=1, message=text))
    for seen in (
        running(progress=progress(capture={"connected": False, "error": error})),
        running(progress=progress(state="Failed", error=error)),
        running(progress=None, pods=(ended,)),
    ):
        found = conditions(seen)
        assert (found["SlotHealthy"].status, found["SlotHealthy"].reason) == (False, SLOT_ERRORS[code])
        assert code in found["SlotHealthy"].message
        assert found["SourceReachable"].status is True
        assert (found["Ready"].reason, phase(seen)) == ("SlotUnhealthy", "Failed")


@pytest.mark.parametrize("container", ["preflight", "driver"])
def test_reason_of_a_failure_is_held_until_it_has_passed(container: str) -> None:
    """A container that runs again has not shown that its failure is gone. The reason stays until the pod is ready."""
    text = "error: password authentication failed [source_auth_failed]"
    failed = waiting(container, "CrashLoopBackOff", exitCode=3, message=text)
    again = merge(failed, {"conditions": [{"type": "Ready", "status": "False"}]})
    (state,) = next(v for k, v in again.items() if k.endswith("Statuses"))
    before = conditions(running(progress=None, pods=(pod(**failed),)))
    state["state"] = {"running": {"startedAt": written(at(-5))}}
    assert conditions(running(progress=None, pods=(pod(**again),))) == before
    state["state"] = {"running": {"startedAt": written(at(-901))}}
    late = conditions(running(progress=None, pods=(pod(**again),)))["DriverAvailable"].reason
    assert late == ("PreflightFailed" if container == "preflight" else "Starting"), "an old failure is not today's"
    state |= {"ready": True, "state": {"terminated": {"exitCode": 0}} if container == "preflight" else state["state"]}
    assert conditions(running(progress=None, pods=(pod(**again),)))["DriverAvailable"].reason == "Starting"


def test_every_problem_of_the_preflight_is_in_the_status() -> None:
    """All errors that the preflight found are told with their hints and codes, the store's rights among them."""
    text = (
        "error: wal_level is replica [wal_level_not_logical]\n  hint: ALTER SYSTEM SET wal_level = 'logical'\n"
        "error: role app may not create schema levada [store_privilege_missing]\n"
        "  hint: GRANT CREATE ON DATABASE shop\n"
        "warning: table public.a has no replica identity [identity_missing]\n  hint: ALTER TABLE a\n"
    )
    seen = running(progress=None, pods=(pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message=text)),))
    assert conditions(seen)["DriverAvailable"].message.splitlines() == [
        "wal_level is replica; ALTER SYSTEM SET wal_level = 'logical' [wal_level_not_logical]",
        "role app may not create schema levada; GRANT CREATE ON DATABASE shop [store_privilege_missing]",
    ]


def test_stuck_pod_is_told() -> None:
    """A pod that is still there a minute after its grace is over waits for somebody."""
    body = {"metadata": {"deletionTimestamp": written(at(-61))}}
    from tests.operator.samples import pod_body

    from levada_operator.observe.pods import read_pod

    seen = running(pods=(read_pod(merge(pod_body(), body)),))
    assert conditions(seen)["DriverAvailable"].reason == "StuckTerminating"


def test_invalid_spec_keeps_the_last_accepted_running() -> None:
    """A spec that is wrong changes nothing that runs; status and an Event name the field."""
    seen = running(body=pipeline(spec={"freshnessSeconds": 0}))
    plan = reconcile(seen)
    assert plan.apply == ()
    (accepted,) = (n for n in plan.notes if n.reason == "SpecRefused")
    assert "spec.freshnessSeconds" in accepted.message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"freshnessSeconds": 30}, "Hot: spec.freshnessSeconds"),
        ({"driver": {"image": "mine:2"}}, "Restart: spec.driver.image"),
        ({"onUnrepresentable": "Text"}, "Resync: spec.onUnrepresentable"),
        (
            {"driver": {"image": "mine:2"}, "copy": {"maxConcurrentTables": 8}},
            "Restart: spec.driver.image; Hot: spec.copy.maxConcurrentTables",
        ),
    ],
)
def test_event_names_class_and_field_of_a_change(changes: dict[str, Any], told: str) -> None:
    """What a change costs is said when it is taken up."""
    plan = reconcile(running(body=pipeline(spec=changes)))
    assert [n.message for n in plan.notes if n.reason == "SpecChanged"] == [told]
    rolled = "StatefulSet" in {b["kind"] for b in plan.apply}
    assert rolled is not told.startswith("Hot")


def test_immutable_change_is_refused_with_class_and_field() -> None:
    """Where the API server let an immutable field through, it is refused here, and the old spec runs on."""
    seen = running(body=pipeline(spec={"source": {"database": "other"}}))
    plan = reconcile(seen)
    assert plan.apply == ()
    (note,) = (n for n in plan.notes if n.reason == "SpecRefused")
    assert note.message.startswith("Immutable: spec.source.database")
    assert accept(seen).condition.reason == "ImmutableChange"


def test_younger_rival_never_runs() -> None:
    """Of two Pipelines that read one slot, the younger makes nothing and says which is the older."""
    plan = reconcile(observed(rivals=("data/first",)))
    assert plan.apply == ()
    assert [n.reason for n in plan.notes] == ["ConflictingPipeline"]


def test_second_table_sync_for_a_table_is_refused() -> None:
    """The older one counts; the younger is told so."""
    other = merge(table_sync(ours=False, suspend=True), {"metadata": {"name": "zzz", "uid": "u2"}})
    accepted = accept(running(table_sync(), other))
    assert accepted.table_conditions["zzz"].reason == "Duplicate"
    assert accepted.table_conditions["shop-public-orders"].status is True


def test_table_sync_that_is_wrong_keeps_its_last_accepted_form() -> None:
    """One wrong TableSync neither stops the Pipeline nor changes its table."""
    text = MANIFEST + "---\n" + (
        "apiVersion: levada.dev/v1alpha1\nkind: TableSync\nmetadata: {name: shop-public-orders}\n"
        "spec: {pipelineRef: {name: shop}, table: {schema: public, name: orders}, columns: {exclude: [a]}}\n"
    )  # fmt: skip
    seen = running(table_sync(resyncNonce=-1), owned=owned(owner_of(text)))
    accepted = accept(seen)
    assert accepted.table_conditions["shop-public-orders"].reason == "InvalidSpec"
    assert accepted.manifests is not None
    assert accepted.manifests.table_syncs[0].spec.columns.exclude == ("a",)
    assert accepted.changes == {}


def test_changes_are_described_dearest_first() -> None:
    """The class of the whole change is the first word."""
    from levada.spec import Change

    assert describe({"spec.b": Change.HOT, "spec.a": Change.IMMUTABLE, "spec.c": Change.HOT}) == (
        "Immutable: spec.a; Hot: spec.b, spec.c"
    )


def test_table_status_tells_copy_lag_and_error() -> None:
    """A TableSync says how far its copy is, how long it still takes, and what is wrong and mends it."""
    copying = table_document(
        phase="DataSync",
        copy={"rows": 88_123_456, "bytes": 5 << 30, "percent": 37.4, "secondsLeft": 3900.0},
        lagSeconds=None,
        appliedLsn=None,
    )
    plan = reconcile(running(progress=progress(copying)))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    assert status["display"] == {"table": "public.orders", "copied": "37%", "rows": "88.1M", "lag": "", "left": "2h"}
    assert status["copy"] == {"rows": 88_100_000, "bytes": 5 << 30, "percent": 37, "secondsLeft": 7200}
    errored = table_document(phase="Errored", error=error_document())
    plan = reconcile(running(progress=progress(errored)))
    status = next(w.status for w in plan.statuses if w.key.kind == "TableSync")
    assert (status["phase"], status["error"]["solution"][:11]) == ("Errored", "ALTER TABLE")
    assert "TableErrored" in {n.reason for n in plan.notes}


def statuses(seen: Observed) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the status of the Pipeline and that of its only TableSync."""
    found = {w.key.kind: w.status for w in reconcile(seen).statuses}
    return found["Pipeline"], found["TableSync"]


DOWN = {"type": "Replicating", "status": "False", "reason": "Stopped", "message": "",
        "lastTransitionTime": written(at(-280))}  # fmt: skip
CRASHED = pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message="error: no [source_auth_failed]"))
WAS_READY = table_sync() | {"status": {"phase": "Ready", "copy": {"rows": 5, "bytes": 5, "percent": 100}}}
ALL_READY = {"total": 1, "byPhase": {"Ready": 1}}
UNREAD: dict[str, Observed] = {
    "the driver has ended": running(WAS_READY, progress=progress(fetched=-280), pods=(CRASHED,)),
    "the operator is new": running(
        WAS_READY, body=pipeline(status={"conditions": [DOWN], "tables": ALL_READY}), progress=None, pods=(CRASHED,)
    ),
    "the engine cannot sign in": running(
        WAS_READY,
        progress=progress(
            table_document(lagSeconds=280),
            capture={"connected": False, "error": error_document(code="source_auth_failed")},
        ),
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
    for seen in (running(WAS_READY, progress=opening), running(WAS_READY, progress=None)):
        assert next(w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync")["phase"] == "Ready"


def test_suspended_table_does_not_count_as_ready() -> None:
    """One of a suspended TableSync, or Pipeline, counts as Suspended. A Pipeline can be Ready with suspended tables."""
    parked = running(table_sync(suspend=True), table_sync("events"), progress=progress(
        table_document(), table_document("events")))  # fmt: skip
    status = next(w.status for w in reconcile(parked).statuses if w.key.kind == "Pipeline")
    assert (status["tables"]["byPhase"], status["display"]["tables"]) == ({"Ready": 1, "Suspended": 1}, "1/2")
    assert conditions(parked)["Ready"].status is True
    whole, table = statuses(running(body=SUSPENDED, pods=(), progress=progress(fetched=-280)))
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
    _, table = statuses(running(WAS_READY, progress=progress(report)))
    assert (table["display"]["copied"], table["display"]["rows"]) == ("0%", "0")


def test_nothing_streams_before_the_driver_is_ready() -> None:
    """A driver that is not ready yet is Starting, also once its stream is open."""
    starting = pod(phase="Running", conditions=[{"type": "Ready", "status": "False"}])
    seen = running(pods=(starting,), progress=progress(*(table_document(f"t{i}", "Init", copy=None) for i in range(5))))
    assert phase(seen) == "Starting"


def test_copy_finished_by_an_earlier_driver_keeps_its_size() -> None:
    """A driver that found the copy finished knows no rows; what was told before stays."""
    before = {"copy": {"rows": 12_600_000, "bytes": 1 << 30, "percent": 99}}
    body = table_sync() | {"status": before}
    finished = table_document(copy={"rows": 0, "bytes": 0, "percent": 100.0, "secondsLeft": None})
    status = next(
        w.status for w in reconcile(running(body, progress=progress(finished))).statuses if w.key.kind == "TableSync"
    )
    assert status["copy"] == {"rows": 12_600_000, "bytes": 1 << 30, "percent": 100}


def test_transitions_tell_a_change_once() -> None:
    """A reason that has not changed is no Event; good news is one only after bad."""
    key = ObjectKey("Pipeline", "shop")
    bad, good = Condition("SlotHealthy", False, "Lost", "gone"), Condition("SlotHealthy", True, "Reserved")
    assert [n.reason for n in transitions(key, (), [good])] == []
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Reserved"}], [bad])] == [
        "SlotUnhealthy"
    ]
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Lost"}], [bad])] == []
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Lost"}], [good])] == ["SlotHealthy"]


def test_lag_is_sampled_by_a_job_while_no_driver_runs() -> None:
    """Suspended, crash-looping or unschedulable: a Job is due; while the driver tells itself, none is."""
    down = pod(**waiting("driver", "CrashLoopBackOff", exitCode=1))
    for seen, due in (
        (running(), False),
        (running(body=SUSPENDED), False),
        (running(body=SUSPENDED, pods=(), progress=None), True),
        (running(pods=(down,), progress=None), True),
        (running(pods=(down,), progress=None, body=pipeline(spec={"health": {"lagProbeSeconds": 0}})), False),
    ):
        assert ("Job" in {b["kind"] for b in reconcile(seen).apply}) is due


def test_sample_of_a_job_is_told() -> None:
    """What the Job's pod left as its message becomes status.slot; a slot that is gone is an alarm."""
    import json

    sample = {"name": "levada_shop", "lagBytes": 5 << 30, "retainedBytes": 6 << 30, "walStatus": "extended",
              "safeWalBytes": None, "active": False, "sampledAt": "2026-01-31T11:59:00+00:00"}  # fmt: skip

    def ended(message: str) -> dict[str, Any]:
        state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": message}}}
        return {"phase": "Succeeded", "containerStatuses": [state]}

    probe = pod("lag", "shop-lag-1-x", **ended(json.dumps(sample)))
    plan = reconcile(running(body=SUSPENDED, pods=(probe,), progress=None))
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    assert (status["slot"]["lagBytes"], status["display"]["lag"]) == (5 << 30, "5Gi")
    gone = pod("lag", "shop-lag-2-x", **ended(json.dumps(dict.fromkeys(sample) | {"name": "levada_shop"})))
    body = merge(SUSPENDED, {"status": {"slot": {"sampledAt": "2026-01-31T11:00:00Z"}}})
    assert conditions(running(body=body, pods=(gone,), progress=None))["SlotHealthy"].reason == "Missing"


def test_documents_of_samples_are_the_engines() -> None:
    """The samples have the form that the engine's own progress writes."""
    from tests.runtime.samples import progress as engine_progress

    theirs = engine_progress().to_json()
    ours = document()
    assert theirs.keys() >= ours.keys()
    assert theirs["slot"].keys() == ours["slot"].keys()
    assert theirs["tables"][0].keys() >= ours["tables"][0].keys()
    assert owner(**spec()).name == "shop"


def copies(seen: Observed) -> list[dict[str, Any]]:
    """Return the copy Jobs that are to be made."""
    return [b for b in reconcile(seen).apply if b["metadata"]["labels"]["levada.dev/role"] == "copy"]


def test_ordered_copy_gets_one_job() -> None:
    """Each copy that the driver orders gets a Job, once, even if it has ended; another order gets another."""
    told = progress(table_document(phase="DataSync", copyOrder="first"), table_document("events"))
    (job,) = copies(running(progress=told))
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[:5] == ["levada", "copy", "/etc/levada/pipeline.yaml", "--table", "public.orders"]
    made = job | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    made["metadata"] |= {"creationTimestamp": written(at(-60))}
    assert copies(running(progress=told, jobs=(read_job(made),))) == []
    again = progress(table_document(phase="DataSync", copyOrder="second"))
    (other,) = copies(running(progress=again, jobs=(read_job(made),)))
    assert other["metadata"]["name"] != job["metadata"]["name"]


def test_copy_is_not_begun_on_old_news() -> None:
    """What a driver said long ago is no order."""
    told = progress(table_document(phase="DataSync", copyOrder="first"), fetched=-600)
    assert copies(running(progress=told)) == []


def test_status_tells_of_a_new_copy_beside_its_table() -> None:
    """The table stays Ready; the step, how far the copy is and the values that were acted on are told."""
    beside = {"step": "Copying", "copy": {"rows": 1_000, "bytes": 1 << 20, "percent": 37.4, "secondsLeft": 90}}
    seen = running(progress=progress(table_document(resync=beside, resyncNonce=2)))
    (status,) = [w.status for w in reconcile(seen).statuses if w.key.kind == "TableSync"]
    assert status["phase"] == "Ready"
    assert (status["resync"]["step"], status["resync"]["copy"]["percent"]) == ("Copying", 37)
    assert (status["resyncNonce"], "retryNonce" in status) == (2, False)
