"""Reconciliation: a pure function from the observed state of a Pipeline to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from levada.spec import Manifests
from levada.status import TableProgress
from levada.values import QualifiedTable
from levada_operator.decide import rollback
from levada_operator.decide.acceptance import (
    Acceptance,
    accept,
    describe_changes,
    is_paused,
    while_paused,
    with_refusals,
)
from levada_operator.decide.comparison import (
    beyond_counters,
    content_digest,
    needs_apply,
    status_changed,
    with_applied_hash,
)
from levada_operator.decide.conditions import Condition
from levada_operator.decide.deletion import deletion
from levada_operator.decide.events import EventDraft, transitions
from levada_operator.decide.last_run import as_last_run
from levada_operator.decide.pipeline_conditions import pipeline_conditions
from levada_operator.decide.pipeline_status import pipeline_status
from levada_operator.decide.plan import Plan, StatusWrite
from levada_operator.decide.rollout import limit_updates, replaces_pod
from levada_operator.decide.slot import lag_turn
from levada_operator.decide.staging import not_smaller
from levada_operator.decide.table_phase import table_of, tables_known
from levada_operator.decide.table_status import (
    of_generation,
    table_ready,
    table_stalled,
    table_status,
    table_verified,
)
from levada_operator.decide.updating import unapplied_kinds, updating
from levada_operator.desired.jobs import build_copy_job, build_lag_job
from levada_operator.desired.manifest import has_overrides
from levada_operator.desired.objects import build_objects
from levada_operator.desired.owner import Owner, build_owner
from levada_operator.desired.rehearsal import build_driver_rehearsal, build_executor_rehearsal
from levada_operator.desired.table_sync import build_adoption_patch, build_table_sync
from levada_operator.memo import Memo
from levada_operator.names import copy_name, driver_name
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey, Refusal, TableSyncObject
from levada_operator.observe.observed import Observed

MAX_CREATIONS: Final = 20
"""Limit of TableSyncs that one plan creates. Later plans create the rest, so that other Pipelines are not delayed."""

_UPDATED: Final = "the operator now creates a different pod from the same spec"

_NOT_GARBAGE_COLLECTED: Final = ("Job", "TableSync")
"""Kinds never garbage-collected by comparison with the desired objects."""


@dataclass(frozen=True, slots=True)
class Memos:
    """The last results for each Pipeline, and for each object of it. A plan does not depend on them."""

    accepted: Memo[PipelineKey, Acceptance] = field(default_factory=Memo)
    desired: Memo[PipelineKey, list[dict[str, Any]]] = field(default_factory=Memo)
    former: Memo[PipelineKey, Manifests | None] = field(default_factory=Memo)
    applied: Memo[tuple[str, str, str, str], dict[str, Any] | None] = field(default_factory=lambda: Memo(100))

    def forget(self, key: PipelineKey) -> None:
        """Forget all of a Pipeline that is gone."""
        for memo in (self.accepted, self.desired, self.former, self.applied):
            memo.forget(*key)


MEMOS: Final = Memos()
"""Those of the process."""


def reconcile(observed: Observed, memos: Memos = MEMOS) -> Plan:
    """Return the plan. It is idempotent: once executed and observed again, the next plan is empty."""
    acceptance = accept(observed, memos.accepted)
    if is_paused(observed):
        acceptance = while_paused(acceptance)
    else:
        acceptance = rollback.roll_back(observed, acceptance, memos.former)
    if observed.pipeline.deleting_since is not None:
        plan = deletion(observed, acceptance)
    elif acceptance.manifests is None or is_paused(observed):
        plan = Plan()
    else:
        plan = _running(observed, acceptance, acceptance.manifests, memos)
    apply = _all_applied(observed, plan, memos)
    rehearse = _rehearsal(observed, acceptance.manifests, apply)
    refusals = _still_wanted(observed.refusals, (*rehearse, *apply))
    # A namespace that ends refuses every new object. That is no fault of the spec, and the Pipeline's deletion follows.
    told = tuple(r for r in refusals if not r.namespace_terminating)
    runs = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name)) is not None
    held = bool(_still_wanted(told, rehearse)) and acceptance.before is not None
    unapplied = unapplied_kinds(replace(observed, refusals=told), apply, held=held)
    kept = with_refusals(acceptance, told, observed.pipeline.namespace, unapplied, runs=runs)
    if held and kept.manifests is not None:
        plan = _running(observed, kept, kept.manifests, memos, held=True)
        apply = _all_applied(observed, plan, memos)
    statuses, events = _statuses_and_events(replace(observed, refusals=told), kept, apply, waits=plan.waits)
    return Plan(
        rehearse=rehearse,
        held=held,
        apply=apply,
        delete=plan.delete,
        statuses=statuses,
        events=(*(() if refusals and not kept.applied else plan.events), *events),
        release=plan.release,
        abandoned=plan.abandoned,
        takes_turn=plan.takes_turn,
        waits=plan.waits,
    )


def _all_applied(observed: Observed, plan: Plan, memos: Memos) -> tuple[dict[str, Any], ...]:
    return tuple(body for written in plan.apply if (body := _applied(observed, written, memos)) is not None)


def _applied(observed: Observed, desired: dict[str, Any], memos: Memos) -> dict[str, Any] | None:
    """Return the object with the digest of its content, or None if the live object has all of it."""
    live = _live(observed, desired)
    if desired["kind"] == "PersistentVolumeClaim":
        desired = not_smaller(desired, live)
    key = (*observed.pipeline.key, desired["kind"], desired["metadata"]["name"])

    def compute() -> dict[str, Any] | None:
        hashed = with_applied_hash(desired)
        return hashed if needs_apply(hashed, live) else None

    return compute() if live is None else memos.applied.get(key, (desired, live), compute)


def _rehearsal(
    observed: Observed, manifests: Manifests | None, apply: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Return the objects that contain a user's pod template. A dry run finds its errors before anything is changed.

    A StatefulSet is accepted with a pod that the namespace refuses. So the pod that replaces a running one is an object
    of its own.
    """
    if manifests is None or observed.pipeline.deleting_since is not None:
        return ()
    rehearsed = [body for body in apply if body["kind"] == "StatefulSet"]
    owner = build_owner(observed, manifests)
    live = observed.owned.get("StatefulSet", driver_name(owner.name))
    runs_as = ((((live or {}).get("spec") or {}).get("template") or {}).get("spec") or {}).get("serviceAccountName", "")
    if live is not None and any(replaces_pod(live, body) for body in rehearsed):
        created = {body["metadata"]["name"] for body in apply if body["kind"] == "ServiceAccount"}
        account = runs_as if owner.account in created else owner.account
        rehearsed.append(build_driver_rehearsal(rehearsed[0], live["metadata"]["uid"], account))
    starts = not manifests.pipeline.spec.suspend
    if starts and any(body["kind"] == "ConfigMap" for body in apply) and owner.executor.pod_template:
        rehearsed += build_executor_rehearsal(owner, runs_as)
    return tuple(rehearsed)


def _still_wanted(refusals: tuple[Refusal, ...], wanted: Iterable[Body]) -> tuple[Refusal, ...]:
    """Return the refusals of objects that are still desired as they are. Changing the spec thus clears a refusal."""
    bodies = {ObjectKey(body["kind"], body["metadata"]["name"]): body for body in wanted}
    return tuple(r for r in refusals if r.key in bodies and r.content in ("", content_digest(bodies[r.key])))


def _running(
    observed: Observed, acceptance: Acceptance, manifests: Manifests, memos: Memos, *, held: bool = False
) -> Plan:
    owner = build_owner(observed, manifests)
    running = not manifests.pipeline.spec.suspend
    desired = memos.desired.get(observed.pipeline.key, (owner, running), lambda: build_objects(owner, running=running))
    wanted = {(body["kind"], body["metadata"]["name"]) for body in desired}
    superfluous = [
        key
        for key, body in observed.owned.bodies.items()
        if key not in wanted and key.kind not in _NOT_GARBAGE_COLLECTED and _is_owned(body, owner.uid)
    ]
    rollout = limit_updates(desired, observed, acceptance.changes, held=held)
    desired = [rollback.with_record(body, observed, acceptance, held=held) for body in rollout.objects]
    if (turn := lag_turn(observed, manifests)) is not None:
        desired.append(build_lag_job(as_last_run(owner, observed), turn))
    gone = list(_gone_tables(observed, manifests))
    events = []
    goes_back = rollback.begins(observed, acceptance)
    if acceptance.changes and not goes_back:
        events.append(
            EventDraft(ObjectKey("Pipeline", owner.name), "SpecChanged", describe_changes(acceptance.changes))
        )
    elif rollout.updates and not goes_back:
        events.append(
            EventDraft(ObjectKey("Pipeline", owner.name), "DriverUpdated", f"the driver restarts: {_UPDATED}")
        )
    for table_sync in gone:
        about = ObjectKey("Pipeline", owner.name)
        events.append(EventDraft(about, "TableSyncRemoved", f"{table_sync.name}: its table is no longer replicated"))
    return Plan(
        apply=(*desired, *_copies(observed, owner), *_table_syncs(observed, owner)),
        delete=(*superfluous, *(ObjectKey("TableSync", t.name) for t in gone)),
        events=tuple(events),
        takes_turn=rollout.takes_turn,
        waits=rollout.waits,
    )


def _is_owned(body: Body, uid: str) -> bool:
    """Return True if the object ends with the Pipeline. State and staged changes that are retained have no owner."""
    return any(reference.get("uid") == uid for reference in body["metadata"].get("ownerReferences") or ())


def _copies(observed: Observed, owner: Owner) -> Iterator[dict[str, Any]]:
    """Yield a Job for each dedicated copy that the driver requests and that has none. A Job is never changed."""
    known = {job.name for job in observed.jobs}
    for table in observed.fresh_progress.tables if observed.fresh_progress is not None else ():
        name = copy_name(owner.name, table.schema, table.name, table.copy_order)
        if table.copy_order and name not in known:
            yield build_copy_job(owner, table.schema, table.name, table.copy_order)


def _live(observed: Observed, body: dict[str, Any]) -> Any:
    if body["kind"] == "TableSync":
        # _table_syncs yields only those that must be created or adopted.
        return None
    return observed.owned.get(body["kind"], body["metadata"]["name"])


def _table_syncs(observed: Observed, owner: Owner) -> Iterator[dict[str, Any]]:
    for table_sync in observed.table_syncs:
        if not table_sync.owned:
            yield build_adoption_patch(owner, table_sync.name)
    if not tables_known(observed) or observed.progress is None:
        return
    known = {table_of(t) for t in observed.table_syncs}
    new = [t for t in observed.progress.tables if QualifiedTable(t.schema, t.name) not in known]
    for table in new[:MAX_CREATIONS]:
        yield build_table_sync(owner, table.schema, table.name)


def _gone_tables(observed: Observed, manifests: Manifests) -> Iterator[TableSyncObject]:
    """Yield the TableSyncs of tables no longer replicated that the operator created and no user changed."""
    if not tables_known(observed) or observed.progress is None:
        return
    reported = {QualifiedTable(t.schema, t.name) for t in observed.progress.tables}
    changed = {t.metadata.name for t in manifests.table_syncs if has_overrides(t)}
    for table_sync in observed.table_syncs:
        if table_sync.ours and table_sync.name not in changed and table_of(table_sync) not in reported:
            yield table_sync


def _statuses_and_events(
    observed: Observed, acceptance: Acceptance, applied: Sequence[Body], *, waits: bool
) -> tuple[tuple[StatusWrite, ...], list[EventDraft]]:
    key = ObjectKey("Pipeline", observed.pipeline.name)
    update = updating(observed, applied)
    conditions = pipeline_conditions(observed, acceptance, waits=waits, update=update)
    status = pipeline_status(observed, acceptance, conditions)
    before = observed.pipeline.status
    writes = []
    events = list(transitions(key, before.get("conditions", ()), conditions.values()))
    if observed.faults:
        events.append(EventDraft(key, "ObjectsUnread", f"ignored: {'; '.join(observed.faults)}"))
    if status_changed(before, status):
        writes.append(StatusWrite(key, status, beyond_counters(before, status)))
    if observed.pipeline.deleting_since is None:
        reports = {QualifiedTable(t.schema, t.name): t for t in observed.progress.tables} if observed.progress else {}
        for table_sync in observed.table_syncs:
            report = reports.get(table_of(table_sync))
            write, drafts = _table_status_and_events(observed, acceptance, table_sync, report, update)
            writes += write
            events += drafts
    return tuple(writes), events


def _table_status_and_events(
    observed: Observed,
    acceptance: Acceptance,
    table_sync: TableSyncObject,
    report: TableProgress | None,
    update: str,
) -> tuple[list[StatusWrite], list[EventDraft]]:
    key, before = ObjectKey("TableSync", table_sync.name), table_sync.status
    accepted = acceptance.table_conditions.get(table_sync.name, Condition("Accepted", None, "NoPipeline"))
    request = acceptance.request if acceptance.waits else None
    waits = request is not None and table_of(table_sync) in request.tables
    ready = table_ready(observed, table_sync, report, accepted)
    ready = of_generation(ready, table_sync, accepted, update, waits=waits)
    conditions = [
        ready,
        accepted,
        table_verified(observed, table_sync, report),
        *table_stalled(ready, accepted, report),
    ]
    status = table_status(observed, table_sync, report, conditions)
    events = list(transitions(key, before.get("conditions", ()), conditions))
    return [StatusWrite(key, status, beyond_counters(before, status))] if status_changed(before, status) else [], events
