"""The node itself: what pods get of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.bringup.layout import CGROUP, Layout


def test_pods_weigh_as_much_as_the_processors(layout: Layout) -> None:
    """Pods are not all together as slow as one process of a busy machine."""
    groups = Path("/sys/fs/cgroup")
    found = {
        path.name: int(path.read_text())
        for path in (groups / "cpu" / CGROUP / "cpu.shares", groups / CGROUP / "cpu.weight")
        if path.exists()
    }
    processors = os.cpu_count() or 1
    assert found in ({"cpu.shares": 1024 * processors}, {"cpu.weight": 100 * processors})
