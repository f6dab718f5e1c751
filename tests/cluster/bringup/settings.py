"""The files that the node's processes are configured by."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.cluster.bringup.layout import CGROUP, NODE, PODS, Layout

PAUSE: Final = "localhost/pause:1"
_UNUSED_PLUGINS: Final = [
    "io.containerd.internal.v1.opt",
    *(f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "devmapper", "aufs")),
]


def write_settings(layout: Layout) -> None:
    """Write the settings into the state's folder, over the former ones."""
    state = layout.state
    (state / "cni").mkdir(parents=True, exist_ok=True)
    (state / "containerd.toml").write_text(_containerd(layout))
    for name, content in (
        ("cni/10-pods.conflist", _NETWORK),
        ("kubelet.json", _kubelet(layout)),
        ("audit-policy.json", _AUDIT),
    ):
        (state / name).write_text(json.dumps(content, indent=1))


def _containerd(layout: Layout) -> str:
    # restrict_oom_score_adj: root may lack CAP_SYS_RESOURCE.
    return f"""version = 2
root = "{layout.state}/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


_ADDRESSES: Final = {
    "type": "host-local",
    "dataDir": "/run/cni-addresses",
    "ranges": [[{"subnet": PODS}]],
    "routes": [{"dst": "0.0.0.0/0"}],
}
_NETWORK: Final[dict[str, Any]] = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": _ADDRESSES,
        }
    ],
}

_AUDIT: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


def _kubelet(layout: Layout) -> dict[str, Any]:
    keys = layout.keys
    # Only what is really short of space evicts pods: the machine's disk is shared with everything else on it.
    scarce = dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "200Mi")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(keys / "kubelet-server.key"),
        "clusterDNS": [NODE],
        "clusterDomain": "cluster.local",
        "resolvConf": "/run/resolv.conf",
        "failSwapOn": False,
        "maxPods": 60,
        "nodeStatusUpdateFrequency": "5s",
        # Mounted Secrets and ConfigMaps follow their objects within seconds.
        "syncFrequency": "10s",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": scarce,
        "volumePluginDir": str(layout.state / "volume-plugins"),
        "containerLogMaxSize": "50Mi",
    }
