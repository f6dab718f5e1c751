"""The operator, as a user installs it: by its chart, with no right that the chart does not give."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.kubectl import PATIENCE, Kubectl, established, eventually

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "charts" / "levada"
CRDS: Final = ROOT / "crds"
NAMESPACE: Final = "levada-system"
_LABEL: Final = "app.kubernetes.io/component=operator"


@dataclass(frozen=True)
class Installed:
    """The operator of the whole cluster."""

    kubectl: Kubectl

    def pod(self) -> dict[str, Any]:
        """Return the operator's pod, empty if there is none."""
        return next(iter(self.kubectl.get("pods", labels=_LABEL)), {})

    def restart(self) -> None:
        """Delete the operator's pod, and wait until another one is ready."""
        before = self.pod()["metadata"]["uid"]
        self.kubectl("delete", "pod", "-l", _LABEL, PATIENCE)
        eventually(lambda: self.pod().get("metadata", {}).get("uid", before) != before)
        self.kubectl("wait", "--for=condition=Ready", "pod", "-l", _LABEL, PATIENCE)

    @contextmanager
    def with_values(self, values: str) -> Iterator[None]:
        """Install the chart with other values for a while."""
        run_helm("upgrade", "levada", str(CHART), "--reuse-values", "--wait", PATIENCE, "--set", values)
        try:
            yield
        finally:
            run_helm("rollback", "levada", "--wait")

    def log(self) -> str:
        """Return the log of the operator's pod."""
        return self.kubectl("logs", "-l", _LABEL, "--tail=-1")


@contextmanager
def install(cluster: Kubectl, image: str) -> Iterator[Installed]:
    """Install the chart with that image and its other defaults, and remove it."""
    repository, tag = image.rsplit(":", 1)
    one = Installed(Kubectl(NAMESPACE))
    cluster.run("create", "namespace", NAMESPACE, check=False)
    cluster("label", "namespace", NAMESPACE, "--overwrite", "pod-security.kubernetes.io/enforce=restricted")
    # The CRDs are there: the tests that need no operator apply them.
    values = f"image.repository={repository},image.tag={tag},crds.install=false"
    run_helm("upgrade", "--install", "levada", str(CHART), "--set", values, "--wait", PATIENCE)
    try:
        yield one
        text = one.log()
        print(text)
        assert "Traceback" not in text
    finally:
        _uninstall(cluster)


@contextmanager
def removed(cluster: Kubectl) -> Iterator[None]:
    """Remove all Pipelines, the operator and the CRDs. What is installed meanwhile goes, and the CRDs come again."""
    one = Installed(Kubectl(NAMESPACE))
    if one.pod():
        assert "Traceback" not in one.log()
        cluster("delete", "pipelines", "--all", "--all-namespaces", PATIENCE)
    _uninstall(cluster)
    cluster("delete", "-f", str(CRDS), "--ignore-not-found")
    try:
        yield
    finally:
        _uninstall(cluster)
        cluster("apply", "-f", str(CRDS))
        established(cluster, "-f", str(CRDS))


def _uninstall(cluster: Kubectl) -> None:
    run_helm("uninstall", "levada", "--wait", "--ignore-not-found")
    cluster("delete", "namespace", NAMESPACE, "--ignore-not-found")


def run_helm(*arguments: str) -> None:
    """Run helm in the operator's namespace. Raise AssertionError if it fails."""
    done = subprocess.run(["helm", "-n", NAMESPACE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        shown = Kubectl(NAMESPACE).run("describe", "pods", check=False).stdout
        raise AssertionError(f"helm {' '.join(arguments)}: {done.stderr}\n{shown}")
