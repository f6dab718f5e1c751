"""A reader of a page about Kubernetes: the context's namespace, and what is between two commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import yaml
from tests.cluster.node.place import Place
from tests.servers.ports import free_port

_RESTARTS: Final = """#!/usr/bin/env bash
# Run a command, and wait until the driver's pod is another one and the Pipeline is Ready.
set -eu
pod() { kubectl get pod shop-driver-0 --ignore-not-found -o 'jsonpath={.metadata.uid}'; }
before=$(pod)
"$@"
until now=$(pod) && [ "${now:-$before}" != "$before" ]; do sleep 1; done
kubectl wait --for=condition=Ready pod/shop-driver-0 --timeout=300s
kubectl wait --for=condition=Ready pipeline/shop --timeout=300s
"""


def environment(place: Place, folder: Path) -> dict[str, str]:
    """Return the environment of a reader in the place's namespace, who has the command ``restarts``."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = place.kubectl.namespace
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    script = folder / "bin" / "restarts"
    script.parent.mkdir()
    script.write_text(_RESTARTS)
    script.chmod(0o755)
    return {"KUBECONFIG": str(folder / "kubeconfig"), "PATH": f"{script.parent}:{os.environ['PATH']}"}


def opened(tunnel: str, folder: Path) -> dict[str, str]:
    """Return what takes the place of the command of a tunnel: it runs while the page is read through it."""
    port = free_port()
    read = f"curl --silent --fail --retry 60 --retry-all-errors --retry-delay 1 http://127.0.0.1:{port}/"
    there = f"{tunnel.replace(' 8080:', f' {port}:')} > {folder}/tunnel &\n{read} | grep -q '<title>'\nkill $!"
    return {f"{tunnel}\n": f"{there}\n"}


def waiting(place: Place) -> str:
    """Return the command that approves the change that waits."""
    place.reaches("Approved", "False", "ApprovalRequired")
    return place.message("Approved").partition("to approve: ")[2].partition(";")[0]
