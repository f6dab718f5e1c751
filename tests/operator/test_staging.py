"""The place of staged changes: decided once for a Pipeline that names none, and never changed by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.samples import DEFAULTS, MANIFEST, merge, observed, owned, owner, pipeline, running

from levada.spec import Change, load_manifests
from levada_operator.decide.acceptance import Acceptance, accept
from levada_operator.decide.reconcile import reconcile
from levada_operator.desired.manifest import manifest_text
from levada_operator.desired.objects import build_objects
from levada_operator.names import manifest_name, staging_name
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import ObjectKey, OwnedObjects, StagingDefaults, VolumeUse

CLAIM = ObjectKey("PersistentVolumeClaim", staging_name("shop"))
SCRATCH = {"scratch": True}


def place(acceptance: Acceptance) -> dict[str, Any]:
    """Return the staging section that runs, without its defaults."""
    assert acceptance.manifests is not None
    return acceptance.manifests.pipeline.spec.staging.model_dump(by_alias=True, exclude_defaults=True)


def volume(size: int) -> dict[str, Any]:
    """Return the staging section of a decided claim of so many GiB."""
    return {"volumeClaim": {"size": size << 30}}


@pytest.mark.parametrize(
    ("use", "has_default", "decided"),
    [
        (VolumeUse.DETECT, True, volume(7)),
        (VolumeUse.DETECT, False, SCRATCH),
        (VolumeUse.ALWAYS, False, volume(7)),
        (VolumeUse.NEVER, True, SCRATCH),
    ],
)
def test_a_new_pipeline_gets_a_claim_where_one_can_be_had(
    use: VolumeUse, has_default: bool, decided: dict[str, Any]
) -> None:
    """The decision is in the accepted manifest, and the claim is applied before the driver's pod."""
    seen = replace(
        observed(), has_default_storage=has_default, defaults=replace(DEFAULTS, staging=StagingDefaults(use, "7Gi"))
    )
    assert place(accept(seen)) == decided
    kinds = [body["kind"] for body in reconcile(seen).apply]
    assert ("PersistentVolumeClaim" in kinds) is ("volumeClaim" in decided)
    assert kinds[-1] == "StatefulSet"


@pytest.mark.parametrize("staging", [volume(20), SCRATCH])
@pytest.mark.parametrize("has_default", [True, False])
@pytest.mark.parametrize("use", list(VolumeUse))
def test_a_decision_stays(staging: dict[str, Any], has_default: bool, use: VolumeUse) -> None:
    """Neither the cluster's classes nor the operator's settings change it later."""
    seen = replace(
        running(owned=_owned(staging)),
        has_default_storage=has_default,
        defaults=replace(DEFAULTS, staging=StagingDefaults(use, "1Gi")),
    )
    accepted = accept(seen)
    assert (place(accepted), accepted.changes) == (staging, {})
    assert reconcile(seen).apply == ()


def test_a_pipeline_from_before_stays_on_scratch_space() -> None:
    """Its manifest has no decision. It is not restarted as if its spec had changed, and gets no claim."""
    bodies = dict(_owned(SCRATCH).bodies)
    old = merge(dict(bodies[ObjectKey("ConfigMap", manifest_name("shop"))]), {})
    undecided = load_manifests(MANIFEST)
    assert not undecided.pipeline.spec.staging.decided
    old["data"] = {"pipeline.yaml": manifest_text(undecided).replace("    scratch: false\n", "")}
    bodies[ObjectKey("ConfigMap", manifest_name("shop"))] = old
    seen = replace(running(owned=OwnedObjects(bodies)), has_default_storage=True)
    accepted = accept(seen)
    assert (place(accepted), accepted.changes) == (SCRATCH, {})
    assert [b["kind"] for b in reconcile(seen).apply] == ["ConfigMap"]


def test_an_existing_claim_is_used() -> None:
    """The claim of a deleted Pipeline, or of one whose manifest someone deleted: with its size, which cannot shrink."""
    bodies = {CLAIM: _owned(volume(50)).bodies[CLAIM]}
    seen = replace(running(owned=OwnedObjects(bodies)), has_default_storage=False)
    assert place(accept(seen)) == volume(50)


@pytest.mark.parametrize(
    ("before", "written", "changes"),
    [
        (SCRATCH, {"volumeClaim": {"size": "9Gi"}}, {"scratch": Change.RESTART, "volumeClaim": Change.RESTART}),
        (volume(20), {"volumeClaim": {"size": "90Gi"}}, {"volumeClaim.size": Change.HOT}),
        (volume(20), {"volumeClaim": {"size": "20Gi"}}, {}),
    ],
)
def test_a_place_can_be_written_later(
    before: dict[str, Any], written: dict[str, Any], changes: dict[str, Change]
) -> None:
    """Scratch space becomes a volume, and a volume becomes larger."""
    accepted = accept(running(owned=_owned(before), body=pipeline(spec={"staging": written})))
    assert accepted.condition.status
    assert accepted.changes == {f"spec.staging.{path}": change for path, change in changes.items()}
    assert "volumeClaim" in place(accepted)


@pytest.mark.parametrize(
    "written",
    [
        SCRATCH,
        {"uri": "s3://lake/staging"},
        {"volumeClaim": {"size": "20Gi", "storageClassName": "fast"}},
        {"volumeClaim": {"size": "19Gi"}},
    ],
)
def test_a_volume_with_staged_changes_is_not_left(written: dict[str, Any]) -> None:
    """The slot would not send them again, and no volume becomes smaller. The driver runs on with the volume."""
    seen = running(owned=_owned(volume(20)), body=pipeline(spec={"staging": written}))
    accepted = accept(seen)
    assert (accepted.condition.status, accepted.condition.reason) == (False, "ImmutableChange")
    assert "spec.staging" in accepted.condition.message
    assert place(accepted) == volume(20)
    assert reconcile(seen).apply == ()


def test_a_claim_that_did_not_grow_may_have_its_former_size() -> None:
    """The cluster refused the larger size, so the volume does not become smaller."""
    live = _owned(volume(50)).bodies
    claim = merge(dict(live[CLAIM]), {"spec": {"resources": {"requests": {"storage": "20Gi"}}}})
    seen = running(owned=OwnedObjects({**live, CLAIM: claim}), body=pipeline(spec={"staging": volume(20)}))
    assert accept(seen).condition.status


@pytest.mark.parametrize("size", ["20Gi", "50Gi", "90Gi"])
def test_a_claim_that_another_person_enlarged(size: str) -> None:
    """It stays as large as it is, and no request to make it smaller is sent. A larger size of the spec is applied."""
    written, live = {"volumeClaim": {"size": size}}, _owned(volume(20)).bodies
    claim = merge(dict(live[CLAIM]), {"spec": {"resources": {"requests": {"storage": "50Gi"}}}})
    seen = running(owned=OwnedObjects({**live, CLAIM: claim}), body=pipeline(spec={"staging": written}))
    (applied,) = (b for b in reconcile(seen).apply if b["kind"] == "PersistentVolumeClaim")
    assert applied["spec"]["resources"]["requests"]["storage"] == ("90Gi" if size == "90Gi" else "50Gi")
    stored = OwnedObjects({**live, CLAIM: merge(claim, applied)})
    again = reconcile(running(owned=stored, body=pipeline(spec={"staging": written})))
    assert not [b for b in again.apply if b["kind"] == "PersistentVolumeClaim"]


@pytest.mark.parametrize("retained", [True, False])
def test_a_claim_outlives_the_pipeline_with_its_state(retained: bool) -> None:
    """A slot that was confirmed for changes on the volume is of use with that volume only."""
    action = "Retain" if retained else "Delete"
    policy = {"slot": action, "state": action}
    bodies = build_objects(owner(staging=volume(20), deletionPolicy=policy), running=True)
    (claim,) = (body for body in bodies if body["kind"] == "PersistentVolumeClaim")
    assert ("ownerReferences" in claim["metadata"]) is not retained


@pytest.mark.parametrize(
    ("annotations", "default"),
    [
        ({"storageclass.kubernetes.io/is-default-class": "true"}, True),
        ({"storageclass.beta.kubernetes.io/is-default-class": "true"}, True),
        ({"storageclass.kubernetes.io/is-default-class": "false"}, False),
        (None, False),
    ],
)
def test_a_default_class_has_an_annotation(annotations: dict[str, str] | None, default: bool) -> None:
    """As Kubernetes' own admission reads it, the former name included."""
    cache = ClusterCache(DEFAULTS)
    cache.replace_storage_classes(
        [{"metadata": {"name": "a"}}, {"metadata": {"name": "b", "annotations": annotations}}]
    )
    assert cache.has_default_storage is default
    cache.replace_storage_classes([])
    assert not cache.has_default_storage


def _owned(staging: dict[str, Any]) -> OwnedObjects:
    return owned(owner(staging=staging))
