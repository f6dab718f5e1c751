"""The folders with the Secrets that a manifest names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator

NAMESPACE: Final = "LEVADA_NAMESPACE"
"""Environment variable with the Pipeline's namespace. The operator sets it in every pod."""


def secret_folder(secrets: Path | None, name: str, *keys: str) -> Path:
    """Return the folder of a Secret.

    Raise NeedsOperator ``secret_missing`` if the Secret or one of ``keys`` does not exist. An empty folder
    counts as missing if it should have ``keys``, because Kubernetes mounts one for an optional Secret that does not
    exist.
    """
    if secrets is None:
        raise NeedsOperator(
            "secret_missing",
            f"the manifest names Secret {name}, but no folder with Secrets is given",
            hint=f"pass --secrets DIR, where DIR/{name} has one file for each key" + _listed(keys),
        )
    folder = secrets / name
    # Beginning with two dots: the kubelet's own links, which it makes for a Secret that does not exist, too.
    if not folder.is_dir() or (keys and all(file.name.startswith("..") for file in folder.iterdir())):
        raise NeedsOperator("secret_missing", f"Secret {name} is missing", hint=_secret_hint(folder, keys, create=True))
    if missing := [key for key in keys if not (folder / key).is_file()]:
        message = f"Secret {name} has no key {', '.join(missing)}"
        raise NeedsOperator("secret_missing", message, hint=_secret_hint(folder, missing, create=False))
    return folder


def _secret_hint(folder: Path, keys: Sequence[str], *, create: bool) -> str:
    """Return a hint that adds the keys to the Secret, or creates it with them.

    In a pod it is a kubectl command, because users cannot write to the folders of a pod.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        kubectl = f"kubectl -n {namespace}" if (namespace := os.environ.get(NAMESPACE)) else "kubectl"
        if create:
            literals = "".join(f" --from-literal={key}=VALUE" for key in keys)
            return f"{kubectl} create secret generic {folder.name}{literals}"
        values = ", ".join(f'"{key}": "VALUE"' for key in keys)
        return f"{kubectl} patch secret {folder.name} -p '{{\"stringData\": {{{values}}}}}'"
    if create:
        return f"create the folder {folder} with one file for each key{_listed(keys)}"
    return "write " + " and ".join(str(folder / key) for key in keys)


def _listed(keys: Sequence[str]) -> str:
    return f": {', '.join(keys)}" if keys else ""
