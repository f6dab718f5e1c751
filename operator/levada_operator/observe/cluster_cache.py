"""In-memory cache of the cluster's objects by Pipeline, from watch events, lists and the operator's own writes.

Anybody can set labels. An object belongs to a Pipeline if it names the UID of one in its own namespace as its owner,
and a pod if its owner is such a StatefulSet or Job. Nothing else is kept. What cannot be read is a fault of its
namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from levada.status import Progress
from levada.values import age_of
from levada_operator.names import (
    API_VERSION,
    DEFAULT_STORAGE_CLASS,
    PIPELINE_LABEL,
    ROLE_LABEL,
    STATE_ROLE,
    TAKE_OVER_FROM,
    driver_name,
    driver_pod,
    staging_name,
)
from levada_operator.observe.altered import AlteredObjects
from levada_operator.observe.bodies import put_newer, readable, version_of
from levada_operator.observe.creation import CreationFailure, owners_without_pods
from levada_operator.observe.gone_pipelines import GonePipelines
from levada_operator.observe.named_slots import NamedSlots
from levada_operator.observe.objects import (
    Body,
    ObjectKey,
    OperatorDefaults,
    OwnedObjects,
    PipelineKey,
    PipelineObject,
    Refusal,
    TableSyncObject,
    pipeline_named,
    read_job,
    read_pipeline,
    read_table_sync,
)
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import read_pod
from levada_operator.observe.progress import ProgressReport
from levada_operator.observe.room import MAX_PIPELINE, NoRoomError, Room, compact, size_of
from levada_operator.observe.stored_status import readable_status
from levada_operator.observe.unread_tables import UnreadTables

_TRUST_WRITES_FOR: Final = timedelta(seconds=15)
"""An object that the operator wrote is kept for so long although a list does not have it. The list may be older."""

_MAX_STATUS: Final = 1 << 16
_TOO_LARGE: Final = "it is too large, or the Pipelines of its namespace are together"
_TOO_DEEP: Final = "it is nested too deeply"
_MAX_FAULTS: Final = 10
"""Faults of a namespace that are kept of each kind of object."""
_MAKERS: Final = ("StatefulSet", "Job")
_OF_UNREAD: Final = frozenset(("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
                               "deletionTimestamp", "finalizers"))  # fmt: skip


class ClusterCache:
    """The latest known version of every object. Not thread-safe: use it within one event loop."""

    def __init__(self, defaults: OperatorDefaults) -> None:
        self._defaults = defaults
        self.has_default_storage = False
        self.pipelines: dict[PipelineKey, Body] = {}
        self.table_syncs: dict[tuple[str, str], Body] = {}
        self._tables_of: dict[PipelineKey, set[str]] = {}
        self._changed: set[PipelineKey] = set()
        self._keys: dict[str, PipelineKey] = {}
        """The Pipelines by their UID."""
        self._makers: dict[str, tuple[PipelineKey, ObjectKey]] = {}
        """The owned StatefulSets and Jobs by their UID."""
        self._slots = NamedSlots()
        self._room = Room()
        self.unread_tables = UnreadTables()
        self._faults: dict[str, dict[str, tuple[str, ...]]] = {}
        self._children: dict[PipelineKey, dict[ObjectKey, Body]] = {}
        self._written_at: dict[tuple[PipelineKey, ObjectKey], datetime] = {}
        self._reports: dict[PipelineKey, ProgressReport] = {}
        self._unreadable: dict[PipelineKey, str] = {}
        self._moved_at: dict[PipelineKey, datetime] = {}
        self._refusals: dict[PipelineKey, tuple[Refusal, ...]] = {}
        self._failures: dict[str, Mapping[str, CreationFailure]] = {}
        self._gone = GonePipelines()
        self.altered = AlteredObjects()

    def put(self, body: Body) -> bool:
        """Store an object, unless a newer version is already stored, or it belongs to no Pipeline.

        Return True if it is new or differs from the stored one in anything but its status. One that would take too much
        memory is not kept: of a Pipeline its metadata is, with the reason. Raise `NoRoomError` for another one.
        """
        kind, metadata = body["kind"], body["metadata"]
        owner = None
        if kind not in ("Pipeline", "TableSync"):
            owner = self.owner_of(body)
            if owner is None:
                return False
        slim = {**body, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}
        if owner is None and "status" in slim:
            slim["status"] = readable_status(slim["status"])
        if (metadata.get("labels") or {}).get(ROLE_LABEL) == STATE_ROLE:
            slim.pop("data", None)  # Only the driver reads it, and it is large.
        try:
            size = size_of(slim)
        except RecursionError:
            if kind == "Pipeline":
                return self.put_unread(slim, _TOO_DEEP)
            raise ValueError(_TOO_DEEP) from None
        place = (metadata["namespace"], metadata["name"])
        if kind == "Pipeline":
            if size > MAX_PIPELINE or not self._room.take(kind, (kind, *place), size):
                return self.put_unread(slim, _TOO_LARGE)
            return self._put_pipeline(PipelineKey(*place), compact(slim))
        if not self._room.take("TableSync" if kind == "TableSync" else "Owned", (kind, *place), size):
            if kind == "TableSync" and pipeline_named(body) not in self.pipelines:
                # The status that it was given now would be written for ever, because the version without it stays.
                self.drop(kind, *place)
            error = NoRoomError(kind)
            if kind == "TableSync":
                self.unread_tables.note_body(body, str(error))
            raise error
        if kind == "TableSync":
            self.unread_tables.forget(*place)
            self._forget_table(place)
            differs = put_newer(self.table_syncs, place, compact(slim))
            pipeline = pipeline_named(self.table_syncs[place])
            self._tables_of.setdefault(pipeline, set()).add(place[1])
            self._changed |= {pipeline} if differs else set()
            return differs
        assert owner is not None  # See above.
        if kind in _MAKERS:
            self._makers[metadata["uid"]] = owner, ObjectKey(kind, metadata["name"])
        return put_newer(self._children.setdefault(owner, {}), ObjectKey(kind, metadata["name"]), compact(slim))

    def put_all(self, bodies: Iterable[Body]) -> list[tuple[str, str]]:
        """Store each object in its own guard. Return the namespace of each that could not be stored, and the reason."""
        faults = []
        for body in bodies:
            try:
                self.put(body)
            except NoRoomError as error:
                faults.append((str(body["metadata"]["namespace"]), str(error)))
            except Exception as error:
                place = (body.get("metadata") or {}).get
                text = f"{body.get('kind')} {place('name')}: {type(error).__name__}: {error}"
                faults.append((str(place("namespace")), text))
        return faults

    def put_unread(self, body: Body, reason: str) -> bool:
        """Store the metadata of a Pipeline that is not read, and why. Return True if it is new or another version."""
        metadata = {k: v for k, v in body["metadata"].items() if k in _OF_UNREAD}
        key = PipelineKey(metadata["namespace"], metadata["name"])
        self._room.free("Pipeline", ("Pipeline", *key))
        status = body.get("status", self.pipelines.get(key, {}).get("status"))
        stub = {"apiVersion": API_VERSION, "kind": "Pipeline", "metadata": metadata, "spec": {}, "unread": reason}
        # Without its status it would be written in each reconciliation.
        small = status is not None and size_of(status) <= _MAX_STATUS  # Without one, it is written in each pass.
        return self._put_pipeline(key, stub | ({"status": compact(status)} if small else {}))

    def taken_over(self) -> set[tuple[str, str]]:
        """Return the namespaces and UIDs of former Pipelines from which a Pipeline there has taken over.

        It is Ready, so its driver has found the state, the slot and the publication at the source.
        """
        found = set()
        for key, body in self.pipelines.items():
            former = (body["metadata"].get("annotations") or {}).get(TAKE_OVER_FROM, "").strip()
            ready = any(
                (c.get("type"), c.get("status")) == ("Ready", "True")
                for c in (body.get("status") or {}).get("conditions") or ()
            )
            if former and ready:
                found.add((key.namespace, former))
        return found

    def owner_of(self, body: Body) -> PipelineKey | None:
        """Return the living Pipeline that owns an object, or None."""
        metadata = body["metadata"]
        references = metadata.get("ownerReferences") or ()
        for reference in references:
            if body["kind"] == "Pod":
                found = self._makers.get(reference.get("uid", ""), (None, None))[0]
            else:
                found = self._keys.get(reference.get("uid", ""))
            if found is not None and found.namespace == metadata["namespace"]:
                return found
        if any(reference.get("kind") == "Pipeline" for reference in references):
            return None
        return self._heir_of(body)

    def _heir_of(self, body: Body) -> PipelineKey | None:
        """Return the Pipeline that takes over an object which outlived the former one of the name, or None."""
        metadata = body["metadata"]
        labels = metadata.get("labels") or {}
        key = PipelineKey(metadata["namespace"], labels.get(PIPELINE_LABEL, ""))
        is_claim = body["kind"] == "PersistentVolumeClaim" and metadata["name"] == staging_name(key.name)
        is_state = body["kind"] == "ConfigMap" and labels.get(ROLE_LABEL) == STATE_ROLE
        return key if key in self.pipelines and (is_claim or is_state) else None

    def _put_pipeline(self, key: PipelineKey, slim: Body) -> bool:
        before = self.pipelines.get(key)
        differs = put_newer(self.pipelines, key, slim)
        if before is not None and before is not self.pipelines[key]:
            if before["metadata"]["uid"] != self.pipelines[key]["metadata"]["uid"]:
                self._gone.keep(key, before, self._children.get(key, {}))
            self._forget_pipeline(key, before)
        body = self.pipelines[key]
        self._keys[body["metadata"]["uid"]] = key
        self._slots.add(key, body.get("spec") or {})
        self._changed |= {key} if differs else set()
        return differs

    def take_changed(self) -> set[PipelineKey]:
        """Return the Pipelines that changed or went since the last call, or whose TableSyncs did, beyond their status.

        A list, or the answer to a write, may have a change before the watch. The watch's event is then no news.
        """
        changed, self._changed = self._changed, set()
        return changed

    def _forget_pipeline(self, key: PipelineKey, body: Body) -> None:
        self._keys.pop(body["metadata"]["uid"], None)
        self._slots.remove(key, body.get("spec") or {})

    def remove(self, body: Body) -> None:
        """Remove a deleted object, unless another object of that name has been stored since."""
        metadata = body["metadata"]
        known: Mapping[Any, Body] = self.pipelines if body["kind"] == "Pipeline" else self.table_syncs
        there = known.get((metadata["namespace"], metadata["name"]))
        if there is not None and there["metadata"].get("uid") == metadata.get("uid"):
            self.drop(body["kind"], metadata["namespace"], metadata["name"])

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object by its name. With a Pipeline, remove everything that is known of it."""
        self._room.free(kind, (kind, namespace, name))
        if kind == "TableSync":
            self.unread_tables.forget(namespace, name)
            self._forget_table((namespace, name))
            self.table_syncs.pop((namespace, name), None)
            return
        key = PipelineKey(namespace, name)
        if (body := self.pipelines.get(key)) is not None:
            self._gone.keep(key, body, self._children.get(key, {}))
            self._forget_pipeline(key, body)
            self._changed.add(key)
        for child in list(self._children.get(key, ())):
            self._drop_child(key, child)
        self.altered.forget(key)
        for known in (
            self.pipelines, self._reports, self._unreadable, self._moved_at, self._refusals, self._children
        ):  # fmt: skip
            known.pop(key, None)

    def observe_gone(self, key: PipelineKey, now: datetime) -> Observed | None:
        """Return the last state of a Pipeline that went with the operator's finalizer, None for any other."""
        gone = self._gone.get(key)
        return None if gone is None else self._observed(key, *gone, now, 0)

    def gone_keys(self) -> list[PipelineKey]:
        """Return the Pipelines that `observe_gone` returns."""
        return self._gone.keys()

    def forget_gone(self, key: PipelineKey) -> None:
        """Forget that a Pipeline went with the finalizer."""
        self._gone.forget(key)

    def _drop_child(self, owner: PipelineKey, child: ObjectKey) -> None:
        body = self._children[owner].pop(child)
        self._makers.pop(body["metadata"].get("uid", ""), None)
        self._room.free("Owned", (child.kind, owner.namespace, child.name))

    def record_writes(
        self, key: PipelineKey, bodies: Iterable[Body], deleted: Iterable[ObjectKey], now: datetime
    ) -> None:
        """Store the objects that the API server returned for writes, and remove the deleted ones.

        One that cannot be stored is a fault of the namespace.
        """
        stored = [body for body in bodies if body["kind"] != "Event"]
        faults = self.put_all(stored)
        for body in stored:
            self._written_at[key, ObjectKey(body["kind"], body["metadata"]["name"])] = now
        if stored:
            self.record_faults(key.namespace, "written", (text for _, text in faults))
        for gone in deleted:
            if gone in self._children.get(key, {}):
                self._drop_child(key, gone)
            if gone.kind == "TableSync":
                self.drop(gone.kind, key.namespace, gone.name)

    def record_refusals(self, key: PipelineKey, refusals: tuple[Refusal, ...]) -> None:
        """Store the refusals of a Pipeline's last plan."""
        self._refusals[key] = refusals

    def replace_owned(self, kind: str, namespace: str, bodies: Iterable[Body], now: datetime, version: int = 0) -> None:
        """Store a complete list of a namespace's owned objects of a kind, and remove those that are missing from it.

        Objects later than ``version`` of the list stay, and those written within the last `_TRUST_WRITES_FOR`.
        """
        there: set[tuple[PipelineKey, ObjectKey]] = set()
        bodies = [body for body in bodies if self.owner_of(body) is not None]
        faults = self.put_all(bodies)
        for body in bodies:
            if (owner := self.owner_of(body)) is not None:
                there.add((owner, ObjectKey(body["kind"], body["metadata"]["name"])))
        self._written_at = {k: at for k, at in self._written_at.items() if age_of(at, now) < _TRUST_WRITES_FOR}
        for owner, mine in self._children.items():
            for key in [k for k in mine if k.kind == kind and owner.namespace == namespace]:
                is_later = 0 < version < version_of(mine[key])
                if (owner, key) not in there and (owner, key) not in self._written_at and not is_later:
                    self._drop_child(owner, key)
        self.record_faults(namespace, kind, [text for _, text in faults])

    def replace_all(
        self, kind: str, namespace: str, bodies: Iterable[Body], unread: Mapping[str, str], version: int
    ) -> None:
        """Store a complete list of a namespace's Pipelines or TableSyncs, and remove those that are missing from it.

        Objects later than ``version`` of the list stay, because a list may take long, and those with a name in
        ``unread``, which has the reasons.
        """
        bodies = list(bodies)
        if kind == "TableSync":
            self.unread_tables.replace(namespace, unread)
        faults = self.put_all(bodies)
        there = {body["metadata"]["name"] for body in bodies} | unread.keys()
        known: Mapping[Any, Body] = self.pipelines if kind == "Pipeline" else self.table_syncs
        for place in [place for place in known if place[0] == namespace and place[1] not in there]:
            if version_of(known[place]) <= version:
                self.drop(kind, *place)
        self.record_faults(namespace, kind, [text for _, text in faults])

    def record_faults(self, namespace: str, kind: str, faults: Iterable[str]) -> bool:
        """Store what could not be read of a namespace's objects of a kind. Return True if it differs from before."""
        found, known = tuple(dict.fromkeys(faults))[:_MAX_FAULTS], self._faults.setdefault(namespace, {})
        before = known.pop(kind, ())
        if found:
            known[kind] = found
        if not known:
            del self._faults[namespace]
        return before != found

    def faults(self, namespace: str, of: str = "") -> tuple[str, ...]:
        """Return what could not be read of a namespace's objects, or of those of a kind."""
        return sum((texts for kind, texts in self._faults.get(namespace, {}).items() if of in ("", kind)), ())

    def namespaces(self) -> list[str]:
        """Return the namespaces with a Pipeline or a TableSync."""
        return sorted({key[0] for known in (self.pipelines, self.table_syncs) for key in known})

    def lone_tables(self, key: PipelineKey) -> list[TableSyncObject]:
        """Return the TableSyncs that name a Pipeline which does not exist."""
        if key in self.pipelines:
            return []
        names = sorted(self._tables_of.get(key, ()))
        return list(readable(read_table_sync, (self.table_syncs[key.namespace, name] for name in names)))

    def lone_keys(self) -> list[PipelineKey]:
        """Return the Pipelines that TableSyncs name and that do not exist."""
        return [key for key in self._tables_of if key not in self.pipelines]

    def replace_storage_classes(self, bodies: Iterable[Body]) -> None:
        """Store whether one of all StorageClasses is the default."""
        self.has_default_storage = any(
            (body["metadata"].get("annotations") or {}).get(name) == "true"
            for body in bodies
            for name in DEFAULT_STORAGE_CLASS
        )

    def record_progress(self, key: PipelineKey, report: ProgressReport) -> None:
        """Store a driver's progress. Record the time if its position changed."""
        before, moved_at = self._reports.get(key), self._moved_at.get(key, report.fetched_at)
        # A time of the future is of a clock that was ahead.
        ahead = moved_at > report.fetched_at
        if before is None or ahead or _position(before.progress) != _position(report.progress):
            self._moved_at[key] = report.fetched_at
        self._reports[key] = report
        self._unreadable.pop(key, None)

    def record_unreadable(self, key: PipelineKey, reason: str) -> bool:
        """Store why a driver's answer could not be read. Return True if the reason differs from the last one."""
        before = self._unreadable.get(key)
        self._unreadable[key] = reason
        return before != reason

    def driver_addresses(self, namespace: str | None = None) -> list[tuple[PipelineKey, str]]:
        """Return the pod address of each driver, or of each in a namespace, that has one and is not being deleted."""
        found = []
        for key in self.pipelines if namespace is None else [k for k in self.pipelines if k.namespace == namespace]:
            body = self.child(key, "Pod", driver_pod(key.name))
            address = (body or {}).get("status", {}).get("podIP")
            if body is None or not address or body["metadata"].get("deletionTimestamp"):
                continue
            # A Job may have made a pod of that name.
            makers = (self._makers.get(o.get("uid", "")) for o in body["metadata"].get("ownerReferences") or ())
            if (key, ObjectKey("StatefulSet", driver_name(key.name))) in makers:
                found.append((key, address))
        return found

    def without_pods(self, namespace: str) -> list[tuple[ObjectKey, Body]]:
        """Return the StatefulSets and Jobs of the namespace that lack their pod. If all have one, forget failures."""
        mine = (children for key, children in self._children.items() if key.namespace == namespace)
        found = [owner for children in mine for owner in owners_without_pods(children)]
        if not found:
            self._failures.pop(namespace, None)
        return found

    def record_creation_failures(self, namespace: str, failures: Iterable[CreationFailure]) -> None:
        """Store the failures to create pods in a namespace, given in any order. The latest per owner counts."""
        self._failures[namespace] = {f.owner_uid: f for f in sorted(failures, key=lambda f: f.at)}

    def _forget_table(self, place: tuple[str, str]) -> None:
        """Remove a TableSync from the tables of its Pipeline."""
        if (known := self.table_syncs.get(place)) is not None:
            tables = self._tables_of[pipeline_named(known)]
            tables.discard(place[1])
            if not tables:
                del self._tables_of[pipeline_named(known)]

    def _creation_failures(self, key: PipelineKey) -> dict[ObjectKey, CreationFailure]:
        known = self._failures.get(key.namespace, {})
        lacking = ((k, b["metadata"].get("uid", "")) for k, b in owners_without_pods(self._children.get(key, {})))
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
        return None if body is None else self._observed(key, body, self._children.get(key, {}), now, updating)

    def _observed(
        self, key: PipelineKey, body: Body, mine: Mapping[ObjectKey, Body], now: datetime, updating: int
    ) -> Observed:
        pipeline = read_pipeline(body)
        config = {k: self.altered.seen(key, k, b) for k, b in mine.items() if k.kind != "Pod"}
        return Observed(
            now=now,
            defaults=self._defaults,
            pipeline=pipeline,
            table_syncs=tuple(
                readable(
                    read_table_sync,
                    (self.table_syncs[key.namespace, name] for name in sorted(self._tables_of.get(key, ()))),
                )
            ),
            owned=OwnedObjects(config),
            pods=tuple(readable(read_pod, (b for k, b in sorted(mine.items()) if k.kind == "Pod"))),
            has_default_storage=self.has_default_storage,
            jobs=tuple(readable(read_job, (b for k, b in sorted(mine.items()) if k.kind == "Job"))),
            faults=self.faults(key.namespace),
            report=self._reports.get(key),
            unreadable=self._unreadable.get(key, ""),
            unread_tables=self.unread_tables.text(key.namespace),
            moved_at=self._moved_at.get(key),
            conflicts=self.conflicts(pipeline),
            refusals=self._refusals.get(key, ()),
            updating=updating,
            creation_failures=self._creation_failures(key),
        )

    def conflicts(self, pipeline: PipelineObject) -> tuple[str, ...]:
        """Return the names of the namespace's older Pipelines that read the same slot. Equal ages are ordered by name.

        A manifest of another namespace proves nothing. There, a driver finds out whose the slot is.
        """
        found = []
        for key in self._slots.sharing(pipeline.key, pipeline.spec):
            if key.namespace == pipeline.namespace:
                other = read_pipeline(self.pipelines[key])
                if (other.created, other.key) < (pipeline.created, pipeline.key):
                    found.append(key.name)
        return tuple(sorted(found))


def _position(progress: Progress) -> tuple[object, ...]:
    """Return a value that changes whenever replication advances or another engine has started."""
    capture = progress.capture
    return progress.epoch, capture.received_lsn, capture.staged_lsn, capture.acknowledged_lsn
