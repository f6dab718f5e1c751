"""The deletion of a Pipeline: stop the driver, clean up, remove the finalizer. It always ends.

====================  ========================================================================
Step                  Ends when
====================  ========================================================================
stop the driver       its pod no longer exists
run the clean-up Job  the Job succeeds, or reports that the objects belong to another Pipeline
remove the finalizer  immediately
====================  ========================================================================

In a namespace that is being deleted no Job can run. The driver then cleans up when it ends, and writes status.cleanup.
The finalizer is removed without a finished clean-up if cleanupTimeoutSeconds have passed, if the clean-up cannot
succeed, if the namespace is being deleted, or if the Pipeline never created anything.
With foreground deletion, garbage collection would remove the clean-up Job. The controller ends that first.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from levada import codes
from levada.spec import DeletionAction, Manifests
from levada.values import Keyless
from levada_operator.decide.acceptance import Acceptance, accept
from levada_operator.decide.cleanup_pod import START_DEADLINE, failure_text, obstacle_text, start_failure
from levada_operator.decide.conditions import shortened
from levada_operator.decide.events import EventDraft
from levada_operator.decide.last_run import as_last_run
from levada_operator.decide.plan import Plan
from levada_operator.decide.rollback import with_record
from levada_operator.decide.slot import LOGIN_ERRORS
from levada_operator.desired.driver import build_stateful_set
from levada_operator.desired.jobs import build_cleanup_job
from levada_operator.desired.objects import build_objects
from levada_operator.desired.owner import Owner, build_owner
from levada_operator.names import CLEANUP_ROLE, TAKE_OVER_FROM, cleanup_name, driver_name, manifest_name
from levada_operator.observe.creation import creation_text
from levada_operator.observe.objects import Body, ObjectKey
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import Termination

_NEEDED: Final = ("ConfigMap", "ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")
"""Kinds without which the clean-up's pod cannot run."""
_MAX_REASON: Final = 400
"""Characters of the reason in an Event, which has at most 1,024."""


def deletion(observed: Observed, acceptance: Acceptance) -> Plan:
    """Return a plan with the next step. The last step has ``release`` set."""
    manifests = acceptance.manifests
    if manifests is None or _never_ran(observed, acceptance):
        return Plan(release=True)
    if (refused := _foreign_object_error(observed)) is not None:
        message = f"nothing was removed: {refused.message}"
        return Plan(release=True, events=(_draft(observed, "CleanupAbandoned", message),))
    if _namespace_terminates(observed) and (done := observed.pipeline.status.get("cleanup")):
        return Plan(release=True, events=(_draft(observed, "CleanupFinished", f"by the driver: {done}"),))
    if reason := _reason_to_give_up(observed, manifests):
        # The SQL is not cut off, however long an error of the source is.
        reason = shortened(reason, _MAX_REASON)
        message = f"{reason}. {left_behind(observed, manifests, reason)}"
        left = message if _removes(manifests) else ""
        return Plan(release=True, abandoned=left, events=(_draft(observed, "CleanupAbandoned", message),))
    if observed.refusals and acceptance.before is not None:
        manifests = _not_refused(acceptance.before, manifests, observed)
    owner = build_owner(observed, manifests)
    stateful_set = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name))
    if stateful_set is not None and stateful_set["spec"].get("replicas", 1) != 0:
        draft = _draft(observed, "CleanupStarted", "the driver is being stopped")
        stopped = with_record(build_stateful_set(owner, running=False), observed, acceptance)
        return Plan(apply=(stopped,), events=(draft,))
    if observed.driver is not None:
        return Plan()
    job = next((j for j in observed.jobs if j.role == CLEANUP_ROLE), None)
    if job is None:
        return Plan(apply=tuple(_cleanup_objects(owner, observed, acceptance)))
    if job.succeeded:
        return Plan(release=True, events=(_draft(observed, "CleanupFinished", _summary(observed, manifests)),))
    if obstacle := obstacle_text(observed):
        return Plan(events=(_draft(observed, "CleanupWaiting", obstacle),))
    # Garbage collection may have removed what was there when the Job was created.
    return Plan(apply=tuple(b for b in _cleanup_objects(owner, observed, acceptance) if _is_missing(b, observed)))


def left_without_finalizer(observed: Observed) -> str:
    """Return what may be left of a Pipeline that went before its clean-up, because someone removed its finalizer.

    An empty string if there is nothing: it never ran, its policy retains everything, or the clean-up Job succeeded.
    """
    acceptance = accept(observed)
    manifests = acceptance.before or acceptance.manifests
    if manifests is None or not _source_objects_exist(observed, acceptance) or not _removes(manifests):
        return ""
    cleaned = any(j.role == CLEANUP_ROLE and j.succeeded for j in observed.jobs)
    if cleaned or _foreign_object_error(observed) is not None:
        return ""
    text = f"the finalizer was removed by hand, so nothing was cleaned up. {left_behind(observed, manifests)}"
    done = observed.pipeline.status.get("cleanup")
    return f"{text}; its status.cleanup has: {shortened(done, _MAX_REASON)}" if done else text


def _cleanup_objects(owner: Owner, observed: Observed, acceptance: Acceptance) -> Iterator[dict[str, Any]]:
    """Yield the clean-up Job after what its pod needs, and then the others: one that is refused holds no clean-up up.

    The manifest has the policy that the Job executes. Of the others, one that is there need not be up to date.
    """
    needed: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for body in build_objects(owner, running=False):
        needs = body["metadata"]["name"] == manifest_name(owner.name) or _is_missing(body, observed)
        (needed if needs else rest).append(with_record(body, observed, acceptance))
    yield from (*needed, build_cleanup_job(as_last_run(owner, observed)), *rest)


def _is_missing(body: Body, observed: Observed) -> bool:
    return body["kind"] in _NEEDED and observed.owned.get(body["kind"], body["metadata"]["name"]) is None


def _not_refused(before: Manifests, manifests: Manifests, observed: Observed) -> Manifests:
    """Return manifests whose objects were accepted before, as far as the clean-up is the same.

    The API server may refuse the new driver section, or every change of the ConfigMap.
    """
    pipeline = manifests.pipeline
    refused = ObjectKey("ConfigMap", manifest_name(observed.pipeline.name)) in {r.key for r in observed.refusals}
    if refused and pipeline.spec.deletion_policy == before.pipeline.spec.deletion_policy:
        return before
    spec = pipeline.spec.model_copy(update={"driver": before.pipeline.spec.driver})
    return Manifests(pipeline.model_copy(update={"spec": spec}), manifests.table_syncs)


def left_behind(observed: Observed, manifests: Manifests, said: str = "") -> str:
    """Return a text on what may be left, the SQL that removes it, and how another Pipeline can take over the rest.

    SQL that was ``said`` before is not repeated.
    """
    pipeline = manifests.pipeline
    policy, source = pipeline.spec.deletion_policy, pipeline.spec.source
    parts = []
    if policy.slot is DeletionAction.DELETE:
        sql = f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')"
        parts.append(
            f"The replication slot {pipeline.slot_name} may be left in database {source.database} on {source.host}"
            f" and keep WAL on its disk{'' if sql in said else f'; drop it: {sql}'}"
        )
    if policy.publication is DeletionAction.DELETE:
        names = [pipeline.publication_name]
        if Keyless.APPEND in (pipeline.spec.tables.keyless, *(t.spec.keyless for t in manifests.table_syncs)):
            names.append(pipeline.append_publication_name)
        sql = "DROP PUBLICATION IF EXISTS " + ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        parts.append(f"The publication may be left{'' if sql in said else f': {sql}'}")
    if policy.destination_tables is DeletionAction.DELETE:
        parts.append("The tables at the destination may be left")
    parts.append(
        "What is left still belongs to this Pipeline; another one takes it over by the annotation"
        f" {TAKE_OVER_FROM}={observed.pipeline.uid}"
    )
    return "; ".join(parts)


def _removes(manifests: Manifests) -> bool:
    """Return True if the policy removes anything outside of the cluster."""
    policy = manifests.pipeline.spec.deletion_policy
    return DeletionAction.DELETE in (policy.slot, policy.publication, policy.destination_tables)


def _never_ran(observed: Observed, acceptance: Acceptance) -> bool:
    """Return True if no driver was ever created. That no object is there does not say so.

    Garbage collection, a namespace's end or a person may have removed them all. The finalizer is set before the first
    of them is created, except for a Pipeline that lost to an older one. The manifest is the first.
    """
    manifest = ObjectKey("ConfigMap", manifest_name(observed.pipeline.name))
    refused = any(r.key == manifest and not r.namespace_terminating for r in observed.refusals)
    return not acceptance.started_before and bool(observed.conflicts or refused)


def _source_objects_exist(observed: Observed, acceptance: Acceptance) -> bool:
    """Return True if a driver may have created objects at the source. Without an accepted spec no driver ever ran."""
    if observed.conflicts and not acceptance.started_before:
        return False
    return acceptance.started_before or bool(observed.pipeline.status.get("slot", {}).get("sampledAt"))


def _namespace_terminates(observed: Observed) -> bool:
    """Return True if the API server has refused an object because the namespace is being deleted.

    Only then does the driver clean up. Elsewhere status.cleanup may be forged, or restored from a backup.
    """
    return any(r.namespace_terminating for r in observed.refusals)


def _reason_to_give_up(observed: Observed, manifests: Manifests) -> str:
    """Return why the clean-up is given up, or an empty string to continue it."""
    if observed.pipeline.skip_cleanup:
        return "clean-up was skipped by request"
    if _namespace_terminates(observed):
        return "the namespace is being deleted, so no Job can run in it"
    since = observed.pipeline.deleting_since or observed.now
    limit = timedelta(seconds=manifests.pipeline.spec.deletion_policy.cleanup_timeout_seconds)
    if observed.now >= since + limit:
        why = _last_error(observed) or f": {failure_text(observed)}".removesuffix(": ")
        return f"clean-up was not done within {limit.total_seconds():.0f} s{why}"
    jobs = [j for j in observed.jobs if j.role == CLEANUP_ROLE]
    if any(j.failed for j in jobs):
        return f"the clean-up failed{_last_error(observed)}"
    refused = observed.creation_failures.get(ObjectKey("Job", cleanup_name(observed.pipeline.name)))
    if refused is not None and any(abs(observed.now - j.created) > START_DEADLINE for j in jobs):
        return f"the pod of the clean-up cannot be created: {creation_text(refused, observed.pipeline.namespace)}"
    if any(t.code in LOGIN_ERRORS for t in _terminations(observed)):
        return f"the clean-up cannot log in{_last_error(observed)}"
    if (image := start_failure(observed, "ImagePullFailed")) is not None:
        return f"the image of the clean-up cannot be pulled: {image.message}"
    return ""


def _foreign_object_error(observed: Observed) -> Termination | None:
    """Return the end of a clean-up that found objects of another Pipeline, or None. A retry would find the same."""
    return next((end for end in _terminations(observed) if end.code == codes.NOT_THE_OWNER), None)


def _terminations(observed: Observed) -> list[Termination]:
    pods = sorted((p for p in observed.pods if p.role == CLEANUP_ROLE), key=lambda p: p.created)
    return [p.last_termination for p in pods if p.last_termination is not None]


def _last_error(observed: Observed) -> str:
    ends = [e for e in _terminations(observed) if e.message]
    return f": {ends[-1].message}" if ends else ""


def _summary(observed: Observed, manifests: Manifests) -> str:
    """Return the lines of a clean-up that kept a slot or a publication against the policy, else the policy's words."""
    told = (p.output.strip() for p in observed.pods if p.role == CLEANUP_ROLE)
    return next(("; ".join(text.splitlines()) for text in told if text), _removal_summary(manifests))


def _removal_summary(manifests: Manifests) -> str:
    policy = manifests.pipeline.spec.deletion_policy
    named = {
        f"slot {manifests.pipeline.slot_name}": policy.slot,
        "state": policy.state,
        "publication": policy.publication,
        "destination tables": policy.destination_tables,
    }
    removed = [name for name, what in named.items() if what is DeletionAction.DELETE]
    retained = [name for name, what in named.items() if what is DeletionAction.RETAIN]
    done = {"removed": removed, "retained for another Pipeline": retained}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in done.items() if names)


def _draft(observed: Observed, reason: str, message: str) -> EventDraft:
    return EventDraft(ObjectKey("Pipeline", observed.pipeline.name), reason, message)
