"""Acceptance of specs: a valid spec is adopted, and an invalid one leaves the last accepted spec running.

There is no admission webhook. The condition Accepted reports the result.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from levada.errors import InvalidManifest
from levada.spec import (
    Change,
    Manifests,
    PipelineManifest,
    TableSyncManifest,
    changed_fields,
    manifest_digest,
    parse_manifest,
)
from levada.spec.problems import invalid
from levada.spec.resyncs import without_resyncs
from levada.spec.running import Approval
from levada.spec.table_sync import table_settings_problem
from levada.values import QualifiedTable
from levada_operator.decide.approval import (
    ResyncRequest,
    copied_tables,
    is_small,
    possible_copies,
    reported_sizes,
    resync_request,
    was_ready,
    with_unsure_suspended,
)
from levada_operator.decide.conditions import Condition
from levada_operator.decide.staging import decide_staging, lost_by_change, with_decided_staging, with_staging
from levada_operator.decide.table_phase import table_of
from levada_operator.desired.manifest import (
    MAX_BYTES,
    MAX_VALUES,
    accepted_manifest,
    has_overrides,
    is_too_large,
    lost_manifest,
    manifest_text,
)
from levada_operator.memo import Memo
from levada_operator.names import APPROVE, PAUSED, driver_name, manifest_name, staging_name
from levada_operator.observe.creation import remedy
from levada_operator.observe.objects import Body, PipelineKey, Refusal, TableSyncObject
from levada_operator.observe.observed import Observed

_VALID = Condition("Accepted", True, "Valid")
_NO_TOKEN: Final = (
    "spec.driver.tokenSecretRef: the operator has no token to read the driver's progress with; install the chart with"
    " driverToken.secretName"
)
_TEMPLATE_FIELD = re.compile(r"\bspec\.template\.")
_FIXED: Final = re.compile(
    r"immutable|may not change once set|cannot change roleRef|updates to statefulset spec for fields other than"
)
"""The API server's words for fields that no apply changes."""
_MADE_AGAIN: Final = ("RoleBinding", "Service", "StatefulSet")
"""Kinds without content of their own. Of the ConfigMaps only the manifest is one."""
_MAX_REFUSED: Final = 5
"""So many refused objects are named."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A change that was rolled back: the digest of its fields that restart the driver, and why."""

    digest: str
    reason: str


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The result of checking the written specs.

    ``manifests`` is what runs, or None if no spec was ever accepted. Its TableSyncs are those with overrides, now or in
    the last accepted manifest. ``condition`` and ``table_conditions`` are the
    Accepted conditions of the Pipeline and of its TableSyncs, the latter by name. ``changes`` are the changed fields
    since the last accepted manifest. ``started_before`` is True if there is such a manifest.
    """

    manifests: Manifests | None
    condition: Condition
    table_conditions: Mapping[str, Condition]
    changes: Mapping[str, Change]
    started_before: bool
    before: Manifests | None = None
    """The last accepted manifest."""
    request: ResyncRequest | None = None
    """The change that copies tables again. With ``waits``, it is left out of ``manifests`` until it is approved."""
    waits: bool = False
    rejection: Rejection | None = None
    """The change that was rolled back, while its fields are left out of ``manifests``."""
    applied: bool = False
    """True if the driver's objects are those of the written spec, although another object of it is refused."""


def accept(observed: Observed, known: Memo[PipelineKey, Acceptance] | None = None) -> Acceptance:
    """Check the written specs and return what runs. ``known`` has the last results."""
    pipeline, (before, lost) = observed.pipeline, _accepted_before(observed)
    tables = [(t.name, t.created, t.spec) for t in observed.table_syncs]
    place = observed.has_default_storage, observed.owned.get("PersistentVolumeClaim", staging_name(pipeline.name))
    copied = copied_tables(observed), possible_copies(observed), was_ready(observed), _runs(observed)
    bounded = "approvalAbove" in pipeline.spec
    sizes = reported_sizes(observed) if bounded else {}
    inputs = (
        (pipeline.spec, tables, before, lost, pipeline.deleting_since is None)
        + (observed.conflicts, observed.defaults, copied, pipeline.unread, observed.unread_tables)
        + (place if before is None and not lost else (pipeline.generation, pipeline.approves, sizes))
    )  # fmt: skip
    known = Memo() if known is None else known
    return known.get(pipeline.key, inputs, lambda: _check(observed, before, lost))


def _check(observed: Observed, before: Manifests | None, lost: str) -> Acceptance:
    if observed.unread_tables and observed.pipeline.deleting_since is None:
        return _without_tables(observed, before, started=before is not None or bool(lost))
    pipeline, condition = _pipeline(observed, before)
    if pipeline is None:
        return Acceptance(None, condition, {}, {}, before is not None, before)
    tables, table_conditions = _table_syncs(observed, pipeline, before)
    manifests, request, approved = Manifests(pipeline, tables), None, True
    if (
        lost
        and observed.pipeline.deleting_since is None
        and (condition := _held_back(observed, manifests, lost)) is not _VALID
    ):
        return Acceptance(None, condition, table_conditions, {}, started_before=True)
    if before is not None:
        request = resync_request(observed, before, manifests)
    if before is not None and request is not None:
        approved = (
            pipeline.spec.approval is Approval.AUTOMATIC
            or observed.pipeline.approves == request.digest
            or is_small(request, reported_sizes(observed), pipeline.spec.approval_above)
        )
        if not approved:
            manifests = without_resyncs(before, manifests, request.held)
            manifests = with_unsure_suspended(manifests, before, request, runs=_runs(observed))
    started = before is not None or bool(lost)
    if is_too_large(manifest_text(manifests)):
        # Without the TableSyncs, the tables would be copied without their masks, for example.
        return Acceptance(before, _too_large(pipeline, before), table_conditions, {}, started, before)
    changes = {} if before is None else all_changes(before, manifests)
    return Acceptance(manifests, condition, table_conditions, changes, started, before, request, waits=not approved)


def _too_large(pipeline: PipelineManifest, before: Manifests | None) -> Condition:
    shorten = "spec of the Pipeline" if is_too_large(manifest_text(Manifests(pipeline))) else "TableSyncs"
    message = f"the manifest with its TableSyncs has more than {MAX_BYTES} bytes or {MAX_VALUES} values"
    kept = _kept_text(None if before is None else before.pipeline)
    return Condition("Accepted", False, "TooLarge", f"{message}; shorten the {shorten}{kept}")


def _runs(observed: Observed) -> bool:
    return observed.driver is not None and observed.driver.ready


def _without_tables(observed: Observed, before: Manifests | None, *, started: bool) -> Acceptance:
    """Return the acceptance while settings of tables are not known: what was accepted last runs on."""
    last = None if before is None else before.pipeline
    message = f"{observed.unread_tables}, so the settings of its table are not known; make it smaller" + _kept_text(
        last
    )
    return Acceptance(before, Condition("Accepted", False, "TooLarge", message), {}, {}, started, before)


def is_paused(observed: Observed) -> bool:
    """Return True if the operator must not change any object of the Pipeline. A deletion is not held up."""
    return observed.pipeline.paused and observed.pipeline.deleting_since is None


def while_paused(acceptance: Acceptance) -> Acceptance:
    """Return the acceptance of a paused Pipeline: what was accepted last runs on."""
    message = f"the annotation {PAUSED} keeps the operator from changing any object. Replication continues"
    return replace(acceptance, manifests=acceptance.before, condition=Condition("Accepted", None, "Paused", message),
                   changes={}, request=None, waits=False)  # fmt: skip


def with_refusals(
    acceptance: Acceptance,
    refusals: Sequence[Refusal],
    namespace: str,
    unapplied: Container[str],
    *,
    runs: bool = True,
) -> Acceptance:
    """Return the acceptance while the API server refuses the spec's objects: the last accepted manifest runs on.

    ``unapplied`` are the kinds of the driver's objects that a refusal keeps from the written spec. A refused object may
    follow the manifest, which the driver reads by then. ``runs`` is False if there is no driver yet.
    """
    if not refusals or acceptance.manifests is None:
        return acceptance
    last = acceptance.before
    if last is not None and acceptance.manifests.pipeline.spec.suspend:
        # Nothing that is refused is needed to stop the driver.
        spec = last.pipeline.spec.model_copy(update={"suspend": True})
        last = Manifests(last.pipeline.model_copy(update={"spec": spec}), last.table_syncs)
    others = [" ".join(refusal.key) for refusal in refusals[1:_MAX_REFUSED]]
    more = f" and {len(refusals) - _MAX_REFUSED} more" if len(refusals) > _MAX_REFUSED else ""
    also = f"; also refused: {', '.join(others)}{more}" if others else ""
    message = refusal_text(refusals[0], namespace) + also
    applied = last is not None and runs and "ConfigMap" not in unapplied
    if not applied:
        message += _kept_text(last.pipeline if last is not None and runs else None)
    elif "StatefulSet" in unapplied:
        message += "; the manifest is applied, but the driver's StatefulSet stays as it is"
    else:
        message += "; the rest of the spec is applied"
    condition = Condition("Accepted", False, "RefusedByCluster", message)
    runs_now = acceptance.manifests if applied else last or acceptance.manifests
    applied = applied and "StatefulSet" not in unapplied
    return replace(acceptance, manifests=runs_now, condition=condition, changes={}, applied=applied)


def refusal_text(refusal: Refusal, namespace: str) -> str:
    """Return the refused object, the API server's message, and the field to correct if it is of a pod."""
    kind, name = refusal.key
    of = "spec.executor" if kind in ("Job", "Pod") and name.endswith("-executor") else "spec.driver"
    solution = remedy(refusal.message, namespace).replace("spec.driver", of) if kind == "Pod" else ""
    if not solution and _TEMPLATE_FIELD.search(refusal.message):
        solution = f"correct {of}.podTemplate"
    if _FIXED.search(refusal.message) and (kind in _MADE_AGAIN or (kind, name[-9:]) == ("ConfigMap", "-manifest")):
        command = f"kubectl -n {namespace} delete {kind.lower()} {name}"
        solution = f"the operator did not make it so. Delete it, and it is made again: {command}"
    return f"{kind} {name}: {refusal.message.removesuffix('.')}" + (f"; {solution}" if solution else "")


def describe_changes(changes: Mapping[str, Change]) -> str:
    """Return the changed fields by class, the most disruptive class first.

    For example ``Restart: spec.driver.image; Hot: spec.tables.include``. At most ten fields of a class are listed.
    """
    order = list(Change)[::-1]
    parts = []
    for change in order:
        if fields := sorted(path for path, its in changes.items() if its is change):
            more = f" and {len(fields) - 10} more" if len(fields) > 10 else ""
            parts.append(f"{change.value}: {', '.join(fields[:10])}{more}")
    return "; ".join(parts)


def _accepted_before(observed: Observed) -> tuple[Manifests | None, str]:
    """Return the last accepted manifest, or None if there is none, and its digest if it is lost.

    The manifest of a deleted Pipeline of the same name is ignored. Kubernetes may not have removed it yet.
    """
    name = observed.pipeline.name
    config_map = _of_this_one(observed, observed.owned.get("ConfigMap", manifest_name(name)))
    stateful_set = _of_this_one(observed, observed.owned.get("StatefulSet", driver_name(name)))
    return with_decided_staging(accepted_manifest(config_map, stateful_set)), lost_manifest(config_map, stateful_set)


def _held_back(observed: Observed, manifests: Manifests, lost: str) -> Condition:
    """Return Accepted for manifests that cannot be compared with the last accepted ones, of which the digest is left.

    Other manifests may copy tables again, which ``approval: Manual`` does not allow without an approval.
    """
    pipeline, written = observed.pipeline, manifest_digest(manifest_text(manifests).encode())
    if manifests.pipeline.spec.approval is Approval.AUTOMATIC or written in (lost, pipeline.approves):
        return _VALID
    command = f"kubectl annotate pipeline {pipeline.name} -n {pipeline.namespace} --overwrite {APPROVE}={written}"
    message = (
        f"ConfigMap {manifest_name(pipeline.name)} with the accepted manifest was deleted or changed, and the specs are"
        f" not those of that manifest: set them back, or approve them, also if they copy tables again: {command}"
    )
    return Condition("Accepted", False, "ManifestLost", message)


def _of_this_one(observed: Observed, body: Body | None) -> Body | None:
    """Return the object, or None if it belongs to another Pipeline of the same name."""
    references = ((body or {}).get("metadata") or {}).get("ownerReferences") or ()
    owners = [reference.get("uid") for reference in references if reference.get("kind") == "Pipeline"]
    return None if owners and observed.pipeline.uid not in owners else body


def _pipeline(observed: Observed, before: Manifests | None) -> tuple[PipelineManifest | None, Condition]:
    last = None if before is None else before.pipeline
    if observed.pipeline.unread:
        message = f"the Pipeline is not read: {observed.pipeline.unread}; make it smaller{_kept_text(last)}"
        return last, Condition("Accepted", False, "TooLarge", message)
    if observed.conflicts:
        message = (
            f"the older Pipeline {observed.conflicts[0]} reads the same slot; give spec.source.slot.name another name"
        )
        return last, Condition("Accepted", False, "ConflictingPipeline", message)
    where = f"{observed.pipeline.namespace}/{observed.pipeline.name}"
    try:
        pipeline = parse_manifest(PipelineManifest, observed.pipeline.manifest, where)
    except InvalidManifest as error:
        return last, Condition("Accepted", False, "InvalidSpec", error.message + _kept_text(last))
    if pipeline.spec.driver.token_secret_ref is not None and not observed.defaults.has_driver_token:
        return last, Condition("Accepted", False, "InvalidSpec", _NO_TOKEN + _kept_text(last))
    staging = decide_staging(observed, pipeline.spec.staging, None if last is None else last.spec.staging)
    if last is not None and (lost := lost_by_change(observed, last.spec.staging, staging)):
        message = f"{lost}: make a new Pipeline, or set it back"
        return last, Condition("Accepted", False, "ImmutableChange", message + _kept_text(last))
    pipeline = with_staging(pipeline, staging)
    if last is not None and (fixed := _immutable(changed_fields(last.spec, pipeline.spec))):
        message = f"{describe_changes(fixed)}: make a new Pipeline, or set it back"
        return last, Condition("Accepted", False, "ImmutableChange", message + _kept_text(last))
    return pipeline, _VALID


def _kept_text(last: PipelineManifest | None) -> str:
    if last is None:
        return ""
    return "; the last accepted spec " + ("stays, suspended" if last.spec.suspend else "keeps running")


def _table_syncs(
    observed: Observed, pipeline: PipelineManifest, before: Manifests | None
) -> tuple[tuple[TableSyncManifest, ...], dict[str, Condition]]:
    last = {t.metadata.name: t for t in before.table_syncs} if before else {}
    taken: dict[QualifiedTable, str] = {}
    accepted: list[TableSyncManifest] = []
    conditions: dict[str, Condition] = {}
    # The status of a table that no driver reports may be lost or forged.
    copied = copied_tables(observed) - (frozenset() if _runs(observed) else possible_copies(observed))
    for written in sorted(observed.table_syncs, key=lambda t: (t.created, t.name)):
        held, former = _held(written), last.get(written.name)
        manifest, condition = _table_sync(written, pipeline, None if former == held else former)
        if manifest is None and held is not None and table_of(written) not in copied:
            manifest = held
            condition = replace(condition, message=f"{condition.message}; the table is not copied before that")
        if manifest is not None and (other := taken.get(manifest.spec.table.qualified)):
            condition = Condition("Accepted", False, "Duplicate", f"TableSync {other} is for the same table, and older")
            manifest = None
        if manifest is not None:
            taken[manifest.spec.table.qualified] = written.name
            accepted.append(manifest)
        conditions[written.name] = condition
    return tuple(m for m in accepted if m.metadata.name in last or has_overrides(m)), conditions


def _table_sync(
    written: TableSyncObject, pipeline: PipelineManifest, last: TableSyncManifest | None
) -> tuple[TableSyncManifest | None, Condition]:
    try:
        manifest = parse_manifest(TableSyncManifest, written.manifest, written.name)
    except InvalidManifest as error:
        return last, Condition("Accepted", False, "InvalidSpec", error.message)
    if (problem := table_settings_problem(pipeline.spec, manifest.spec)) is not None:
        refused = invalid([problem], written.name)
        return last, Condition("Accepted", False, "InvalidSpec", refused.message)
    if last is not None and (fixed := _immutable(changed_fields(last.spec, manifest.spec))):
        return last, Condition("Accepted", False, "ImmutableChange", f"{describe_changes(fixed)}: make a new TableSync")
    return manifest, _VALID


def _held(written: TableSyncObject) -> TableSyncManifest | None:
    """Return a TableSync that keeps its table from being copied, for one that is refused before the first copy.

    A copy with the defaults would have the columns that the TableSync excludes, or would be made again later.
    """
    spec = {key: written.spec[key] for key in ("pipelineRef", "table") if key in written.spec}
    manifest = {**written.manifest, "spec": {**spec, "suspend": True}}
    try:
        return parse_manifest(TableSyncManifest, manifest, written.name)
    except InvalidManifest:
        return None


def _immutable(changes: Mapping[str, Change]) -> dict[str, Change]:
    return {path: change for path, change in changes.items() if change is Change.IMMUTABLE}


def all_changes(before: Manifests, after: Manifests) -> dict[str, Change]:
    """Return the changed fields of the Pipeline and of its TableSyncs."""
    return dict(_changes(before, after))


def _changes(before: Manifests, after: Manifests) -> Iterator[tuple[str, Change]]:
    yield from changed_fields(before.pipeline.spec, after.pipeline.spec).items()
    last = {t.metadata.name: t for t in before.table_syncs}
    for table_sync in after.table_syncs:
        name = table_sync.metadata.name
        if name in last:
            path = f"tablesync/{name}: spec"
            yield from changed_fields(last[name].spec, table_sync.spec, path).items()
