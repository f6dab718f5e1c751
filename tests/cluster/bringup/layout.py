"""The layout of the cluster: addresses, folders, versions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.local.jars import cache_folder

HOST: Final = "10.253.0.1"
"""This machine, for pods: a PostgreSQL that listens here is reached by them, as from `PODS`."""
NODE: Final = "10.253.0.2"
"""The node and its API server."""
LINK: Final = "10.253.0.0/30"
PODS: Final = "10.254.0.0/24"
SERVICES: Final = "10.97.0.0/16"
FIRST_SERVICE: Final = "10.97.0.1"
"""The API server, for pods."""
NODE_NAME: Final = "node1"
DEVICE: Final = "levada-host"
"""This machine's end of the link to the node."""
CGROUP: Final = "levada-test"
"""Below it are the cgroups of all pods."""
SOURCES: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of the cluster. There is one cluster at a time, because its addresses are fixed."""

    root: Path

    @staticmethod
    def default() -> Layout:
        """Return the one below Levada's cache."""
        return Layout(cache_folder() / "cluster")

    @property
    def programs(self) -> Path:
        """Kubernetes, its DNS, kubectl, helm."""
        return self.root / "programs"

    @property
    def state(self) -> Path:
        """The folder of the running cluster's files. Keys and images outlive it."""
        return self.root / "state"

    @property
    def keys(self) -> Path:
        return self.state / "keys"

    @property
    def logs(self) -> Path:
        """A file for each process of the node."""
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        """Every write to the API server, a JSON document a line (audit.k8s.io/v1, level Metadata)."""
        return self.logs / "audit.log"

    @property
    def volumes(self) -> Path:
        """Folders for hostPath volumes, emptied at each start. This machine's processes see the same files."""
        return self.state / "volumes"

    @property
    def init(self) -> Path:
        """Holds the process id, outside, of the node's first process."""
        return self.state / "init.pid"

    def kubeconfig(self, name: str = "admin") -> Path:
        """Return the file by which a component, or the cluster's admin, logs in."""
        return self.state / f"{name}.kubeconfig"

    def environment(self) -> dict[str, str]:
        """Return this process's environment with the cluster and its programs in it."""
        path = f"{self.programs}:{os.environ['PATH']}"
        return os.environ | {"KUBECONFIG": str(self.kubeconfig()), "PATH": path}
