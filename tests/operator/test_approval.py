"""Changes that copy tables again: their cost is shown, and with approval Manual they wait for an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import yaml
from tests.operator.samples import (
    MANIFEST,
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
)  # fmt: skip
from tests.operator.samples import waiting as waiting_state

from levada.spec import Manifests, PipelineManifest, TableSyncManifest
from levada.values import QualifiedTable
from levada_operator.decide.acceptance import Acceptance, accept
from levada_operator.decide.approval import copied_tables
from levada_operator.decide.pipeline_conditions import approved
from levada_operator.decide.reconcile import reconcile
from levada_operator.desired.manifest import manifest_text
from levada_operator.memo import Memo
from levada_operator.names import APPROVE, READY
from levada_operator.observe.objects import ObjectKey, OwnedObjects, PipelineKey, read_table_sync
from levada_operator.observe.observed import Observed

COPY = {"rows": 12_600_000, "bytes": 3 << 30, "percent": 100, "rowsPerSecond": 100_000}
LAST_COPY = {"copy": COPY | {"percent": 100.0, "rowsPerSecond": 100_000.0, "secondsLeft": None}}
NO_ROWS = {"rows": 0, "bytes": 0, "percent": 0}
TEXT = {"onUnrepresentable": "Text"}
LARGE = {"driver": {"podTemplate": {"metadata": {"annotations": {"seen": Random(1).randbytes(200_000).hex()}}}}}
"""A part of a spec that cannot be compressed into an annotation."""


def written(
    *tables: dict[str, Any], annotation: str = "", accepted: Mapping[str, Any] | None = None, **changes: Any
) -> Observed:
    """Return a Pipeline with approval Manual that runs, whose spec was then changed. ``accepted`` was in it before."""
    before = {"approval": "Manual", **(accepted or {})}
    metadata = {"generation": 2, "annotations": {APPROVE: annotation}}
    body = pipeline(spec={**before, **changes}, metadata=metadata)
    return running(*tables, owned=owned(owner(**before)), body=body, report=None)


def copied(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """Return a TableSync whose table was copied."""
    return merge(table_sync(name, **changes), {"status": {"phase": "Ready", "copy": COPY}})


def waiting(seen: Observed) -> Acceptance:
    """Return the acceptance of a change that waits, after checking that nothing of it is applied."""
    accepted = accept(seen)
    assert accepted.waits
    condition = approved(seen, accepted)
    assert (condition.status, condition.reason) == (False, "ApprovalRequired")
    return accepted


def digest_of(seen: Observed) -> str:
    """Return the digest that approves the change, from the command in the condition."""
    command = approved(seen, accept(seen)).message
    assert "kubectl annotate pipeline shop -n data --overwrite levada.dev/approve=" in command
    return command.partition(f"{APPROVE}=")[2].partition(";")[0]


def test_a_resync_of_all_tables_waits_with_its_cost() -> None:
    """The driver keeps the accepted spec, and the condition has tables, rows, bytes and time."""
    report = progress(table_document(**LAST_COPY), table_document("events", **LAST_COPY))
    seen = replace(written(copied(), copied("events"), **TEXT), report=report)
    accepted = waiting(seen)
    assert accepted.manifests is not None
    assert accepted.manifests.pipeline.spec.on_unrepresentable == "Error"
    assert (accepted.condition.status, accepted.changes) == (True, {})
    plan = reconcile(seen)
    assert not {"ConfigMap", "StatefulSet"} & {b["kind"] for b in plan.apply}
    assert [e.reason for e in plan.events if e.reason == "ApprovalRequired"] == ["ApprovalRequired"]
    assert approved(seen, accepted).message.startswith(
        "spec.onUnrepresentable: copies again 2 tables, 25.2M rows, 6Gi, about 2m at the rate of the last copy:"
        " public.events, public.orders; to approve: "
    )


def test_the_annotation_approves_this_change_only() -> None:
    """With the digest of the condition it takes effect. The digest of another change, or of an earlier one, is none."""
    seen = written(copied(), **TEXT)
    digest = digest_of(seen)
    for wrong in ("", "yes", digest[:-1], "2"):
        waiting(written(copied(), annotation=wrong, **TEXT))
    waiting(written(copied(), annotation=digest, onUnrepresentable="Null"))
    later = written(copied(), annotation=digest, **TEXT)
    waiting(replace(later, pipeline=replace(later.pipeline, generation=4)))
    accepted = accept(later)
    assert not accepted.waits
    assert accepted.manifests is not None
    assert accepted.manifests.pipeline.spec.on_unrepresentable == "Text"
    condition = approved(later, accepted)
    assert (condition.status, condition.reason) == (True, "Approved")
    assert {"ConfigMap", "StatefulSet"} <= {b["kind"] for b in reconcile(later).apply}


@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "changed"])
def test_a_configmap_that_was_deleted_or_changed_approves_nothing(gone: bool) -> None:
    """The accepted manifest is read from the StatefulSet's record, and the ConfigMap is written again from it."""
    seen = written(copied(), **TEXT)
    bodies, key = dict(seen.owned.bodies), ObjectKey("ConfigMap", "shop-manifest")
    before = bodies.pop(key)["data"]["pipeline.yaml"]
    if not gone:
        changed = before.replace("onUnrepresentable: Error", "onUnrepresentable: Text")
        assert changed != before
        bodies[key] = merge(dict(seen.owned.bodies[key]), {"data": {"pipeline.yaml": changed}})
    tampered = replace(seen, owned=OwnedObjects(bodies))
    waiting(tampered)
    (restored,) = (b for b in reconcile(tampered).apply if b["kind"] in ("ConfigMap", "StatefulSet"))
    assert restored["data"]["pipeline.yaml"] == before
    # Of another Pipeline of that name, which was deleted, nothing counts.
    bodies.pop(key, None)
    other = {k: merge(dict(b), {"metadata": {"ownerReferences": [{"kind": "Pipeline", "uid": "other"}]}})
             for k, b in bodies.items()}  # fmt: skip
    assert not accept(replace(seen, owned=OwnedObjects(other))).waits


@pytest.mark.sampled
@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "changed"])
def test_a_lost_manifest_that_is_too_large_for_a_record_lets_nothing_pass(
    gone: bool,
) -> None:
    """Its digest allows the accepted specs alone, which restore the ConfigMap. Others wait for an approval."""
    same = written(copied(), accepted=LARGE)
    bodies, key = dict(same.owned.bodies), ObjectKey("ConfigMap", "shop-manifest")
    whole = bodies.pop(key)
    if not gone:
        changed = whole["data"]["pipeline.yaml"].replace("onUnrepresentable: Error", "onUnrepresentable: Text")
        bodies[key] = merge(dict(whole), {"data": {"pipeline.yaml": changed}})
    restored = next(b for b in reconcile(replace(same, owned=OwnedObjects(bodies))).apply if b["kind"] == "ConfigMap")
    assert restored["data"] == whole["data"]
    other = replace(written(copied(), accepted=LARGE, **TEXT), owned=OwnedObjects(bodies))
    held = accept(other)
    assert (held.manifests, held.condition.status, held.condition.reason) == (None, False, "ManifestLost")
    plan = reconcile(other)
    assert (plan.apply, plan.delete) == ((), ())
    assert [e.reason for e in plan.events] == ["SpecRefused"]
    approves = held.condition.message.rpartition("=")[2]
    passed = accept(replace(other, pipeline=replace(other.pipeline, approves=approves)))
    assert passed.manifests is not None
    assert passed.condition.status


def test_automatic_shows_the_cost_only() -> None:
    """The change takes effect, and the condition keeps its cost afterwards."""
    seen = replace(written(copied(), approval="Automatic", **TEXT), report=progress(table_document(**LAST_COPY)))
    accepted = accept(seen)
    assert not accepted.waits
    plan = reconcile(seen)
    (status,) = (w.status for w in plan.statuses if w.key.kind == "Pipeline")
    (condition,) = (c for c in status["conditions"] if c["type"] == "Approved")
    assert (condition["status"], condition["reason"]) == ("True", "Automatic")
    assert "copies again 1 table, 12.6M rows" in condition["message"]
    body = pipeline(spec={"approval": "Automatic", **TEXT}, status=status)
    after = running(copied(), owned=owned(owner(approval="Automatic", **TEXT)), body=body)
    assert approved(after, accept(after)).message == condition["message"]


def reported(seen: Observed, **of_events: Any) -> Observed:
    """Return the same with a driver that reports two tables of 3 GiB."""
    size = {"copy": {"rows": 1, "bytes": 3 << 30, "percent": 100.0, "secondsLeft": None}}
    return replace(seen, report=progress(table_document(**size), table_document("events", **(size | of_events))))


def test_small_changes_take_effect() -> None:
    """Up to approvalAbove, by the sizes that the driver reports. A table of unknown size counts as larger."""
    both = copied(), copied("events")
    for above, waits in (("6Gi", False), ("6442450943", True), ("100Gi", False)):
        seen = reported(written(*both, approvalAbove=above, **TEXT))
        accepted = accept(seen)
        assert accepted.waits is waits
        assert approved(seen, accepted).reason == ("ApprovalRequired" if waits else "Automatic")
    assert not accept(reported(written(copied(mode="Changelog"), copied("events"), approvalAbove="3Gi"))).waits
    for above, waits in (("7Gi", False), ("6Gi", True)):
        assert accept(reported(written(*both, approvalAbove=above, **TEXT), sourceBytes=4 << 30)).waits is waits
    assert not accept(reported(written(*both, approvalAbove="3Gi", **TEXT), sourceBytes=0, copy=None)).waits
    for copy in (None, {"rows": 0, "bytes": 0, "percent": 100.0, "secondsLeft": None}):
        waiting(reported(written(*both, approvalAbove="100Gi", **TEXT), copy=copy))


def test_sizes_of_a_status_let_nothing_pass() -> None:
    """They may be forged, so the condition has none of them, and says that a driver has to report them."""
    forged = merge(copied(), {"status": {"sourceBytes": 0, "copy": {"rows": 1, "bytes": 0}}})
    seen = written(forged, copied("events"), approvalAbove="100Gi", **TEXT)
    text = approved(seen, waiting(seen)).message
    assert "copies again 2 tables of unknown size: public.events, public.orders;" in text
    assert "spec.approvalAbove lets no change pass of a table whose size no driver has reported: public.events" in text
    small = merge(copied(), {"status": {"sourceBytes": 1, "copy": {"bytes": 1}}})
    waiting(reported(written(small, approvalAbove="1Gi", **TEXT)))


def test_cost_has_what_the_driver_reports() -> None:
    """The size at the source counts if it is larger, and lengthens the time. A table that is not reported is named."""
    size = {"sourceBytes": 6 << 30, **LAST_COPY}
    seen = replace(written(copied(), copied("events"), **TEXT), report=progress(table_document(**size)))
    text = approved(seen, waiting(seen)).message
    assert "2 tables, 12.6M rows, 6Gi, 1 table of unknown size, about 4m at the rate of the last copy: " in text


def test_a_size_that_becomes_known_decides_again() -> None:
    """The result is not remembered from a time when the size was another one."""
    seen, known = written(copied(), copied("events"), approvalAbove="100Gi", **TEXT), Memo[PipelineKey, Acceptance]()
    assert accept(seen, known).waits
    assert not accept(reported(seen), known).waits


def test_a_first_copy_is_made_with_its_own_fields() -> None:
    """The columns that a new table excludes do not wait for the approval of another table's change."""
    new = table_sync("users", columns={"exclude": ["secret"]})
    accepted = waiting(replace(written(copied(mode="Changelog"), new), report=progress()))
    assert accepted.manifests is not None
    taken = {t.spec.table.name: t.spec for t in accepted.manifests.table_syncs}
    assert taken["users"].columns.exclude == ("secret",)
    assert "orders" not in taken or taken["orders"].mode is None


def test_other_changes_take_effect_meanwhile() -> None:
    """A suspension is not held up by a resync that waits, nor a requested resync, nor another field of the table."""
    seen = written(copied(mode="Changelog", resyncNonce=3, suspend=True), copied("events"), freshnessSeconds=30, **TEXT)
    accepted = waiting(seen)
    assert accepted.manifests is not None
    assert accepted.manifests.pipeline.spec.freshness_seconds == 30
    (table,) = accepted.manifests.table_syncs
    assert (table.spec.mode, table.spec.resync_nonce, table.spec.suspend) == (None, 3, True)
    assert accepted.changes == {"spec.freshnessSeconds": "Hot"}


@pytest.mark.parametrize(
    "changes", [{"mode": "Changelog"}, {"destinationTable": "other"}, {"columns": {"exclude": ["secret"]}}]
)
def test_a_table_that_would_be_copied_again_waits(changes: dict[str, Any]) -> None:
    """Only its own copy counts, and only once there is one. A requested resync never waits."""
    accepted = waiting(written(copied(**changes), copied("events")))
    assert accepted.request is not None
    assert accepted.request.tables == (QualifiedTable("public", "orders"),)
    report = progress(table_document(phase="Init", copy=None), table_document("events"))
    assert not accept(replace(written(table_sync(**changes), copied("events")), report=report)).waits
    assert not accept(written(copied(resyncNonce=5))).waits


@pytest.mark.parametrize("phase", [None, "Removed", "Pending", "Init", "Ready"])
def test_settings_of_a_table_that_no_driver_reports_wait(phase: str | None) -> None:
    """Whatever its status says. The table is not copied with other settings, and its copy goes on once reported."""
    exclude = {"columns": {"exclude": ["secret"]}}
    table = merge(table_sync(**exclude), {"status": {"phase": phase, "copy": None}} if phase else {})
    suspended = replace(written(table), pods=())
    accepted = waiting(suspended)
    assert accepted.manifests is not None
    assert [(t.spec.suspend, t.spec.columns.exclude) for t in accepted.manifests.table_syncs] == [(True, ())]
    held = replace(suspended, owned=owned(owner_of(manifest_text(accepted.manifests))))
    copied_before = waiting(replace(held, report=progress())).manifests
    assert copied_before is not None
    assert [(t.spec.suspend, t.spec.columns.exclude) for t in copied_before.table_syncs] == [(False, ())]
    new = accept(replace(held, report=progress(table_document(phase="Init", copy=None))))
    assert not new.waits
    assert new.manifests is not None
    assert [(t.spec.suspend, t.spec.columns.exclude) for t in new.manifests.table_syncs] == [(False, ("secret",))]


def test_a_table_that_waits_streams_on_while_its_driver_does_not_answer() -> None:
    """A driver that is ready has the former settings of the table already. One that starts waits with the copy."""
    former = owned(owner_of(manifest_text(Manifests(*_with_exclusion("a")))))
    seen = replace(written(table_sync(columns={"exclude": ["a", "b"]})), owned=former)
    for pods, suspended in (((pod(),), False), ((), True)):
        accepted = waiting(replace(seen, pods=pods))
        assert accepted.manifests is not None
        assert [(t.spec.suspend, t.spec.columns.exclude) for t in accepted.manifests.table_syncs] == [
            (suspended, ("a",))
        ]


def _with_exclusion(column: str) -> tuple[PipelineManifest, tuple[TableSyncManifest, ...]]:
    """Return a Pipeline with approval Manual and a TableSync that excludes a column."""
    accepted = accept(observed(pipeline(spec={"approval": "Manual"}), table_sync(columns={"exclude": [column]})))
    assert accepted.manifests is not None
    return accepted.manifests.pipeline, accepted.manifests.table_syncs


@pytest.mark.parametrize("known", [True, False])
def test_a_deleted_table_sync_waits(known: bool) -> None:
    """Without its settings the table would be copied again. They stay, also after the operator made a plain one."""
    body = yaml.safe_load(MANIFEST)
    text = yaml.safe_dump({**body, "spec": spec(approval="Manual")}) + (
        "---\napiVersion: levada.dev/v1alpha1\nkind: TableSync\nmetadata: {name: shop-public-orders}\n"
        "spec: {pipelineRef: {name: shop}, table: {schema: public, name: orders}, columns: {exclude: [a]}}\n"
    )
    body = pipeline(spec={"approval": "Manual"})
    for tables in ((), (table_sync(),)):
        seen = running(owned=owned(owner_of(text)), body=body, report=progress() if known else None)
        seen = replace(seen, table_syncs=tuple(map(read_table_sync, tables)))
        accepted = waiting(seen)
        assert accepted.manifests is not None
        assert [t.spec.columns.exclude for t in accepted.manifests.table_syncs] == [("a",)]


def test_a_change_that_is_set_back_waits_no_more() -> None:
    """The condition says that nothing waits, and the next plan is empty."""
    before = written(copied(), **TEXT)
    (status,) = (w.status for w in reconcile(before).statuses if w.key.kind == "Pipeline")
    body = pipeline(spec={"approval": "Manual"}, status=status)
    seen = running(copied(), owned=owned(owner(approval="Manual")), body=body)
    assert approved(seen, accept(seen)).reason == "NothingWaits"
    assert not reconcile(seen).apply


def test_a_change_waits_without_a_driver_whatever_the_status_says() -> None:
    """No report says that a table has no copy. A status may be lost, and a TableSync deleted by hand."""
    for status in ({}, {"phase": "Removed"}, {"phase": "Pending"}, {"phase": "Suspended", "copy": None}):
        seen = written(merge(table_sync(), {"status": status}), **TEXT)
        request = waiting(seen).request
        assert request is not None
        assert request.tables == (QualifiedTable("public", "orders"),)
    memo: Memo[PipelineKey, Acceptance] = Memo()
    new = written(table_sync(), **TEXT)
    report = progress(table_document(phase="Init", copy=None))
    assert not accept(replace(new, report=report), memo).waits
    assert accept(new, memo).waits
    none = replace(written(**TEXT), table_syncs=())
    assert "the tables, which are not known before a driver reports them" in approved(none, waiting(none)).message
    never = {**none.owned.bodies}
    key = ObjectKey("StatefulSet", "shop-driver")
    never[key] = merge(dict(never[key]), {"metadata": {"annotations": {READY: None}}})
    assert not accept(replace(none, owned=OwnedObjects(never))).waits


def test_tables_without_a_copy_are_not_counted() -> None:
    """The driver's own report counts, and the TableSyncs' statuses without one."""
    seen = running(copied(), merge(table_sync("events"), {"status": {"phase": "Init", "copy": NO_ROWS}}))
    assert copied_tables(replace(seen, report=None)) == {QualifiedTable("public", "orders")}
    report = progress(table_document(phase="Init", copy=None), table_document("events", phase="Errored"))
    assert copied_tables(replace(seen, report=report)) == {QualifiedTable("public", "events")}


@pytest.mark.parametrize("phase", ["DataSync", "Pending", "Init"])
def test_a_copy_under_way_counts(phase: str) -> None:
    """To begin it again is a cost too, also if its driver starts just now and will continue it."""
    part = {"rows": 4_000_000, "bytes": 1 << 30, "percent": 37}
    seen = written(merge(table_sync(mode="Changelog"), {"status": {"phase": phase, "copy": part}}))
    request = waiting(seen).request
    assert request is not None
    assert request.tables == (QualifiedTable("public", "orders"),)
    if phase != "Pending":
        copy = part | {"percent": 37.0, "secondsLeft": None}
        assert copied_tables(replace(seen, report=progress(table_document(phase=phase, copy=copy)))) == {
            *request.tables
        }


@pytest.mark.parametrize("phase", ["Ready", "Pending"])
def test_a_driver_that_starts_lets_nothing_through(phase: str) -> None:
    """It reports no table yet, and the status of the tables becomes Pending meanwhile. The change still waits."""
    table = merge(copied(), {"status": {"phase": phase}})
    starting = replace(progress(), progress=replace(progress().progress, state="Starting", tables=()))
    waiting(replace(written(table, **TEXT), report=starting))
    for write in reconcile(replace(written(table, **TEXT), report=starting)).statuses:
        if write.key.kind == "TableSync":
            assert (write.status["phase"], write.status["copy"]["percent"]) == ("Pending", 100)


KEY = {
    "code": "approval_required",
    "reason": "another key of masks in Secret masks copies 1 table again: public.orders. spec.approval is Manual",
    "solution": "kubectl annotate pipeline shop -n data --overwrite levada.dev/approve=0123456789abcdef",
}


def test_another_key_of_masks_waits_with_the_drivers_command() -> None:
    """The driver asks, while it streams or as the error that ended it. A change of the spec is asked for as well."""
    asking = progress(manifest={"approval": KEY})
    for seen in (replace(written(), report=asking), running(report=asking)):
        condition = approved(seen, accept(seen))
        assert (condition.status, condition.reason) == (False, "ApprovalRequired")
        assert f"public.orders. spec.approval is Manual; to approve: {KEY['solution']};" in condition.message
    text = f"error: {KEY['reason']} [approval_required]\n  hint: {KEY['solution']}\n"
    crashed = waiting_state("driver", "CrashLoopBackOff", exitCode=3, message=text)
    ended = running(pods=(pod(**crashed),), report=None)
    assert KEY["solution"] in approved(ended, accept(ended)).message
    both = replace(written(copied(), **TEXT), report=asking)
    message = approved(both, accept(both)).message
    assert message.index("copies again 1 table") < message.index("another key of masks")
    assert approved(running(), accept(running())).status


@pytest.mark.parametrize("annotation", ["0123456789abcdef", "0123456789ABCDEF", "x" * 200_000, "é" * 16, "../a"])
def test_the_approval_reaches_the_driver_next_to_its_manifest(annotation: str) -> None:
    """Only with approval Manual, and only what the driver may have asked for, so that the ConfigMap stays small."""
    for rule in ("Manual", "Automatic"):
        body = pipeline(spec={"approval": rule}, metadata={"annotations": {APPROVE: annotation}})
        seen = running(body=body, owned=owned(owner(approval=rule)))
        written_maps = [b for b in reconcile(seen).apply if b["metadata"]["name"] == "shop-manifest"]
        expected = [annotation] if annotation == "0123456789abcdef" and rule == "Manual" else []
        assert [b["data"]["approved"] for b in written_maps if "approved" in b["data"]] == expected
