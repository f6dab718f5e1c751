"""The chart gives the operator the rights that docs/operator.md lists, which are those that its code needs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.chart.helm import render
from tests.chart.values import CASES
from tests.operator.samples import owner

from levada_operator.desired.access import build_role
from levada_operator.kube.interface import RESOURCES

Right: TypeAlias = tuple[str, str, str]
"""Group, resource, verb."""

DOCUMENT = Path(__file__).parents[2] / "docs" / "operator.md"
REASONS = DOCUMENT.with_name("security.md")
EXECUTORS = {("", "pods", verb) for verb in ("create", "delete", "deletecollection", "get", "list", "patch", "watch")}
GRANTED = {("", "namespaces", "get")}
DISCOVERY = {("storage.k8s.io", "storageclasses", "list"), ("coordination.k8s.io", "leases", "get")}


def rights(rules: list[dict[str, Any]]) -> set[Right]:
    """Return what rules allow."""
    return {r for rule in rules for r in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}


def documented(before: str = "") -> set[Right]:
    """Return the rights of the first table after these words."""
    text = DOCUMENT.read_text().partition(before)[2] if before else DOCUMENT.read_text()
    table = text.partition("| Group | Resources | Verbs |\n|---|---|---|\n")[2].partition("\n\n")[0]
    found: set[Right] = set()
    for line in table.splitlines():
        group, resources, verbs = (cell.strip() for cell in line.strip("|").split("|"))
        group = "" if group == "core" else group.strip("`")
        found |= set(itertools.product([group], re.split(r",\s*", resources), re.split(r",\s*", verbs)))
    return found


def reasons() -> list[tuple[set[Right], str]]:
    """Return the rights of each row of the table that gives their reasons, and the reason."""
    table = REASONS.read_text().partition("| Group | Resources | Verbs | Why |\n|---|---|---|---|\n")[2]
    found = []
    for line in table.partition("\n\n")[0].splitlines():
        group, resources, verbs, why = (cell.strip() for cell in line.strip("|").split("|"))
        group = "" if group == "core" else group.strip("`")
        found.append((set(itertools.product([group], re.split(r",\s*", resources), re.split(r",\s*", verbs))), why))
    return found


def roles(bodies: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the operator's own roles."""
    return [b for b in bodies if b["kind"] == kind and b["metadata"]["name"].endswith("-operator")]


def test_cluster_wide(tmp_path: Path) -> None:
    """In all namespaces: the documented rights, those that it passes on, and to see StorageClasses."""
    (role,) = roles(render(tmp_path), "ClusterRole")
    assert rights(role["rules"]) == documented() | EXECUTORS | DISCOVERY | GRANTED


def test_each_right_has_one_reason(tmp_path: Path) -> None:
    """The page on security has each verb of the chart's rules in exactly one row, and no other verb."""
    bodies = render(tmp_path)
    (role,) = roles(bodies, "ClusterRole")
    (lease,) = [b for b in bodies if b["kind"] == "Role"]
    rows = [right for found, why in reasons() if why for right in found]
    assert len(rows) == len(set(rows))
    assert set(rows) == rights(role["rules"]) | rights(lease["rules"])


def test_namespaced(tmp_path: Path) -> None:
    """In some namespaces: the documented rights there, passed-on ones only where asked for, nothing cluster-wide."""
    bodies = render(tmp_path, CASES["namespaced"])
    assert not [b for b in bodies if b["kind"].startswith("Cluster")]
    found = roles(bodies, "Role")
    assert [b["metadata"]["namespace"] for b in found] == ["data", "shop"]
    for role in found:
        assert rights(role["rules"]) == documented() | GRANTED
    bindings = [b for b in bodies if b["kind"] == "RoleBinding"]
    assert [b["metadata"]["namespace"] for b in bindings] == ["levada-system", "data", "shop"]
    account = {"kind": "ServiceAccount", "name": "levada-operator", "namespace": "levada-system"}
    assert all(b["subjects"] == [account] for b in bindings)
    # Without a role of the cluster to aggregate, each namespace has those of its users.
    for namespace in ("data", "shop"):
        parts = {b["metadata"]["name"]: rights(b["rules"]) for b in bodies
                 if b["kind"] == "Role" and b["metadata"]["namespace"] == namespace}  # fmt: skip
        assert {verb for _, _, verb in parts["levada-view"]} == {"get", "list", "watch"}
        assert parts["levada-edit"] > parts["levada-view"]
        assert {resource for _, resource, _ in parts["levada-edit"]} == {"pipelines", "tablesyncs"}


@pytest.mark.parametrize("name", CASES)
def test_lease_of_its_own(name: str, tmp_path: Path) -> None:
    """In its own namespace it has the documented rights over a Lease and a ConfigMap, by name except to create."""
    bodies = render(tmp_path, CASES[name])
    (role,) = [b for b in bodies if b["kind"] == "Role" and b["metadata"]["name"].endswith("-lease")]
    assert role["metadata"]["namespace"] == "levada-system"
    assert rights(role["rules"]) == documented("In its own namespace")
    (deployment,) = [b for b in bodies if b["kind"] == "Deployment"]
    environment = {e["name"]: e.get("value") for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    for rule in role["rules"]:
        lease = environment["LEVADA_LEASE"]
        assert rule["verbs"] == ["create"] or rule["resourceNames"] in ([lease], [f"{lease}-abandoned"])


@pytest.mark.parametrize("name", CASES)
def test_no_secrets_no_exec_no_wildcards(name: str, tmp_path: Path) -> None:
    """Whatever the values: no role reads Secrets, gets into pods, acts for others, or has a star."""
    for body in render(tmp_path, CASES[name]):
        for _, resource, verb in rights(body.get("rules", [])):
            assert resource not in (
                "*",
                "secrets",
                "pods/exec",
                "pods/attach",
                "pods/portforward",
                "serviceaccounts/token",
            )
            assert verb not in ("*", "escalate", "bind", "impersonate")


def test_every_kind_of_the_code_is_there() -> None:
    """The operator has rights for exactly the resources that its client knows."""
    resources = {
        (r.prefix.removeprefix("/api/v1").removeprefix("/apis/").rpartition("/")[0], r.plural)
        for r in RESOURCES.values()
    }
    found = documented() | documented("In its own namespace") | documented("In the cluster it lists")
    assert resources == {(group, resource) for group, resource, _ in found if "/" not in resource}


@pytest.mark.parametrize(
    "changes", [{}, {"driver": {"mode": "Cluster"}}, {"store": {"configMap": {}}}], ids=["plain", "executors", "store"]
)
def test_it_may_give_what_drivers_need(changes: dict[str, Any], tmp_path: Path) -> None:
    """The operator has all rights of a driver's Role, because the API server refuses grants beyond one's own rights."""
    (role,) = roles(render(tmp_path), "ClusterRole")
    given = next(b for b in build_role(owner(**changes)) if b["kind"] == "Role")
    assert rights(given["rules"]) <= rights(role["rules"])


def test_users_get_their_part(tmp_path: Path) -> None:
    """Viewers of a namespace see its Pipelines, and editors write them. Neither role writes their status."""
    parts = {b["metadata"]["name"]: b for b in render(tmp_path) if b["kind"] == "ClusterRole"}
    assert parts["levada-view"]["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert {verb for _, _, verb in rights(parts["levada-view"]["rules"])} == {"get", "list", "watch"}
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in parts["levada-edit"]["metadata"]["labels"]
    both = rights(parts["levada-view"]["rules"]) | rights(parts["levada-edit"]["rules"])
    assert {resource for _, resource, _ in both} == {"pipelines", "tablesyncs"}
