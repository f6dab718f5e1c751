"""A Pipeline's conditions, one function for each. Ready is derived from the others."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from levada import codes
from levada.status import (
    PipelineState,
    RetryPolicy,
    TablePhase,
    TableProgress,
)
from levada_operator.decide.acceptance import Acceptance, refusal_text
from levada_operator.decide.approval import approve_command, cost_text, unknown_sizes
from levada_operator.decide.cleanup_pod import waiting_text
from levada_operator.decide.conditions import Condition, stored_condition
from levada_operator.decide.limits import within_limits
from levada_operator.decide.phase import COPYING, TableSyncPhase
from levada_operator.decide.slot import SlotSample, outdated_since, slot_sample
from levada_operator.decide.table_phase import table_phases
from levada_operator.names import PIPELINE_LABEL, driver_name
from levada_operator.observe.creation import CreationFailure, creation_text
from levada_operator.observe.objects import ObjectKey, read_time
from levada_operator.observe.observed import Observed
from levada_operator.observe.progress import error_text

STUCK_AFTER: Final = timedelta(seconds=60)
_CLOCKS: Final = timedelta(seconds=10)
"""Tolerated difference between the clocks of the operator and of Kubernetes' controllers."""
_ENDED: Final = (PipelineState.FAILED, PipelineState.STOPPED)
_BEYOND_THE_SOURCE: Final = ("staging_", "store_", "destination_")
"""The beginnings of the codes of errors that end the stream although the source answers."""
_MAY_STALL: Final = ("DriverAvailable", "SourceReachable", "SlotHealthy", "TablesHealthy")
_SLOT_REASONS: Final = {
    "reserved": (True, "Reserved", ""),
    "extended": (True, "Extended", "the slot keeps more WAL than max_wal_size"),
    "unreserved": (False, "Unreserved", "the slot loses WAL at the source's next checkpoint; raise"
                   " max_slot_wal_keep_size, or let the driver catch up"),
    "lost": (False, "Lost", "the source has removed WAL that the slot needs; every table must be copied again: set"
             " spec.source.slot.onLost: Resync, or drop the slot"),
}  # fmt: skip
_SLOT_ERRORS: Final = {
    codes.SLOT_LOST: "Lost",
    codes.SLOT_MISSING: "Missing",
    # A restored or replaced source has a slot, but without the changes that the tables need.
    codes.SOURCE_CHANGED: "Lost",
    codes.SLOT_FOREIGN: "Missing",
    codes.SLOT_RELEASED: "Released",
}
"""The reason of SlotHealthy for each error code about the slot. A source that reports such an error is reachable."""


def pipeline_conditions(
    observed: Observed, acceptance: Acceptance, *, waits: bool = False, update: str = ""
) -> dict[str, Condition]:
    """Return every condition by its type, in the order of `PIPELINE_REASONS`.

    ``waits`` is True if an update of the driver waits for its turn. ``update`` is why the driver does not run the
    accepted spec yet, or empty.
    """
    sample = slot_sample(observed)
    driver = driver_available(observed, acceptance, waits=waits)
    parts = (
        acceptance.condition,
        approved(observed, acceptance),
        driver,
        source_reachable(observed, acceptance, driver, sample),
        slot_healthy(observed, acceptance, sample),
        replicating(observed, acceptance, driver),
        tables_healthy(observed),
        within_limits(observed, sample, acceptance.manifests),
        suspended(observed, acceptance),
    )
    by_type = {c.type: c for c in parts}
    by_type = {"Ready": ready(observed, acceptance, by_type, update), **by_type}
    halted = stalled(observed, acceptance, by_type)
    return {**by_type, "Reconciling": reconciling(by_type, halted), "Stalled": halted}


def approved(observed: Observed, acceptance: Acceptance) -> Condition:
    """Return Approved: False while a change that copies tables again waits. The last approved cost stays readable."""
    of, request, key = "Approved", acceptance.request, _waiting_key(observed)
    if key and not acceptance.waits:
        return Condition(of, False, "ApprovalRequired", key)
    if request is None or acceptance.manifests is None:
        last = stored_condition(of, observed.pipeline.status)
        return last if last.status else Condition(of, True, "NothingWaits")
    spec = acceptance.manifests.pipeline.spec
    cost = cost_text(request, observed, spec.copy_.max_concurrent_tables)
    if acceptance.waits:
        command = approve_command(observed.pipeline, request)
        if spec.approval_above is not None and (unknown := unknown_sizes(request, observed)):
            cost += f"; spec.approvalAbove lets no change pass of a table whose size no driver has reported: {unknown}"
        message = f"{cost}; to approve: {command}; or set the fields back" + (f". Also: {key}" if key else "")
        return Condition(of, False, "ApprovalRequired", message)
    return Condition(of, True, "Approved" if observed.pipeline.approves == request.digest else "Automatic", cost)


def _waiting_key(observed: Observed) -> str:
    """Return what another key of masks copies again, with the command that approves it. Empty: no key waits.

    The driver asks, because the operator reads no Secret. One that starts ends with the question.
    """
    if (progress := observed.fresh_progress) is not None:
        waiting = progress.manifest.approval
        if waiting is None or waiting.code != codes.APPROVAL_REQUIRED:
            return ""
        return f"{waiting.reason}; to approve: {waiting.solution}; or set the Secret back"
    failure = None if observed.driver is None else observed.driver.failure
    return failure.text if failure is not None and failure.code == codes.APPROVAL_REQUIRED else ""


def driver_available(observed: Observed, acceptance: Acceptance, *, waits: bool) -> Condition:
    """Return DriverAvailable: True if the driver's pod is ready, else the cause and the remedy."""
    of, pod = "DriverAvailable", observed.driver
    if acceptance.manifests is None:
        return Condition(of, False, "NotStarted", "no spec has been accepted yet")
    # No pod waits for a table's object.
    refusal = next((r for r in observed.refusals if r.key.kind != "TableSync"), None)
    if refusal is not None and pod is None:
        return Condition(of, False, "RefusedByCluster", refusal_text(refusal, observed.pipeline.namespace))
    wanted = not acceptance.manifests.pipeline.spec.suspend and observed.pipeline.deleting_since is None
    if pod is None:
        failure = observed.creation_failures.get(ObjectKey("StatefulSet", driver_name(observed.pipeline.name)))
        if wanted and failure is not None and _current(failure, observed):
            return Condition(of, False, "PodRefused", creation_text(failure, observed.pipeline.namespace))
        return Condition(of, False, "Starting" if wanted else "ScaledToZero", _held_text(observed))
    if pod.deleting_since is not None:
        if observed.now > pod.deleting_since + STUCK_AFTER:
            node = f" on node {pod.node}" if pod.node else ""
            command = f"kubectl -n {observed.pipeline.namespace} delete pod {pod.name} --force"
            message = f"pod {pod.name}{node} does not end; if its node is gone: {command}"
            return Condition(of, False, "StuckTerminating", message)
        return Condition(of, False, "Starting" if wanted else "ScaledToZero", "the previous pod is ending")
    if pod.failure is not None:
        return Condition(of, False, pod.failure.reason, pod.failure.text)
    if pod.ready:
        return Condition(of, True, "PodReady", pod.name + (_waiting_text(observed) if waits else ""))
    return Condition(of, False, "Starting", f"pod {pod.name} is not ready yet")


def _held_text(observed: Observed) -> str:
    """Return why a StatefulSet gets no pod: it is being deleted. Return an empty string for any other."""
    name = driver_name(observed.pipeline.name)
    metadata = (observed.owned.get("StatefulSet", name) or {}).get("metadata") or {}
    if not metadata.get("deletionTimestamp"):
        return ""
    held = ", ".join(metadata.get("finalizers") or ())
    return f"StatefulSet {name} is being deleted" + (f", and waits for its finalizers: {held}" if held else "")


def _waiting_text(observed: Observed) -> str:
    # The message does not name or count the other drivers: each change would rewrite every waiting Pipeline's status.
    most = observed.defaults.updates.max_concurrent
    return (
        "; an update of the pod waits for its turn: other drivers are restarting, and updatePolicy.maxConcurrent"
        f" is {most}"
    )


def _current(failure: CreationFailure, observed: Observed) -> bool:
    """Return True if the failure is not older than the condition. Kubernetes keeps Events for an hour."""
    for last in observed.pipeline.status.get("conditions", ()):
        if last["type"] == "DriverAvailable":
            return failure.at >= read_time(last["lastTransitionTime"]) - _CLOCKS
    return True


def source_reachable(
    observed: Observed, acceptance: Acceptance, driver: Condition, sample: SlotSample | None
) -> Condition:
    """Return SourceReachable, as the driver reports it, else as the last slot-sampling Job does."""
    of, progress = "SourceReachable", observed.fresh_progress
    if _slot_error(observed) is not None:
        return Condition(of, True, "Connected")
    if progress is not None:
        if (error := progress.error or progress.capture.error) and not progress.capture.connected:
            if error.code.startswith(_BEYOND_THE_SOURCE):
                return Condition(of, None, "Unknown")
            return Condition(of, False, "Refused", error_text(error))
        # No error and no connection: the stream is being opened.
        return Condition(of, True, "Connected") if progress.capture.connected else Condition(of, None, "Unknown")
    pod = observed.driver
    if pod is not None and pod.failure is not None and pod.failure.code.startswith(("source_", "replication_")):
        return Condition(of, False, "Refused", pod.failure.text)
    if sample is not None and sample.by_job and outdated_since(observed, sample, acceptance.manifests) is None:
        if sample.failure:
            return Condition(of, False, "Refused", sample.failure)
        return Condition(of, True, "Connected", "sampled by a Job, because no driver runs")
    return Condition(of, None, "Unknown")


def slot_healthy(observed: Observed, acceptance: Acceptance, sample: SlotSample | None) -> Condition:
    """Return SlotHealthy: True if the slot has the changes that the tables need, Unknown for an old sample."""
    of = "SlotHealthy"
    if (found := _slot_error(observed)) is not None:
        code, message = found
        return Condition(of, False, _SLOT_ERRORS[code], message)
    if sample is None or (sample.report is None and sample.failure):
        return Condition(of, None, "Unknown")
    if sample.report is None or sample.report.sampled_at is None:
        if observed.pipeline.status.get("slot", {}).get("sampledAt") and sample.by_job:
            return Condition(of, False, "Missing", "the slot is gone; every table must be copied again")
        return Condition(of, None, "Unknown")
    if (taken_at := outdated_since(observed, sample, acceptance.manifests)) is not None:
        return Condition(of, None, "Unknown", f"the slot was sampled last at {_at(taken_at)}")
    status, reason, message = _SLOT_REASONS.get(sample.report.wal_status or "", (None, "Unknown", ""))
    return Condition(of, status, reason, message)


def replicating(observed: Observed, acceptance: Acceptance, driver: Condition) -> Condition:
    """Return Replicating: True if the position advances or the source is idle, Unknown without a recent report."""
    of, progress = "Replicating", observed.fresh_progress
    if acceptance.manifests is None:
        return Condition(of, False, "NotStarted")
    spec = acceptance.manifests.pipeline.spec
    if driver.reason == "ScaledToZero":
        return Condition(of, False, "Stopped")
    if progress is None:
        if driver.status or (observed.progress is not None and driver.reason == "Starting"):
            last = observed.report.fetched_at if observed.report else None
            why = f": {observed.unreadable}" if observed.unreadable else ""
            return Condition(of, None, "ProgressStale", f"no answer from the driver since {_at(last)}{why}")
        return Condition(of, False, "NotStarted" if driver.reason == "Starting" else "Stopped")
    if progress.state in _ENDED or progress.error is not None:
        return Condition(of, False, "Stopped", error_text(progress.error) if progress.error else "the engine has ended")
    if not progress.capture.connected:
        error = progress.capture.error
        if error is not None and error.code.startswith(_BEYOND_THE_SOURCE):
            return Condition(of, False, "Stopped", error_text(error))
        return Condition(of, False, "NotStarted")
    since = observed.moved_at or (observed.report.fetched_at if observed.report else observed.now)
    still = observed.now - since
    if progress.slot.lag_bytes and still > timedelta(seconds=spec.health.progress_deadline_seconds):
        return Condition(of, False, "NoProgress", f"WAL waits at the source, and nothing has moved since {_at(since)}")
    return Condition(of, True, "Advancing" if progress.slot.lag_bytes or still < STUCK_AFTER else "Idle")


def tables_healthy(observed: Observed) -> Condition:
    """Return TablesHealthy: True if no table has an error. Without a progress report, return the stored condition.

    The message has the tables that cannot be added to the publication, or have another replica identity for long,
    and an event trigger that another session has removed.
    """
    of = "TablesHealthy"
    if observed.progress is None:
        return stored_condition(of, observed.pipeline.status)
    errored, publication = errored_tables(observed.progress.tables), observed.progress.publication
    own = (publication.error, publication.lent, publication.trigger)
    left_out = "; ".join(error_text(error) for error in own if error is not None)
    if not errored:
        return Condition(of, True, "AllHealthy", left_out)
    first = errored[0]
    why = f"{first.schema}.{first.name} [{first.error.code}]" if first.error else f"{first.schema}.{first.name}"
    more = f" and {len(errored) - 1} more" if len(errored) > 1 else ""
    ask = f"kubectl get tablesyncs -n {observed.pipeline.namespace} -l {PIPELINE_LABEL}={observed.pipeline.name}"
    return Condition(of, False, "SomeErrored", f"{why}{more}; see: {ask}" + (f"; {left_out}" if left_out else ""))


def suspended(observed: Observed, acceptance: Acceptance) -> Condition:
    """Return Suspended: True if spec.suspend is set and the driver's pod no longer exists."""
    of = "Suspended"
    if acceptance.manifests is None or not acceptance.manifests.pipeline.spec.suspend:
        return Condition(of, False, "NotRequested")
    if observed.driver is not None:
        return Condition(of, False, "Draining", "the driver finishes its batch")
    return Condition(of, True, "Drained", "the slot stays, and keeps WAL on the source's disk")


def ready(observed: Observed, acceptance: Acceptance, others: dict[str, Condition], update: str) -> Condition:
    """Return Ready, derived from the other conditions. It trails while the driver does not run the newest spec."""
    found = _ready(observed, acceptance, others)
    if found.status and update:
        found = Condition("Ready", False, "Updating", update)
    accepted = others["Accepted"].status or acceptance.applied
    newest = accepted and others["Approved"].status is not False and not update
    return replace(found, trails=not newest)


def reconciling(others: dict[str, Condition], halted: Condition) -> Condition:
    """Return Reconciling: True while a Pipeline that is not stalled comes nearer to what its spec says."""
    of, is_ready, waits = "Reconciling", others["Ready"], others["Approved"]
    if halted.status or others["Suspended"].reason == "Drained":
        return Condition(of, False, "Settled")
    if waits.status is False:
        return Condition(of, True, "ApprovalRequired", waits.message)
    if is_ready.status:
        return Condition(of, False, "Settled")
    return Condition(of, True, "Progressing", f"{is_ready.reason}: {is_ready.message}".removesuffix(": "))


def stalled(observed: Observed, acceptance: Acceptance, others: dict[str, Condition]) -> Condition:
    """Return Stalled: True if the spec is refused, or a failure lasts longer than health.progressDeadlineSeconds."""
    of, accepted = "Stalled", others["Accepted"]
    if observed.pipeline.deleting_since is not None:
        return Condition(of, False, "NotStalled")
    if not accepted.status:
        return Condition(of, True, accepted.reason, accepted.message)
    if acceptance.manifests is None or others["Suspended"].reason != "NotRequested":
        return Condition(of, False, "NotStalled")
    if others["Replicating"].reason == "NoProgress":
        return Condition(of, True, "NoProgress", others["Replicating"].message)
    deadline = timedelta(seconds=acceptance.manifests.pipeline.spec.health.progress_deadline_seconds)
    failed_since = {c["type"]: c["lastTransitionTime"] for c in observed.pipeline.status.get("conditions", ())
                    if c["status"] == "False"}  # fmt: skip
    for type_ in _MAY_STALL:
        failure, since = others[type_], failed_since.get(type_)
        # either way: a condition's time of the future is replaced
        if failure.status is False and since and observed.now - read_time(since) > deadline:
            return Condition(of, True, failure.reason, failure.message)
    return Condition(of, False, "NotStalled")


def _ready(observed: Observed, acceptance: Acceptance, others: dict[str, Condition]) -> Condition:
    """Return Ready for the spec that runs. The first reason that applies is reported."""
    of, moving, driver = "Ready", others["Replicating"], others["DriverAvailable"]
    if observed.pipeline.deleting_since is not None:
        return Condition(of, False, "Deleting", waiting_text(observed))
    if acceptance.manifests is None:
        return Condition(of, False, "NotAccepted", others["Accepted"].message)
    if acceptance.manifests.pipeline.spec.suspend:
        return Condition(of, False, "Suspended")
    for type_, reason in (("SlotHealthy", "SlotUnhealthy"), ("SourceReachable", "SourceUnreachable")):
        if others[type_].status is False:
            return Condition(of, False, reason, others[type_].message)
    if moving.reason == "ProgressStale":
        return Condition(of, None, "ProgressStale", moving.message)
    if moving.reason == "Stopped" and moving.message:
        return Condition(of, False, "Stopped", moving.message)
    if not driver.status:
        return Condition(of, False, "DriverNotReady", f"{driver.reason}: {driver.message}".removesuffix(": "))
    if moving.reason == "NoProgress":
        return Condition(of, False, "NoProgress", moving.message)
    if others["TablesHealthy"].status is False:
        return Condition(of, False, "TablesErrored", others["TablesHealthy"].message)
    if not moving.status:
        return Condition(of, False, "DriverNotReady", "the engine is starting")
    return _streaming(observed)


def errored_tables(tables: tuple[TableProgress, ...]) -> list[TableProgress]:
    """Return the tables with an error, sorted by name. Those that are not retried automatically come first."""
    return sorted(
        (t for t in tables if t.phase == TablePhase.ERRORED or t.error is not None),
        key=lambda t: (t.error is not None and t.error.retry_policy == RetryPolicy.TIMED_RETRY, t.schema, t.name),
    )


def _streaming(observed: Observed) -> Condition:
    phases = [phase for _, phase in table_phases(observed)]
    if waiting := [p for p in phases if p not in (TableSyncPhase.READY, TableSyncPhase.SUSPENDED)]:
        copying = sum(p in COPYING for p in waiting)
        return Condition(
            "Ready", False, "InitialCopy", f"{copying} tables to copy, {len(waiting) - copying} to catch up"
        )
    return Condition("Ready", True, "Streaming")


def _slot_error(observed: Observed) -> tuple[str, str] | None:
    """Return the code and the message of an error about the slot, or None.

    With spec.source.slot.onLost: Hold the engine exits with such an error. It is then read from the pod's termination.
    """
    progress, pod = observed.fresh_progress, observed.driver
    if progress is not None:
        for error in (progress.error, progress.capture.error):
            if error is not None and error.code in _SLOT_ERRORS:
                return error.code, error_text(error)
    elif pod is not None and pod.failure is not None and pod.failure.code in _SLOT_ERRORS:
        return pod.failure.code, f"{pod.failure.message} [{pod.failure.code}]"
    return None


def _at(at: datetime | None) -> str:
    return "it became ready" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
