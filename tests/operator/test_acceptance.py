"""Acceptance: a spec that is wrong stops nothing that runs, and a change is named by its class."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.samples import (
    MANIFEST,
    merge,
    observed,
    owned,
    owner,
    owner_of,
    pipeline,
    progress,
    running,
    table_document,
    table_sync,
)

from levada.spec import Change
from levada_operator.decide.acceptance import accept, describe_changes, refusal_text
from levada_operator.decide.reconcile import reconcile
from levada_operator.desired.manifest import MAX_BYTES, is_too_large, manifest_text, read_manifest
from levada_operator.observe.objects import ObjectKey, Refusal


def test_invalid_spec_keeps_the_last_accepted_running() -> None:
    """An invalid spec changes nothing that runs. The status and an Event name the field."""
    seen = running(body=pipeline(spec={"freshnessSeconds": 0}))
    plan = reconcile(seen)
    assert plan.apply == ()
    (accepted,) = (n for n in plan.events if n.reason == "SpecRefused")
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
    """The Event of an accepted change has the change's class, which is its cost."""
    plan = reconcile(running(body=pipeline(spec=changes)))
    assert [n.message for n in plan.events if n.reason == "SpecChanged"] == [told]
    before = owned(owner()).bodies[ObjectKey("StatefulSet", "shop-driver")]["spec"]
    rolled = any(b["spec"] != before for b in plan.apply if b["kind"] == "StatefulSet")
    assert rolled is not told.startswith("Hot")


def test_immutable_change_is_refused_with_class_and_field() -> None:
    """An immutable field that the API server let through is refused by the operator, and the old spec runs on."""
    seen = running(body=pipeline(spec={"source": {"database": "other"}}))
    plan = reconcile(seen)
    assert plan.apply == ()
    (draft,) = (n for n in plan.events if n.reason == "SpecRefused")
    assert draft.message.startswith("Immutable: spec.source.database")
    assert accept(seen).condition.reason == "ImmutableChange"


_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def applied(**spec: Any) -> dict[str, Any]:
    """Return the annotation in which ``kubectl apply`` keeps the file."""
    return {"metadata": {"annotations": {_APPLIED: json.dumps({"spec": spec}, separators=(",", ":"))}}}


def test_null_that_kubectl_leaves_out() -> None:
    """Null without quotes is not taken for the default, and a column is not replicated without its mask."""
    null = merge(pipeline(spec={"onUnrepresentable": "Error"}), applied(onUnrepresentable=None))
    condition = accept(observed(null)).condition
    assert condition.reason == "InvalidSpec"
    assert "spec.onUnrepresentable: must be Error or Null or Text: put Null in quotes" in condition.message
    table = merge(table_sync(), applied(columns={"mask": {"ssn": None}}))
    found = accept(observed(None, table)).table_conditions["shop-public-orders"]
    assert found.reason == "InvalidSpec"
    assert "spec.columns.mask.ssn: must be a mapping, and is null" in found.message


@pytest.mark.parametrize("text", ['{"a":null', "[" * 9000 + ":null", '{"spec":null}', '{"spec":{"columns":null}}'])
def test_annotation_that_is_no_file(text: str) -> None:
    """Anybody can write the annotation. Another null is no problem, and neither is one that was replaced since."""
    odd = merge(pipeline(), {"metadata": {"annotations": {_APPLIED: text}}})
    assert accept(observed(odd)).condition.reason == "Valid"
    later = merge(pipeline(spec={"onUnrepresentable": "Null"}), applied(onUnrepresentable=None))
    assert accept(observed(later)).condition.reason == "Valid"


@pytest.mark.parametrize(
    ("kind", "name", "message", "made_again"),
    [
        ("ConfigMap", "shop-manifest", "data: field is immutable when `immutable` is set", True),
        ("ConfigMap", "shop-state-1", "data: field is immutable when `immutable` is set", False),
        ("PersistentVolumeClaim", "shop-staging", "spec is immutable after creation", False),
        ("RoleBinding", "shop-driver", "cannot change roleRef", True),
        ("Service", "shop-driver", "spec.clusterIPs[0]: may not change once set", True),
        ("Service", "shop-driver", "exceeded quota", False),
        (
            "StatefulSet",
            "shop-driver",
            "updates to statefulset spec for fields other than 'replicas' are forbidden",
            True,
        ),
    ],
)
def test_object_that_no_apply_changes(kind: str, name: str, message: str, made_again: bool) -> None:
    """One that another person made is deleted by the command, and never one with the state or with staged changes."""
    text = refusal_text(Refusal(ObjectKey(kind, name), message), "data")
    assert text.startswith(f"{kind} {name}: {message}")
    assert (f"kubectl -n data delete {kind.lower()} {name}" in text) is made_again


def test_younger_rival_never_runs() -> None:
    """Of two Pipelines that read one slot, the younger makes nothing and says which is the older."""
    plan = reconcile(observed(conflicts=("data/first",)))
    assert plan.apply == ()
    assert [n.reason for n in plan.events] == ["ConflictingPipeline"]


def test_second_table_sync_for_a_table_is_refused() -> None:
    """The older of two TableSyncs for a table counts. The status of the younger reports the conflict."""
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
    assert describe_changes({"spec.b": Change.HOT, "spec.a": Change.IMMUTABLE, "spec.c": Change.HOT}) == (
        "Immutable: spec.a; Hot: spec.b, spec.c"
    )


def test_manifest_of_a_deleted_pipeline_counts_for_no_other() -> None:
    """A Pipeline of the same name that is created before the former one's objects are gone runs its own spec."""
    body = pipeline(metadata={"uid": "uid-new"}, spec={"source": {"database": "other"}})
    seen = running(body=body)
    accepted = accept(seen)
    assert (accepted.condition.reason, accepted.started_before) == ("Valid", False)
    manifest = next(b for b in reconcile(seen).apply if b["kind"] == "ConfigMap")
    assert "database: other" in manifest["data"]["pipeline.yaml"]
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-new"


def test_settings_for_another_destination_are_refused() -> None:
    """The TableSync says so. The Pipeline and the table run on without the settings."""
    seen = running(table_sync("orders", custom={"options": {"rank": 1}}))
    accepted = accept(seen)
    (condition,) = accepted.table_conditions.values()
    assert (condition.status, condition.reason) == (False, "InvalidSpec")
    assert "spec.custom: the Pipeline's destination is" in condition.message
    assert accepted.condition.status


WRONG: list[dict[str, Any]] = [
    {"copy": {"driver": "Dedicated", "executors": 2}, "columns": {"exclude": ["ssn"]}},
    {"custom": {"options": {"rank": 1}}, "columns": {"exclude": ["ssn"]}},
    {"resyncNonce": -1, "columns": {"exclude": ["ssn"]}},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_refused_table_is_not_copied_with_the_defaults(wrong: dict[str, Any]) -> None:
    """A TableSync that was never valid keeps its table from being copied, with whichever field is wrong."""
    first = accept(observed(None, table_sync(**wrong)))
    assert first.manifests is not None
    (held,) = first.manifests.table_syncs
    assert (held.spec.suspend, held.spec.table.name) == (True, "orders")
    (condition,) = first.table_conditions.values()
    assert (condition.status, condition.reason) == (False, "InvalidSpec")
    assert condition.message.endswith("the table is not copied before that")
    again = observed(None, table_sync(**wrong), owned=owned(owner_of(manifest_text(first.manifests))))
    assert accept(again).manifests == first.manifests
    report = progress(table_document(phase="Init", copy=None))
    corrected = observed(None, table_sync(columns={"exclude": ["ssn"]}), owned=again.owned, report=report)
    accepted = accept(corrected)
    assert accepted.manifests is not None
    assert [(t.spec.suspend, t.spec.columns.exclude) for t in accepted.manifests.table_syncs] == [(False, ("ssn",))]
    assert accepted.request is None, "nothing was copied, so nothing is copied again"


@pytest.mark.parametrize("wrong", WRONG)
def test_a_refused_change_does_not_stop_a_table_that_is_copied(wrong: dict[str, Any]) -> None:
    """A table that streams goes on, also if it was held before its phase was known."""
    copied = merge(table_sync(**wrong), {"status": {"phase": "Ready"}})
    assert accept(running(copied)).manifests.table_syncs == ()  # type: ignore[union-attr] # the Pipeline is valid
    held = accept(observed(None, table_sync(**wrong))).manifests
    assert held is not None
    assert accept(running(copied, owned=owned(owner_of(manifest_text(held))))).manifests.table_syncs == ()  # type: ignore[union-attr] # as above


def test_a_table_whose_settings_are_not_read_is_not_copied_without_them() -> None:
    """No Pipeline of the namespace begins or changes. What was accepted runs on, with the masks of every TableSync."""
    unread = "TableSync people: it has more than 1024 KiB"
    new = accept(observed(unread_tables=unread))
    assert (new.manifests, new.condition.status, new.condition.reason) == (None, False, "TooLarge")
    assert reconcile(observed(unread_tables=unread)).apply == ()
    masked = accept(observed(None, table_sync(columns={"exclude": ["ssn"]}))).manifests
    assert masked is not None
    runs = running(unread_tables=unread, owned=owned(owner_of(manifest_text(masked))))
    held = accept(runs)
    assert (held.manifests, held.changes) == (masked, {})
    assert held.condition.message.startswith(f"{unread}, so the settings of its table are not known")
    assert reconcile(runs).apply == ()


def test_table_syncs_that_are_too_large_together_start_nothing() -> None:
    """Without them a new Pipeline would copy the columns that they exclude. One that runs keeps its last manifest."""
    columns = {"exclude": [f"{number:063}" for number in range(500)]}
    many = [table_sync(f"t{number}", columns=columns) for number in range(32)]
    new = observed(None, *many)
    assert (accept(new).manifests, accept(new).condition.reason) == (None, "TooLarge")
    assert accept(new).condition.message.endswith("; shorten the TableSyncs")
    assert reconcile(new).apply == ()
    last = accept(observed(None, many[0])).manifests
    assert last is not None
    runs = running(*many, body=pipeline(spec={"freshnessSeconds": 7}), owned=owned(owner_of(manifest_text(last))))
    held = accept(runs)
    assert (held.manifests, held.changes, held.request) == (last, {}, None)
    assert held.condition.message.endswith("; shorten the TableSyncs; the last accepted spec keeps running")
    tables = {"include": [{"schema": "public", "name": f"t{n}", "where": "x" * 2000} for n in range(600)]}
    alone = accept(observed(pipeline(spec={"tables": tables})))
    assert (alone.manifests, alone.condition.reason) == (None, "TooLarge")
    assert alone.condition.message.endswith("; shorten the spec of the Pipeline")


@pytest.mark.parametrize("text", ["a: [" + "x," * 480_000 + "]", ("- " * 250 + "x\n") * 1900, "k: v\n" * 150_000])
def test_a_manifest_of_too_many_values_is_not_parsed(text: str) -> None:
    """A megabyte of YAML may have half a million values, which take 450 MiB. Packed it has a hundred bytes."""
    assert len(text) <= MAX_BYTES
    assert is_too_large(text)
    assert read_manifest({"data": {"pipeline.yaml": text}}) is None
