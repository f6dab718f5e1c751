"""A generator of odd objects, which a tenant with the role edit creates, changes and deletes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.cluster.tenants import hostile
from tests.cluster.tenants.hostile import Tenant

_TIMES: Final = ("yesterday", "", "9999-12-31T23:59:59-23:59", "2030-01-01T00:00:00Z", "0001-01-01T00:00:00Z")
_OWN_KINDS: Final = ("Pipeline", "TableSync")
_OTHER_KINDS: Final = ("StatefulSet", "Job", "ConfigMap", "Secret", "Pod", "Service")


class OddObjects:
    """Objects from a seed. Each step creates, changes or deletes something, or is refused by the API server."""

    def __init__(self, tenant: Tenant, seed: int) -> None:
        self._tenant = tenant
        self._random = random.Random(seed)
        self._pipelines: list[dict[str, Any]] = []
        self._there: list[tuple[str, str]] = []
        self._turn = 0
        self.done: dict[str, int] = {}
        self.refused = 0

    def step(self) -> None:
        """Do one thing. A refusal of the API server is the end of it."""
        self._turn += 1
        actions: dict[str, Callable[[], None]] = {
            "pipeline": self._pipeline, "table sync": self._table_sync, "object": self._object,
            "odd annotation": self._annotate, "finalizer": self._finalizer, "delete": self._delete,
            "status": self._status, "event": self._event,
        }  # fmt: skip
        name = self._random.choices([*actions], [3, 6, 8, 4, 1, 3, 2, 2])[0]
        try:
            actions[name]()
        except AssertionError:
            # The API server says no first: a name, a size, a quota, a schema.
            self.refused += 1
        else:
            self.done[name] = self.done.get(name, 0) + 1

    def _name(self) -> str:
        plain = f"{self._random.choice(['t', 'shop', 'x-driver', 'y-manifest'])}-{self._turn}"
        return plain if self._random.random() < 0.9 else plain + "x" * self._random.choice([20, 40, 200])

    def _text(self) -> str:
        size = self._random.choice([0, 10, 1000, 100_000, 240_000])
        return self._random.choice(["x", "[", "{", '"', "\\", "é", ","]) * size

    def _owner(self) -> dict[str, Any] | None:
        return self._random.choice(self._pipelines) if self._pipelines and self._random.random() < 0.7 else None

    def _remember(self, body: dict[str, Any]) -> None:
        self._there.append((body["kind"], body["metadata"]["name"]))

    def _pipeline(self) -> None:
        template: dict[str, Any] = self._random.choice([
            {},
            {"podTemplate": {"metadata": {"annotations": {f"k{n}": "x" * 1000 for n in range(1100)}}}},
            {"podTemplate": {"metadata": {"annotations": {f"k{n}": "" for n in range(20_000)}}}},
            {"podTemplate": {"spec": {"x": hostile.deep(self._random.choice([50, 150, 250]))}}},
            {"sparkConf": {f"spark.k{n}": "v" for n in range(2000)}},
        ])  # fmt: skip
        name = self._name()
        made = self._tenant.pipeline(name, suspend=self._random.random() < 0.7, driver=template)
        self._pipelines = [*self._pipelines[-20:], made]
        self._remember(made | {"kind": "Pipeline"})

    def _table_sync(self) -> None:
        owner = self._owner()
        ref = owner["metadata"]["name"] if owner is not None else f"none-{self._turn % 50}"
        body = {
            "apiVersion": "levada.dev/v1alpha1",
            "kind": "TableSync",
            "metadata": {"name": self._name(), "annotations": {"a": self._text()}},
            "spec": {"pipelineRef": {"name": ref}, "table": {"schema": "public", "name": f"t{self._turn}"}},
        }
        self._tenant.create(body)
        self._remember(body)

    def _object(self) -> None:
        owner, kind = self._owner(), self._random.choice(_OTHER_KINDS)
        base = owner["metadata"]["name"] if owner is not None else self._name()
        name = self._random.choice([self._name(), f"{base}-driver", f"{base}-manifest", f"{base}-cleanup"])
        annotations = {
            "levada.dev/updated-at": self._random.choice(_TIMES),
            "levada.dev/accepted": self._random.choice([hostile.bomb(4), self._text(), "QlpoOTFBWQ=="]),
            "levada.dev/applied": "x",
        }
        body = hostile.claimed(name, kind, owner=owner, annotations=annotations)
        content: dict[str, dict[str, Any]] = {
            "ConfigMap": {"data": {"pipeline.yaml": self._random.choice(["a: &a [1]\nb: *a", self._text()]) * 3}},
            "Secret": {"stringData": {"x": self._text()}},
            "Pod": {"spec": hostile.pod_spec()},
            "Service": {"spec": {"clusterIP": "None", "selector": {"levada.dev/role": "driver"}}},
            "StatefulSet": {"spec": hostile.stateful_set(name)["spec"]},
            "Job": {"spec": {"template": {"spec": hostile.pod_spec() | {"restartPolicy": "Never"}}}},
        }
        self._tenant.create(body | content[kind])
        self._remember(body)

    def _annotate(self) -> None:
        kind, name = self._random.choice(self._there or [("Pipeline", "none")])
        annotations = {
            "levada.dev/updated-at": self._random.choice(_TIMES),
            "levada.dev/approve": self._text()[:1000],
            "levada.dev/take-over-from": self._text()[:1000],
        }
        self._tenant.patch(kind, name, {"metadata": {"annotations": annotations}})

    def _finalizer(self) -> None:
        kind, name = self._random.choice(self._there or [("Pipeline", "none")])
        self._tenant.patch(kind, name, {"metadata": {"finalizers": ["example.com/never"]}})

    def _delete(self) -> None:
        kind, name = self._random.choice(self._there or [("Pipeline", "none")])
        self._tenant.delete(kind, name)

    def _status(self) -> None:
        """Write a status by hand. The role edit does not allow it, so the admin of the namespace does."""
        kind, name = self._random.choice([t for t in self._there if t[0] in _OWN_KINDS] or [("Pipeline", "none")])
        condition = {"type": "Ready", "status": "True", "reason": "Streaming", "message": "x" * 2000,
                     "lastTransitionTime": "2030-01-01T00:00:00Z", "observedGeneration": 1}  # fmt: skip
        self._tenant.kubectl.patch(kind, name, {"status": {"phase": "Streaming", "conditions": [condition]}}, "status")

    def _event(self) -> None:
        self._tenant.create({
            "apiVersion": "v1", "kind": "Event", "reason": "FailedCreate", "message": self._text()[:1024],
            "metadata": {"name": f"event-{self._turn}"}, "type": "Warning",
            "involvedObject": {"kind": "StatefulSet", "uid": "x", "namespace": self._tenant.kubectl.namespace},
        })  # fmt: skip
