"""The cluster's certificates: an authority of its own, a key for each component, and the files by which they log in."""

from __future__ import annotations

import json
import subprocess
from typing import Final

from tests.cluster.bringup.layout import FIRST_SERVICE, HOST, NODE, NODE_NAME, Layout

_SERVICE: Final = "kubernetes.default.svc.cluster.local"
_SERVER_NAMES: Final = ",".join(
    [
        *(
            f"DNS:{name}"
            for name in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", _SERVICE)
        ),
        *(f"IP:{address}" for address in ("127.0.0.1", FIRST_SERVICE, NODE, HOST)),
    ]
)
_SERVERS: Final = {
    "apiserver": ("/CN=kube-apiserver", _SERVER_NAMES),
    "kubelet-server": (f"/CN={NODE_NAME}", f"DNS:{NODE_NAME},IP:{NODE},IP:127.0.0.1"),
}
_CLIENTS: Final = {
    "admin": "/O=system:masters/CN=admin",
    "apiserver-kubelet": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "controllers": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
}


def ensure_keys(layout: Layout) -> None:
    """Make the keys that are missing. A second run makes none."""
    layout.keys.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (layout.keys / "ca.crt").exists():
        _key(layout, "ca")
        usage = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        extensions = [word for value in usage for word in ("-addext", value)]
        _openssl(layout, "req", "-x509", "-new", "-key", "ca.key", "-days", "3650", "-subj", "/CN=test-ca",
                 *extensions, "-out", "ca.crt")  # fmt: skip
    if not (layout.keys / "accounts.pub").exists():
        _openssl(layout, "genrsa", "-out", "accounts.key", "2048")
        _openssl(layout, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    for name, (subject, names) in _SERVERS.items():
        _certificate(layout, name, subject, f"extendedKeyUsage=serverAuth\nsubjectAltName={names}\n")
    for name, subject in _CLIENTS.items():
        _certificate(layout, name, subject, "extendedKeyUsage=clientAuth\n")
        _kubeconfig(layout, name, NODE if name == "admin" else "127.0.0.1")


def _certificate(layout: Layout, name: str, subject: str, extensions: str) -> None:
    if (layout.keys / f"{name}.crt").exists():
        return
    _key(layout, name)
    (layout.keys / f"{name}.ext").write_text(extensions)
    _openssl(layout, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    _openssl(layout, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", "3650", "-extfile", f"{name}.ext", "-out", f"{name}.crt")  # fmt: skip


def _key(layout: Layout, name: str) -> None:
    _openssl(layout, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _openssl(layout: Layout, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=layout.keys, check=True, capture_output=True)


def _kubeconfig(layout: Layout, name: str, server: str) -> None:
    """Write the file as JSON, which is YAML."""
    keys = layout.keys
    cluster = {"server": f"https://{server}:6443", "certificate-authority": str(keys / "ca.crt")}
    user = {"client-certificate": str(keys / f"{name}.crt"), "client-key": str(keys / f"{name}.key")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        "current-context": "test",
    }
    layout.kubeconfig(name).write_text(json.dumps(content, indent=1))
