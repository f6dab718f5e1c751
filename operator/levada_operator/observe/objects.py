"""Kubernetes objects, reduced to the fields that decisions are based on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from levada_operator.names import API_VERSION, APPROVE, PAUSED, ROLE_LABEL, SKIP_CLEANUP, TAKE_OVER_FROM
from levada_operator.observe.left_out import spec_as_written
from levada_operator.observe.mappings import mapping_in

Body = Mapping[str, Any]


class ObjectKey(NamedTuple):
    """An object within a namespace."""

    kind: str
    name: str


class PipelineKey(NamedTuple):
    """A Pipeline within the cluster."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PipelineObject:
    """A Pipeline as stored in the API server. Its spec is not validated here."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: datetime
    spec: Body
    status: Body
    deleting_since: datetime | None = None
    skip_cleanup: bool = False
    take_over_from: str = ""
    approves: str = ""
    paused: bool = False
    unread: str = ""
    """Why the spec is not read, or empty. Such an object has no spec and no status here."""

    @property
    def key(self) -> PipelineKey:
        """The namespace and the name."""
        return PipelineKey(self.namespace, self.name)

    @property
    def manifest(self) -> dict[str, Any]:
        """The object as a manifest, without its status."""
        metadata = {"name": self.name, "namespace": self.namespace}
        return _manifest("Pipeline", metadata, self.spec)


@dataclass(frozen=True, slots=True)
class TableSyncObject:
    """A TableSync as stored in the API server.

    ``ours`` is True if the operator created it. ``owned`` is True if a Pipeline is its owner, so that Kubernetes
    deletes it with the Pipeline.
    """

    name: str
    uid: str
    generation: int
    spec: Body
    status: Body
    ours: bool
    owned: bool
    created: datetime

    @property
    def manifest(self) -> dict[str, Any]:
        """The object as a manifest."""
        return _manifest("TableSync", {"name": self.name}, self.spec)


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job of a Pipeline. ``role`` is the value of its role label."""

    name: str
    role: str
    created: datetime
    succeeded: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """An object that the API server refused, and the API server's message. ``content`` is the object's digest."""

    key: ObjectKey
    message: str
    namespace_terminating: bool = False
    content: str = ""

    @property
    def identity(self) -> tuple[ObjectKey, str]:
        """The object with its content. Another content of the same object has not been refused."""
        return self.key, self.content


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """Limits of a rolling update: drivers that may restart together, and the time that each has to become Ready."""

    max_concurrent: int = 1
    deadline: timedelta = timedelta(seconds=600)


class VolumeUse(StrEnum):
    """The use of volume claims for Pipelines that name no place for staged changes."""

    DETECT = "Detect"
    """Each gets one if the cluster has a default StorageClass."""
    ALWAYS = "Always"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class StagingDefaults:
    """The volume claims for staged changes of Pipelines that name no place. ``size`` is a quantity."""

    use: VolumeUse = VolumeUse.DETECT
    size: str = "20Gi"


@dataclass(frozen=True, slots=True)
class OperatorDefaults:
    """The operator's settings that apply to every Pipeline."""

    image: str
    operator_namespace: str
    metrics_namespace: str = ""
    updates: UpdatePolicy = UpdatePolicy()
    has_driver_token: bool = False
    identity: str = ""
    """The namespace and the name of the installation's Lease."""
    staging: StagingDefaults = StagingDefaults()
    assigned_user: bool = False
    """True: the cluster assigns each pod its user and groups, as OpenShift does, so that no pod asks for any."""


@dataclass(frozen=True, slots=True)
class OwnedObjects:
    """Full bodies of the other objects with the Pipeline's label. Pods and TableSyncs are not among them."""

    bodies: Mapping[ObjectKey, Body] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Body | None:
        """Return an object, or None if it does not exist."""
        return self.bodies.get(ObjectKey(kind, name))


def read_pipeline(body: Body) -> PipelineObject:
    """Parse a Pipeline."""
    metadata = body["metadata"]
    deleting = metadata.get("deletionTimestamp")
    annotations = metadata.get("annotations") or {}
    return PipelineObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=read_time(metadata["creationTimestamp"]),
        spec=spec_as_written(body),
        status=body.get("status") or {},
        deleting_since=read_time(deleting) if deleting else None,
        skip_cleanup=annotations.get(SKIP_CLEANUP) == "true",
        take_over_from=annotations.get(TAKE_OVER_FROM, "").strip(),
        approves=annotations.get(APPROVE, "").strip(),
        paused=annotations.get(PAUSED) == "true",
        unread=str(body.get("unread", "")),
    )


def read_table_sync(body: Body) -> TableSyncObject:
    """Parse a TableSync."""
    metadata = body["metadata"]
    return TableSyncObject(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=spec_as_written(body),
        status=body.get("status") or {},
        ours=(metadata.get("labels") or {}).get(ROLE_LABEL) == "table",
        owned=any(o.get("kind") == "Pipeline" for o in metadata.get("ownerReferences") or ()),
        created=read_time(metadata["creationTimestamp"]),
    )


def read_job(body: Body) -> JobState:
    """Parse a Job. ``failed`` is True only once Kubernetes will not retry it."""
    conditions = {c["type"]: c["status"] for c in (body.get("status") or {}).get("conditions") or ()}
    return JobState(
        name=body["metadata"]["name"],
        role=(body["metadata"].get("labels") or {}).get(ROLE_LABEL, ""),
        created=read_time(body["metadata"]["creationTimestamp"]),
        succeeded=conditions.get("Complete") == "True",
        failed=conditions.get("Failed") == "True",
    )


def pipeline_named(body: Body) -> PipelineKey:
    """Return the key of a Pipeline, or of the Pipeline that a TableSync names in its spec."""
    metadata = body["metadata"]
    if body["kind"] != "TableSync":
        return PipelineKey(metadata["namespace"], metadata["name"])
    return PipelineKey(metadata["namespace"], str(mapping_in(body, "spec", "pipelineRef").get("name", "")))


def read_time(text: str) -> datetime:
    """Parse a time in RFC 3339 format, as Kubernetes and the engine write it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def _manifest(kind: str, metadata: Body, spec: Body) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": dict(metadata), "spec": dict(spec)}
