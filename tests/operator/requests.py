"""A cluster that only records requests, and the runner that makes a plan's requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from levada_operator.act.budget import WriteBudget
from levada_operator.act.runner import Outcome, Runner
from levada_operator.decide.reconcile import reconcile
from levada_operator.kube.interface import Listing, RequestFailed
from levada_operator.observe.objects import Body
from levada_operator.observe.observed import Observed


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Requests:
    """A `Cluster` that records its requests. ``failures`` has the error of each kind."""

    def __init__(self, **failures: RequestFailed) -> None:
        self.failures = failures
        self.writes: list[tuple[str, str, str]] = []
        self.there: dict[tuple[str, str], dict[str, Any]] = {}

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "", *, metadata: bool = False
    ) -> Listing:
        return Listing([body for (k, _), body in self.there.items() if k == kind])

    def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
        return self._write("finalizers", body["kind"], body["metadata"]["name"], body)

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.there.get((kind, name))

    def apply(self, body: Body) -> dict[str, Any]:
        return self._write("apply", body["kind"], body["metadata"]["name"], body)

    def rehearse(self, body: Body) -> None:
        self._write("rehearse", body["kind"], body["metadata"]["name"], body)

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        return self._write("status", kind, name, {"kind": kind, "metadata": {"name": name}, "status": status})

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self._write("delete", kind, name, {})

    def _write(self, verb: str, kind: str, name: str, body: Body) -> dict[str, Any]:
        if kind in self.failures:
            raise self.failures[kind]
        self.writes.append((verb, kind, name))
        return dict(body)


async def carry_out(cluster: Requests, seen: Observed, *, runner: Runner | None = None) -> Outcome:
    """Plan, and carry the plan out."""
    with ThreadPoolExecutor(1) as executor:
        runner = runner or Runner(cluster, WriteBudget(Clock(), burst=1000), executor)
        return await runner.carry_out(reconcile(seen), seen)
