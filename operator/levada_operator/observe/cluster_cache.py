"""In-memory cache of the cluster's objects by Pipeline, from watch events, lists and the operator's own writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from levada.spec import default_object_name
from levada.status import Progress
from levada_operator.names import DEFAULT_STORAGE_CLASS, ROLE_LABEL, STATE_ROLE, driver_pod
from levada_operator.observe.creation import CreationFailure
from levada_operator.observe.objects import (
    Body,
    ObjectKey,
    OperatorDefaults,
    OwnedObjects,
    PipelineKey,
    PipelineObject,
    Refusal,
    pipeline_named,
    pipeline_of,
    read_job,
    read_pipeline,
    read_table_sync,
    read_time,
)
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import read_pod
from levada_operator.observe.progress import ProgressReport

_TRUST_WRITES_FOR: Final = timedelta(seconds=15)
"""An object that the operator wrote is kept for so long although a list does not have it. The list may be older."""

_INTERNED: Final = 64
"""The length of texts that may occur in several objects. Longer ones are messages."""
_K = TypeVar("_K")


class ClusterCache:
    """The latest known version of every object. Not thread-safe: use it within one event loop."""

    def __init__(self, defaults: OperatorDefaults) -> None:
        self._defaults = defaults
        self.has_default_storage = False
        self.pipelines: dict[PipelineKey, Body] = {}
        self.table_syncs: dict[tuple[str, str], Body] = {}
        self._tables_of: dict[PipelineKey, set[str]] = {}
        self._children: dict[PipelineKey, dict[ObjectKey, Body]] = {}
        self._written_at: dict[tuple[PipelineKey, ObjectKey], datetime] = {}
        self._reports: dict[PipelineKey, ProgressReport] = {}
        self._unreadable: dict[PipelineKey, str] = {}
        self._moved_at: dict[PipelineKey, datetime] = {}
        self._refusals: dict[PipelineKey, tuple[Refusal, ...]] = {}
        self._failures: dict[str, Mapping[str, CreationFailure]] = {}

    def put(self, body: Body) -> bool:
        """Store an object, unless a newer version is already stored.

        Return True if it is new or differs from the stored one in anything but its status.
        """
        kind, metadata = body["kind"], body["metadata"]
        slim = _compact({**body, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}})
        if metadata.get("labels", {}).get(ROLE_LABEL) == STATE_ROLE:
            # Only the driver reads the content, and it is large.
            slim.pop("data", None)
        if kind == "Pipeline":
            return _put(self.pipelines, PipelineKey(metadata["namespace"], metadata["name"]), slim)
        if kind == "TableSync":
            place = (metadata["namespace"], metadata["name"])
            self._forget_table(place)
            differs = _put(self.table_syncs, place, slim)
            self._tables_of.setdefault(pipeline_named(self.table_syncs[place]), set()).add(place[1])
            return differs
        owner = pipeline_of(slim)
        return owner is not None and _put(self._children.setdefault(owner, {}), ObjectKey(kind, metadata["name"]), slim)

    def remove(self, body: Body) -> None:
        """Remove a deleted object, unless another object of that name has been stored since."""
        metadata = body["metadata"]
        known: Mapping[Any, Body] = self.pipelines if body["kind"] == "Pipeline" else self.table_syncs
        there = known.get((metadata["namespace"], metadata["name"]))
        if there is not None and there["metadata"].get("uid") == metadata.get("uid"):
            self.drop(body["kind"], metadata["namespace"], metadata["name"])

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object by its name. With a Pipeline, remove everything that is known of it."""
        if kind == "TableSync":
            self._forget_table((namespace, name))
            self.table_syncs.pop((namespace, name), None)
            return
        key = PipelineKey(namespace, name)
        for known in (
            self.pipelines, self._reports, self._unreadable, self._moved_at, self._refusals, self._children
        ):  # fmt: skip
            known.pop(key, None)

    def record_writes(
        self, key: PipelineKey, bodies: Iterable[Body], deleted: Iterable[ObjectKey], now: datetime
    ) -> None:
        """Store the objects that the API server returned for writes, and remove the deleted ones."""
        for body in bodies:
            if body["kind"] != "Event":
                self.put(body)
                self._written_at[key, ObjectKey(body["kind"], body["metadata"]["name"])] = now
        for gone in deleted:
            self._children.get(key, {}).pop(gone, None)
            if gone.kind == "TableSync":
                self.drop(gone.kind, key.namespace, gone.name)

    def record_refusals(self, key: PipelineKey, refusals: tuple[Refusal, ...]) -> None:
        """Store the refusals of a Pipeline's last plan."""
        self._refusals[key] = refusals

    def replace_owned(self, kinds: Iterable[str], bodies: Iterable[Body], now: datetime) -> None:
        """Store a complete list of the owned objects of some kinds, and remove those that are missing from it.

        Objects written within the last `_TRUST_WRITES_FOR` stay.
        """
        there: set[tuple[PipelineKey, ObjectKey]] = set()
        for body in bodies:
            self.put(body)
            if (owner := pipeline_of(body)) is not None:
                there.add((owner, ObjectKey(body["kind"], body["metadata"]["name"])))
        self._written_at = {k: at for k, at in self._written_at.items() if now - at < _TRUST_WRITES_FOR}
        listed = set(kinds)
        for owner, mine in self._children.items():
            for key in [k for k in mine if k.kind in listed]:
                if (owner, key) not in there and (owner, key) not in self._written_at:
                    del mine[key]

    def replace_all(self, kind: str, bodies: Iterable[Body], now: datetime) -> None:
        """Store a complete list of Pipelines or TableSyncs, and remove those that are missing from it.

        Objects created within the last `_TRUST_WRITES_FOR` stay.
        """
        there: set[tuple[str, str]] = set()
        for body in bodies:
            self.put(body)
            there.add((body["metadata"]["namespace"], body["metadata"]["name"]))
        known: Mapping[Any, Body] = self.pipelines if kind == "Pipeline" else self.table_syncs
        for place in [place for place in known if tuple(place) not in there]:
            if now - read_time(known[place]["metadata"]["creationTimestamp"]) > _TRUST_WRITES_FOR:
                self.drop(kind, *place)

    def replace_storage_classes(self, bodies: Iterable[Body]) -> None:
        """Store whether one of all StorageClasses is the default."""
        self.has_default_storage = any(
            (body["metadata"].get("annotations") or {}).get(name) == "true"
            for body in bodies
            for name in DEFAULT_STORAGE_CLASS
        )

    def record_progress(self, key: PipelineKey, report: ProgressReport) -> None:
        """Store a driver's progress. Record the time if its position changed."""
        before = self._reports.get(key)
        if before is None or _position(before.progress) != _position(report.progress):
            self._moved_at[key] = report.fetched_at
        self._reports[key] = report
        self._unreadable.pop(key, None)

    def record_unreadable(self, key: PipelineKey, reason: str) -> bool:
        """Store why a driver's answer could not be read. Return True if the reason differs from the last one."""
        before = self._unreadable.get(key)
        self._unreadable[key] = reason
        return before != reason

    def driver_addresses(self) -> list[tuple[PipelineKey, str]]:
        """Return the pod address of each driver that has one and is not being deleted."""
        found = []
        for key in self.pipelines:
            body = self.child(key, "Pod", driver_pod(key.name))
            address = (body or {}).get("status", {}).get("podIP")
            if address and not (body or {})["metadata"].get("deletionTimestamp"):
                found.append((key, address))
        return found

    def namespaces_lacking_pods(self) -> list[str]:
        """Return the namespaces where a StatefulSet or Job lacks its pod, and forget the failures in all others."""
        lacking = {key.namespace for key, mine in self._children.items() if next(_owners_without_pods(mine), None)}
        self._failures = {n: found for n, found in self._failures.items() if n in lacking}
        return sorted(lacking)

    def record_creation_failures(self, namespace: str, failures: Iterable[CreationFailure]) -> None:
        """Store the failures to create pods in a namespace, given in any order. The latest per owner counts."""
        latest = sorted(failures, key=lambda f: f.at)
        self._failures[namespace] = {f.owner_uid: f for f in latest}

    def _forget_table(self, place: tuple[str, str]) -> None:
        """Remove a TableSync from the tables of its Pipeline."""
        if (known := self.table_syncs.get(place)) is not None:
            tables = self._tables_of[pipeline_named(known)]
            tables.discard(place[1])
            if not tables:
                del self._tables_of[pipeline_named(known)]

    def _creation_failures(self, key: PipelineKey) -> dict[ObjectKey, CreationFailure]:
        known = self._failures.get(key.namespace, {})
        lacking = ((k, b["metadata"].get("uid", "")) for k, b in _owners_without_pods(self._children.get(key, {})))
        return {k: known[uid] for k, uid in lacking if uid in known}

    def owners(self) -> list[PipelineKey]:
        """Return every Pipeline that owns an object, whether or not the Pipeline itself still exists."""
        return list(self._children)

    def child(self, key: PipelineKey, kind: str, name: str) -> Body | None:
        """Return an object that a Pipeline owns, or None if it does not exist."""
        return self._children.get(key, {}).get(ObjectKey(kind, name))

    def is_refused(self, key: PipelineKey) -> bool:
        """Return True if the API server refused an object of the Pipeline's last plan."""
        return bool(self._refusals.get(key))

    def observe(self, key: PipelineKey, now: datetime, updating: int = 0) -> Observed | None:
        """Return the observed state of a Pipeline, or None if there is no such Pipeline.

        ``updating`` is how many other Pipelines' drivers are restarting after an update.
        """
        body = self.pipelines.get(key)
        if body is None:
            return None
        pipeline = read_pipeline(body)
        mine = self._children.get(key, {})
        config = {k: b for k, b in mine.items() if k.kind not in ("Pod", "TableSync", "Pipeline")}
        return Observed(
            now=now,
            defaults=self._defaults,
            pipeline=pipeline,
            table_syncs=tuple(
                read_table_sync(self.table_syncs[key.namespace, name]) for name in sorted(self._tables_of.get(key, ()))
            ),
            owned=OwnedObjects(config),
            pods=tuple(read_pod(b) for k, b in sorted(mine.items()) if k.kind == "Pod"),
            has_default_storage=self.has_default_storage,
            jobs=tuple(read_job(b) for k, b in sorted(mine.items()) if k.kind == "Job"),
            report=self._reports.get(key),
            unreadable=self._unreadable.get(key, ""),
            moved_at=self._moved_at.get(key),
            conflicts=self.conflicts(pipeline),
            refusals=self._refusals.get(key, ()),
            updating=updating,
            creation_failures=self._creation_failures(key),
        )

    def conflicts(self, pipeline: PipelineObject) -> tuple[str, ...]:
        """Return the older Pipelines that read the same slot, as ``namespace/name``. Equal ages are ordered by name."""
        slot = slot_of(pipeline.key, pipeline.spec)
        found = []
        for key, body in self.pipelines.items():
            if key == pipeline.key or slot_of(key, body.get("spec") or {}) != slot:
                continue
            other = read_pipeline(body)
            if (other.created, other.key) < (pipeline.created, pipeline.key):
                found.append(f"{key.namespace}/{key.name}")
        return tuple(sorted(found))


def slot_of(pipeline: PipelineKey, spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the host, port, database and name that identify a slot. The spec may be invalid."""
    source = spec.get("source") or {}
    slot = (source.get("slot") or {}).get("name") or default_object_name(pipeline.name, pipeline.namespace)
    host = _dns_name(str(source.get("host")), pipeline.namespace)
    return (host, source.get("port", 5432), source.get("database"), slot)


def _dns_name(host: str, namespace: str) -> str:
    """Return a host's name as ``service.namespace``. A name without a dot is a Service in the Pipeline's namespace."""
    name = host.lower().removesuffix(".").removesuffix(".cluster.local").removesuffix(".svc")
    return name if "." in name or ":" in name else f"{name}.{namespace}"


def _owners_without_pods(children: Mapping[ObjectKey, Body]) -> Iterator[tuple[ObjectKey, Body]]:
    """Yield the StatefulSets and unfinished Jobs that should have a pod and have none."""
    owners = {o.get("uid") for k, b in children.items() if k.kind == "Pod"
              for o in b["metadata"].get("ownerReferences") or ()}  # fmt: skip
    for key, body in children.items():
        status = body.get("status") or {}
        wants = key.kind == "StatefulSet" and (body.get("spec") or {}).get("replicas", 1) > 0
        wants |= key.kind == "Job" and not any(c["status"] == "True" for c in status.get("conditions") or ())
        # A pod that was created by hand has no owner.
        named = ObjectKey("Pod", f"{key.name}-0") in children
        if wants and not named and body["metadata"].get("uid") not in owners:
            yield key, body


def _put(objects: dict[_K, Body], key: _K, body: Body) -> bool:
    """Store the newer version. Return True if it is new or differs from the stored one in anything but its status."""
    known = objects.get(key)
    if known is None or known["metadata"].get("uid") != body["metadata"].get("uid"):
        objects[key] = body
        return True
    if _version(body) < _version(known) or body == known:
        return False
    objects[key] = body
    return _without_status(body) != _without_status(known)


def _without_status(body: Body) -> dict[str, Any]:
    metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
    return {k: v for k, v in body.items() if k != "status"} | {"metadata": metadata}


def _compact(value: Any) -> Any:
    """Return a copy whose texts are stored once in the process. There are thousands of objects of the same shape."""
    if isinstance(value, Mapping):
        return {sys.intern(key): _compact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_compact(each) for each in value]
    return sys.intern(value) if type(value) is str and len(value) <= _INTERNED else value


def _version(body: Body) -> int:
    version = str(body["metadata"].get("resourceVersion", "0"))
    return int(version) if version.isdigit() else 0


def _position(progress: Progress) -> tuple[object, ...]:
    """Return a value that changes whenever replication advances or another engine has started."""
    capture = progress.capture
    return progress.epoch, capture.received_lsn, capture.staged_lsn, capture.acknowledged_lsn
