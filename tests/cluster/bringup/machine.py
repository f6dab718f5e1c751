"""What a machine must have: Linux, root, namespaces, Debian's packages, Go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.programs import built

NODE_PACKAGES: Final = {
    "etcd-server": "/usr/bin/etcd",
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "/usr/sbin/iptables",
    "iproute2": "/usr/sbin/ip",
    "conntrack": "/usr/sbin/conntrack",
    "openssl": "/usr/bin/openssl",
}
"""Debian's packages, each with a file by which it is known to be there."""
IMAGE_PACKAGES: Final = {"buildah": "/usr/bin/buildah", "debootstrap": "/usr/sbin/debootstrap"}

_POLICY: Final = Path("/usr/sbin/policy-rc.d")


def missing(layout: Layout) -> list[str]:
    """Return what keeps a cluster from running here and cannot be installed, a sentence each."""
    if sys.platform != "linux":
        return ["Linux is needed"]
    if os.geteuid() != 0:
        return ["root is needed: the node has network, mount and process namespaces of its own"]
    lacks = []
    if subprocess.run(["unshare", "--pid", "--net", "--mount", "--fork", "true"], check=False).returncode:
        lacks.append("this machine does not let root make namespaces (unshare)")
    if (packages := lacking(NODE_PACKAGES | IMAGE_PACKAGES)) and not shutil.which("apt-get"):
        lacks.append(f"there is no apt-get to install {', '.join(packages)}")
    if not built(layout) and not shutil.which("go"):
        lacks.append("Go 1.24 or newer is needed to build Kubernetes from its module")
    return lacks


def lacking(packages: Mapping[str, str]) -> list[str]:
    """Return the packages that are not there."""
    return [name for name, file in packages.items() if not Path(file).exists()]


def install(packages: Mapping[str, str]) -> None:
    """Install the packages that are not there, and start none of their services."""
    if not (wanted := lacking(packages)):
        return
    print(f"installing {', '.join(wanted)}", file=sys.stderr, flush=True)
    with _no_services():
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *wanted)


def _apt(*arguments: str) -> None:
    subprocess.run(
        ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextmanager
def _no_services() -> Iterator[None]:
    """Tell Debian to start no service, unless the machine says so already."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
