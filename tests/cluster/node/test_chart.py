"""`helm test` passes where the operator runs as the chart installs it."""

from __future__ import annotations

from tests.chart.helm import run
from tests.cluster.kubectl import PATIENCE
from tests.cluster.node.installed import NAMESPACE, Installed


def test_helm_test(operator: Installed) -> None:
    """It reaches the operator, finds the rights that it needs, and none to read Secrets or to get into pods."""
    told = run("test", "levada", "--namespace", NAMESPACE, "--logs", PATIENCE).stdout
    assert "/readyz: 200" in told
    assert "may not get secrets in all namespaces" in told
    assert "may not create pods/exec in all namespaces" in told
    assert "WRONG" not in told
