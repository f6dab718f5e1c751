"""A stand-in for the API server's machinery, for plans alone: it keeps what is applied, with defaults of its own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.operator.samples import merge, written

from levada_operator.decide.plan import Plan
from levada_operator.observe.objects import ObjectKey, OwnedObjects, read_job, read_pipeline, read_table_sync
from levada_operator.observe.observed import Observed


class PlanStore:
    """Takes plans, and is observed again."""

    def __init__(self, seen: Observed, pipeline: dict[str, Any], table_syncs: list[dict[str, Any]]) -> None:
        self.seen = seen
        self.pipeline = pipeline
        self.table_syncs = {t["metadata"]["name"]: t for t in table_syncs}
        self.owned: dict[ObjectKey, dict[str, Any]] = dict(seen.owned.bodies)  # type: ignore[arg-type]  # bodies are dicts here
        self.applied: list[ObjectKey] = []
        self.deleted: list[ObjectKey] = []

    def carry_out(self, plan: Plan) -> None:
        """Do what the plan says."""
        for body in plan.apply:
            key = ObjectKey(body["kind"], body["metadata"]["name"])
            self.applied.append(key)
            if key.kind == "TableSync":
                before = self.table_syncs.get(key.name, {"spec": {}, "metadata": {"creationTimestamp": _now(self)}})
                self.table_syncs[key.name] = merge(before, _stored(body))
            else:
                self.owned[key] = _stored(body) | {"status": {}}
                self.owned[key]["metadata"] |= {"creationTimestamp": _now(self)}
        for key in plan.delete:
            self.deleted.append(key)
            self.owned.pop(key, None)
            self.table_syncs.pop(key.name, None) if key.kind == "TableSync" else None
        for write in plan.statuses:
            if write.key.kind == "Pipeline":
                self.pipeline = {**self.pipeline, "status": write.status}
            elif write.key.name in self.table_syncs:
                self.table_syncs[write.key.name]["status"] = write.status

    def observe(self, **changes: Any) -> Observed:
        """Return what is observed now."""
        self.seen = replace(
            self.seen,
            pipeline=read_pipeline(self.pipeline),
            table_syncs=tuple(read_table_sync(t) for t in self.table_syncs.values()),
            owned=OwnedObjects(dict(self.owned)),
            jobs=tuple(read_job(b) for k, b in self.owned.items() if k.kind == "Job"),
            **changes,
        )
        return self.seen


def _now(store: PlanStore) -> str:
    return written(store.seen.now)


def _stored(body: dict[str, Any]) -> dict[str, Any]:
    """Return the object with what the API server adds of its own."""
    stored = merge(deepcopy(body), {"metadata": {"uid": f"uid-{body['metadata']['name']}", "resourceVersion": "5"}})
    if body["kind"] == "StatefulSet":
        stored = merge(stored, {"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}})
        pod = stored["spec"]["template"]["spec"]
        pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        for container in pod["containers"]:
            container["imagePullPolicy"] = "Always"
            for port in container.get("ports", ()):
                port["protocol"] = "TCP"
    return stored
