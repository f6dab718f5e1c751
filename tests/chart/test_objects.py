"""The chart makes the objects in its snapshots.

To renew them: ``UPDATE_SNAPSHOTS=1 pytest tests/chart/test_objects.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, pods, render, run, template
from tests.chart.values import CASES

from levada.spec import load_manifests
from levada_operator.desired.security import USER

SNAPSHOTS = Path(__file__).parent / "snapshots"
CRDS = Path(__file__).parents[2] / "crds"


def test_lint() -> None:
    """helm finds nothing to say about the chart."""
    run("lint", "--strict", CHART)


@pytest.mark.parametrize("name", CASES)
def test_snapshot(name: str, tmp_path: Path) -> None:
    """These values make the objects in the snapshot. CRDs and the dashboard are compared with their sources instead."""
    bodies = [b for b in render(tmp_path, CASES[name]) if b["kind"] != "CustomResourceDefinition"]
    for body in bodies:
        if body["kind"] == "ConfigMap":
            assert body["data"].pop("levada.json") == (CHART / "files" / "dashboard.json").read_text()
    text = yaml.safe_dump_all(bodies, sort_keys=False, width=120)
    path = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_crds_are_those_of_the_models(tmp_path: Path) -> None:
    """The chart installs exactly crds/, and uninstalling the release removes none. If they differ: make crds."""
    found = {b["metadata"]["name"]: b for b in render(tmp_path) if b["kind"] == "CustomResourceDefinition"}
    for path in CRDS.glob("*.yaml"):
        assert (CHART / "files" / "crds" / path.name).read_text() == path.read_text()
        crd = found.pop(path.stem)
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert crd == yaml.safe_load(path.read_text())
    assert not found


@pytest.mark.parametrize("name", CASES)
def test_pods_meet_the_restricted_standard(name: str, tmp_path: Path) -> None:
    """Every pod may run where the restricted Pod Security Standard is enforced, and writes to its volumes alone."""
    seen = 0
    for spec in pods(render(tmp_path, CASES[name])):
        seen += 1
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assigned = CASES[name].get("assignedUser", False)
        assert spec["securityContext"].get("runAsUser") == (None if assigned else USER)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(v) - {"name"} <= {"emptyDir", "configMap", "secret", "projected"} for v in spec["volumes"])
        for container in spec["containers"] + spec.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]
            assert not any("hostPort" in port for port in container.get("ports", []))
    assert seen == 2


@pytest.mark.parametrize("name", CASES)
def test_labels(name: str, tmp_path: Path) -> None:
    """Every object but the CRDs, which outlive releases, has the labels that Helm's conventions ask for."""
    for body in render(tmp_path, CASES[name]):
        if body["kind"] != "CustomResourceDefinition":
            labels = body["metadata"]["labels"]
            assert labels["helm.sh/chart"].startswith("levada-")
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["app.kubernetes.io/instance"] == "levada"


@pytest.mark.parametrize("name", CASES)
def test_no_two_objects_have_one_name(name: str, tmp_path: Path) -> None:
    """An object of the chart never takes the place of another."""
    keys = [(b["kind"], b["metadata"].get("namespace"), b["metadata"]["name"]) for b in render(tmp_path, CASES[name])]
    assert len(keys) == len(set(keys))


def test_a_spread_constraint_counts_the_operators_pods(tmp_path: Path) -> None:
    """Without a selector an entry would match no pod. A selector of the user stays as it is."""
    entry = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    theirs = entry | {"labelSelector": {"matchLabels": {"team": "data"}}}
    bodies = render(tmp_path, {"topologySpreadConstraints": [entry, theirs]})
    (deployment,) = (b["spec"] for b in bodies if b["kind"] == "Deployment")
    ours, kept = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert ours == entry | {"labelSelector": deployment["selector"]}
    assert kept == theirs


def test_long_names_fit(tmp_path: Path) -> None:
    """The longest name that Helm takes for a release still gives names that Kubernetes takes."""
    place = ("a" * 53, CHART, "--namespace", "levada-system", "--set", "metrics.serviceMonitor.enabled=true")
    for body in yaml.load_all(run("template", *place).stdout, yaml.CSafeLoader):
        if body:
            assert len(body["metadata"]["name"]) <= 63


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["data"]}], ids=["cluster", "namespaced"])
def test_notes_begin_with_a_pipeline_that_is_valid(values: dict[str, Any], tmp_path: Path) -> None:
    """The Pipeline that NOTES shows is one that Levada takes, in a namespace that the operator serves."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    # No cluster is asked: the client's own dry run prints what an install would.
    notes = run("install", "levada", CHART, "--dry-run=client", "--values", file).stdout.partition("NOTES:\n")[2]
    assert notes
    applied = notes.partition("<<EOF\n")[2].partition("  EOF\n")[0]
    _, manifest = "\n".join(line.removeprefix("  ") for line in applied.splitlines()).split("---\n")
    pipeline = load_manifests(manifest).pipeline
    assert pipeline.metadata.name == "shop"
    assert f"kubectl -n {values.get('watchNamespaces', ['default'])[0]} apply" in notes


def test_versions_go_together() -> None:
    """A chart is released with its program: both have the project's version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = next(
        line.split('"')[1]
        for line in (CHART.parents[1] / "pyproject.toml").read_text().splitlines()
        if line.startswith("version = ")
    )
    assert chart["version"] == chart["appVersion"] == version


def test_old_kubernetes_is_refused(tmp_path: Path) -> None:
    """A cluster whose API server does not know the CRDs' rules is refused before anything is installed."""
    done = template(tmp_path, {}, "--kube-version", "1.29.0", check=False)
    assert done.returncode
    assert "incompatible with Kubernetes" in done.stderr
