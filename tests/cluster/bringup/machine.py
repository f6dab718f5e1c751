"""The requirements of a machine: Linux, root, namespaces, Debian's packages, Go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.programs import built
from tests.servers.debian import lacking

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
