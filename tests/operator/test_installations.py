"""Two installations of the operator over the same Pipelines."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operator.samples import DEFAULTS, observed

from levada_operator.app.config import read_config
from levada_operator.app.installations import Installations
from levada_operator.decide.reconcile import reconcile
from levada_operator.kube.interface import RequestFailed
from levada_operator.names import OPERATOR


class Leases:
    """A `Cluster` of which only Leases are read. ``found`` is a Lease's spec, or the failure."""

    def __init__(self, found: dict[str, Any] | RequestFailed | None) -> None:
        self.found = found
        self.asked: list[tuple[str, str, str]] = []

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked.append((kind, namespace, name))
        if isinstance(self.found, RequestFailed):
            raise self.found
        return None if self.found is None else {"spec": self.found}


def manager(leases: Leases, annotation: str | None, times: int = 1, **pipeline: Any) -> str:
    """Return the other installation that manages a Pipeline whose StatefulSet has the annotation, if it has one."""
    stateful_set = None if annotation is None else {"metadata": {"annotations": {OPERATOR: annotation}}}
    body = {"metadata": {}} | pipeline

    async def script() -> str:
        with ThreadPoolExecutor(1) as executor:
            installations = Installations(leases, executor, "mine/levada-operator", lambda: 0.0)  # type: ignore[arg-type]  # it reads alone
            return [await installations.manager_of(body, stateful_set) for _ in range(times)][-1]

    return asyncio.run(script())


def renewed(seconds_ago: float, holder: str = "pod") -> dict[str, Any]:
    """Return the spec of a Lease."""
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return {"holderIdentity": holder, "renewTime": at.isoformat()}


def test_living_operator_keeps_its_pipelines() -> None:
    """A renewed Lease, or one that cannot be read, is that of a living operator. It is read seldom."""
    leases = Leases(renewed(2))
    assert manager(leases, "other/levada-operator", times=3) == "other/levada-operator"
    assert leases.asked == [("Lease", "other", "levada-operator")]
    for status in (0, 403):
        assert manager(Leases(RequestFailed(status, "no")), "other/levada-operator") == "other/levada-operator"


@pytest.mark.parametrize(
    "found",
    [None, {}, renewed(2, holder=""), renewed(3600), {"holderIdentity": "x", "renewTime": "soon"},
     {"holderIdentity": "x", "renewTime": "0001-01-01T00:00:00+14:00"}],
    ids=["gone", "empty", "released", "old", "odd", "before all times"],
)  # fmt: skip
def test_pipelines_of_an_operator_that_is_gone_are_taken_over(found: dict[str, Any] | None) -> None:
    """Its Lease was deleted, released or not renewed."""
    assert manager(Leases(found), "other/levada-operator") == ""


@pytest.mark.parametrize("ahead_s", [3600, 400 * 86_400])
def test_a_lease_of_the_future_ends_when_it_is_no_longer_renewed(ahead_s: float) -> None:
    """A clock that is ahead keeps no installation alive that is gone, and ends none that renews its Lease."""
    leases, now = Leases(renewed(-ahead_s)), 0.0

    async def script() -> list[bool]:
        nonlocal now
        with ThreadPoolExecutor(1) as executor:
            installations = Installations(leases, executor, "mine/levada-operator", lambda: now)  # type: ignore[arg-type]  # it reads alone
            stateful_set, alive = {"metadata": {"annotations": {OPERATOR: "other/levada-operator"}}}, list[bool]()
            for second in (0, 20, 40, 80):
                now = second
                if second == 20:
                    leases.found = renewed(-ahead_s)
                alive.append(bool(await installations.manager_of({"metadata": {}}, stateful_set)))
            # The clock is right again, so that the next renewal is before the last one.
            leases.found = renewed(2)
            now = 100
            return [*alive, bool(await installations.manager_of({"metadata": {}}, stateful_set))]

    assert asyncio.run(script()) == [True, True, True, False, True]


def test_pipeline_without_a_stateful_set_is_its_last_writers() -> None:
    """The first spec of a Pipeline may be refused, so that only its status shows who serves it."""
    status = {"operator": "other/levada-operator"}
    assert manager(Leases(renewed(2)), None, status=status) == "other/levada-operator"
    for found in (renewed(3600), None, RequestFailed(403, "no")):
        assert manager(Leases(found), None, status=status) == ""
    # Its deletion waits for nobody, since any account of a driver may write the status.
    assert manager(Leases(renewed(2)), None, status=status, metadata={"deletionTimestamp": "now"}) == ""
    # The StatefulSet decides where there is one.
    assert manager(Leases(renewed(2)), "mine/levada-operator", status=status) == ""


def test_own_and_new_pipelines_are_managed() -> None:
    """No Lease is read for them."""
    leases = Leases(renewed(2))
    assert [manager(leases, name) for name in (None, "", "mine/levada-operator")] == ["", "", ""]
    assert not leases.asked


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "x/",
        "/x",
        "x/../../secrets/y",
        "x/../../../../api/v1/pods?watch=true&a=",
        "x/y/z",
        "X/Y",
        "x/\0",
        "x/" + "y" * 300,
    ],
)
def test_a_name_that_is_no_lease_is_not_read(name: str) -> None:
    """The tenant writes the annotation, and the operator's rights are not hers."""
    leases = Leases(renewed(2))
    assert manager(leases, name) == ""
    assert not leases.asked


def test_an_installation_leaves_its_name() -> None:
    """The driver's StatefulSet has the namespace and the name of the Lease. The pod does not, and runs on."""
    lease = read_config({"POD_NAMESPACE": "levada-system", "LEVADA_LEASE": "a"}).defaults.identity
    assert lease == "levada-system/a"
    plan = reconcile(observed(defaults=replace(DEFAULTS, identity=lease)))
    [driver] = [body for body in plan.apply if body["kind"] == "StatefulSet"]
    assert driver["metadata"]["annotations"][OPERATOR] == lease
    assert lease not in str(driver["spec"])
