"""Every object of the chart is one that an API server accepts, with no field that it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import yaml
from tests.chart.helm import render
from tests.chart.values import CASES
from tests.cluster.kubectl import Kubectl

FOREIGN: Final = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, whose CRDs are not here."""


@pytest.mark.parametrize("name", CASES)
def test_every_object_is_accepted(name: str, kubectl: Kubectl, tmp_path: Path) -> None:
    """By a dry run that refuses unknown fields, in the test's namespace."""
    bodies = [b for b in render(tmp_path, CASES[name]) if b["kind"] not in FOREIGN]
    assert {"Deployment", "ServiceAccount", "Service"} <= {b["kind"] for b in bodies}
    for body in bodies:
        body["metadata"].pop("namespace", None)
    # A Pod is only accepted if its account is there.
    kubectl.apply(*(b for b in bodies if b["kind"] == "ServiceAccount"))
    options = ("--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts")
    kubectl("apply", *options, "-f", "-", stdin=yaml.safe_dump_all(bodies))
