"""Objects of Kubernetes as the decisions need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from levada_operator.names import API_VERSION, PIPELINE_LABEL, ROLE_LABEL, SKIP_CLEANUP, TAKE_OVER_FROM

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
    """A Pipeline, as it is stored; its spec is not checked here."""

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

    @property
    def key(self) -> PipelineKey:
        """Where it is."""
        return PipelineKey(self.namespace, self.name)

    @property
    def manifest(self) -> dict[str, Any]:
        """The object as a manifest."""
        metadata = {"name": self.name, "namespace": self.namespace}
        return _manifest("Pipeline", metadata, self.spec)


@dataclass(frozen=True, slots=True)
class TableSyncObject:
    """A TableSync, as it is stored. ``ours``: the operator made it; ``owned``: it goes with its Pipeline."""

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
    """A short Job: what it is for, and how it went."""

    name: str
    role: str
    created: datetime
    succeeded: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the API server said to an object that it did not take."""

    key: ObjectKey
    message: str
    namespace_terminating: bool = False


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """The pace of updates: how many drivers restart together, and how long each may take to be Ready."""

    max_concurrent: int = 1
    deadline: timedelta = timedelta(seconds=600)


@dataclass(frozen=True, slots=True)
class OperatorDefaults:
    """What holds for every Pipeline: the operator's own settings."""

    image: str
    operator_namespace: str
    metrics_namespace: str = ""
    updates: UpdatePolicy = UpdatePolicy()
    has_driver_token: bool = False


@dataclass(frozen=True, slots=True)
class OwnedObjects:
    """Every other object that carries the Pipeline's label, whole."""

    bodies: Mapping[ObjectKey, Body] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Body | None:
        """Return one of them, None if there is none."""
        return self.bodies.get(ObjectKey(kind, name))


def read_pipeline(body: Body) -> PipelineObject:
    """Read a Pipeline."""
    metadata = body["metadata"]
    deleting = metadata.get("deletionTimestamp")
    annotations = metadata.get("annotations") or {}
    return PipelineObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=read_time(metadata["creationTimestamp"]),
        spec=body.get("spec") or {},
        status=body.get("status") or {},
        deleting_since=read_time(deleting) if deleting else None,
        skip_cleanup=annotations.get(SKIP_CLEANUP) == "true",
        take_over_from=annotations.get(TAKE_OVER_FROM, "").strip(),
    )


def read_table_sync(body: Body) -> TableSyncObject:
    """Read a TableSync."""
    metadata = body["metadata"]
    return TableSyncObject(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=body.get("spec") or {},
        status=body.get("status") or {},
        ours=(metadata.get("labels") or {}).get(ROLE_LABEL) == "table",
        owned=any(o.get("kind") == "Pipeline" for o in metadata.get("ownerReferences") or ()),
        created=read_time(metadata["creationTimestamp"]),
    )


def read_job(body: Body) -> JobState:
    """Read a Job; it has failed only when it will not be tried again."""
    conditions = {c["type"]: c["status"] for c in (body.get("status") or {}).get("conditions") or ()}
    return JobState(
        name=body["metadata"]["name"],
        role=(body["metadata"].get("labels") or {}).get(ROLE_LABEL, ""),
        created=read_time(body["metadata"]["creationTimestamp"]),
        succeeded=conditions.get("Complete") == "True",
        failed=conditions.get("Failed") == "True",
    )


def pipeline_of(body: Body) -> PipelineKey | None:
    """Return the Pipeline that an object's label names."""
    metadata = body["metadata"]
    name = (metadata.get("labels") or {}).get(PIPELINE_LABEL)
    return PipelineKey(metadata["namespace"], name) if name else None


def read_time(text: str) -> datetime:
    """Read a time as Kubernetes and the engine write it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)


def _manifest(kind: str, metadata: Body, spec: Body) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": dict(metadata), "spec": dict(spec)}
