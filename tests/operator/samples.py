"""Objects as the API server hands them out, and what is observed of them, made by hand."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import yaml

from levada.spec import load_manifests
from levada.status import read_progress
from levada_operator.decide.comparison import with_annotation, with_applied_hash
from levada_operator.decide.staging import with_decided_staging
from levada_operator.desired.objects import build_objects
from levada_operator.desired.owner import Owner
from levada_operator.names import READY, READY_IMAGE, RESTART_ON
from levada_operator.observe.objects import (
    JobState,
    ObjectKey,
    OperatorDefaults,
    OwnedObjects,
    read_pipeline,
    read_table_sync,
)
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import PodState, read_pod
from levada_operator.observe.progress import ProgressReport

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DEFAULTS = OperatorDefaults(image="levada:1", operator_namespace="levada-system", metrics_namespace="monitoring")

MANIFEST = """
apiVersion: levada.dev/v1alpha1
kind: Pipeline
metadata: {name: shop, namespace: data}
spec:
  source:
    host: shop-rw.pg.svc
    database: shop
    credentialsSecretRef: {name: shop-cdc}
  tables: {include: [{schema: public}]}
  destination:
    iceberg:
      catalog: {type: Rest, uri: "https://catalog.data.svc"}
      credentialsSecretRef: {name: lake-s3}
"""


def at(seconds: float) -> datetime:
    """Return a time that many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def written(moment: datetime) -> str:
    """Write a time as Kubernetes does."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@cache
def _loaded() -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(MANIFEST)
    return body


def _manifest() -> dict[str, Any]:
    return deepcopy(_loaded())


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the mapping with the changes. None removes a key."""
    out = dict(base)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merge(out[key], value)
        elif value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


def spec(**changes: Any) -> dict[str, Any]:
    """Return a Pipeline's spec with changes, by the YAML's names."""
    return merge(_manifest()["spec"], changes)


def pipeline(**changes: Any) -> dict[str, Any]:
    """Return a Pipeline. ``changes`` apply to the whole object."""
    body = _manifest()
    body["metadata"] |= {"uid": "uid-shop", "generation": 1, "creationTimestamp": written(at(-3600))}
    return merge(body, changes)


def table_sync(name: str = "orders", *, ours: bool = True, owned: bool = True, **changes: Any) -> dict[str, Any]:
    """Return a TableSync. ``changes`` apply to its spec."""
    metadata: dict[str, Any] = {
        "name": f"shop-public-{name}",
        "namespace": "data",
        "uid": f"uid-{name}",
        "generation": 1,
        "creationTimestamp": written(at(-1800)),
        "labels": {"levada.dev/pipeline": "shop"} | ({"levada.dev/role": "table"} if ours else {}),
    }
    if owned:
        metadata["ownerReferences"] = [{"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "name": "shop"}]
    own = {"pipelineRef": {"name": "shop"}, "table": {"schema": "public", "name": name}} | changes
    return {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": metadata, "spec": own}


def owner(**changes: Any) -> Owner:
    """Return the owner whose Pipeline's spec has the changes."""
    body = _manifest()
    return owner_of(yaml.safe_dump({**body, "spec": spec(**changes)}))


def owner_of(text: str) -> Owner:
    """Return the owner of a manifest."""
    manifests = with_decided_staging(load_manifests(text))
    assert manifests is not None
    return Owner(manifests, "data", "uid-shop", DEFAULTS)


def owned(owner: Owner, *, running: bool = True) -> OwnedObjects:
    """Return all that a Pipeline owns, as it was applied."""
    bodies = [with_applied_hash(_proven(body)) for body in build_objects(owner, running=running)]
    bodies = [merge(body, {"metadata": {"uid": f"uid-{body['metadata']['name']}"}}) for body in bodies]
    return OwnedObjects({ObjectKey(b["kind"], b["metadata"]["name"]): b for b in bodies})


def _proven(body: dict[str, Any]) -> dict[str, Any]:
    """Return the object. A StatefulSet that runs has the record that its pod became Ready."""
    if body["kind"] != "StatefulSet" or not body["spec"]["replicas"]:
        return body
    template = body["spec"]["template"]
    proven = with_annotation(body, READY_IMAGE, template["spec"]["containers"][0]["image"])
    return with_annotation(proven, READY, template["metadata"]["annotations"][RESTART_ON])


@cache
def _usual_objects() -> OwnedObjects:
    """Return all that a Pipeline without changes owns. Most tests ask for it, and none changes it."""
    return owned(owner())


def pod(role: str = "driver", name: str = "shop-driver-0", **status: Any) -> PodState:
    """Return a pod that is ready. ``status`` changes its status."""
    return read_pod(pod_body(role, name, **status))


def pod_body(role: str = "driver", name: str = "shop-driver-0", **status: Any) -> dict[str, Any]:
    """Return a pod as the API server has it."""
    ready = {"phase": "Running", "podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"levada.dev/pipeline": "shop", "levada.dev/role": role}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "data",
        "labels": labels,
        "creationTimestamp": written(at(-600)),
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "uid": "uid-shop-driver"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": merge(ready, status)}


def owned_body(kind: str, name: str, **changes: Any) -> dict[str, Any]:
    """Return an object that the Pipeline owns, with a UID by its name."""
    owners = [{"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "name": "shop", "uid": "uid-shop"}]
    metadata = {
        "name": name,
        "namespace": "data",
        "uid": f"uid-{name}",
        "labels": {"levada.dev/pipeline": "shop"},
        "creationTimestamp": written(at(-600)),
        "ownerReferences": owners,
    }
    return merge({"kind": kind, "metadata": metadata}, changes)


def waiting(container: str, why: str, told: str = "", **ended: Any) -> dict[str, Any]:
    """Return a pod's status in which a container waits for that reason, after it ended so."""
    kind = "initContainerStatuses" if container == "preflight" else "containerStatuses"
    state = {"name": container, "state": {"waiting": {"reason": why, "message": told}}, "restartCount": 3}
    if ended:
        state["lastState"] = {"terminated": {"finishedAt": written(at(-10)), **ended}}
    return {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], kind: [state]}


def table_document(name: str = "orders", phase: str = "Ready", **changes: Any) -> dict[str, Any]:
    """Return a table of a progress document."""
    plain = {
        "id": 16384,
        "schema": "public",
        "name": name,
        "phase": phase,
        "mode": "Upsert",
        "note": "",
        "copy": {"rows": 12_640_000, "bytes": 1 << 30, "percent": 100.0, "secondsLeft": None},
        "appliedLsn": "0/2000",
        "lagSeconds": 3.2,
        "error": None,
    }
    return plain | changes


def error_document(**changes: Any) -> dict[str, Any]:
    """Return an error of a progress document."""
    plain = {
        "code": "no_replica_identity",
        "reason": "public.orders has no key",
        "solution": "ALTER TABLE public.orders REPLICA IDENTITY FULL",
        "retryPolicy": "ManualRetry",
        "attempts": 3,
        "nextRetry": None,
    }
    return plain | changes


def document(*tables: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a progress document of a pipeline that runs."""
    plain = {
        "version": 1,
        "pipeline": "shop",
        "epoch": 3,
        "state": "Running",
        "startedAt": "2026-01-31T11:00:00.000+00:00",
        "at": "2026-01-31T12:00:00.000+00:00",
        "slot": {
            "name": "levada_shop",
            "lagBytes": 1_258_291,
            "retainedBytes": 4_194_304,
            "walStatus": "reserved",
            "safeWalBytes": None,
            "active": True,
            "sampledAt": "2026-01-31T11:59:58.000+00:00",
        },
        "capture": {"connected": True, "receivedLsn": "0/2000", "stagedLsn": "0/2000", "acknowledgedLsn": "0/2000"},
        "tables": list(tables) or [table_document()],
        "error": None,
    }
    return merge(plain, {k: v for k, v in changes.items() if k != "error"}) | (
        {"error": changes["error"]} if "error" in changes else {}
    )


def progress(*tables: dict[str, Any], fetched: float = 0.0, **changes: Any) -> ProgressReport:
    """Return the progress, fetched so many seconds after noon."""
    return ProgressReport(read_progress(document(*tables, **changes)), at(fetched))


def observed(body: dict[str, Any] | None = None, *table_syncs: dict[str, Any], **changes: Any) -> Observed:
    """Return the observed state of a Pipeline at noon. ``changes`` are fields of Observed."""
    fields: dict[str, Any] = {
        "now": NOON,
        "defaults": DEFAULTS,
        "pipeline": read_pipeline(body or pipeline()),
        "table_syncs": tuple(read_table_sync(t) for t in table_syncs),
    }
    return Observed(**fields | changes)


def running(*table_syncs: dict[str, Any], body: dict[str, Any] | None = None, **changes: Any) -> Observed:
    """Return what is observed of a Pipeline that streams one table."""
    fields: dict[str, Any] = {
        "owned": _usual_objects(),
        "pods": (pod(),),
        "report": progress(),
        "moved_at": NOON,
    }
    return observed(body, *(table_syncs or (table_sync(),)), **fields | changes)


NEW = replace(DEFAULTS, image="levada:2")


def upgraded(**changes: Any) -> Observed:
    """Return a Pipeline that streams, seen by an operator of another version."""
    return replace(running(), **{"defaults": NEW} | changes)


def deleting(since: float = -5, *, body: dict[str, Any] | None = None, **changes: Any) -> Observed:
    """Return what is observed of a Pipeline that is deleted since so many seconds after noon."""
    gone = merge(body or pipeline(), {"metadata": {"deletionTimestamp": written(at(since))}})
    return running(body=gone, **changes)


def job(*, succeeded: bool = False, failed: bool = False) -> JobState:
    """Return the clean-up Job."""
    return JobState("shop-cleanup", "cleanup", NOON, succeeded, failed)
