"""The folders with the Secrets that a manifest names, and the access token in one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator
from levada.runtime.report.access_token import AccessToken
from levada.spec import Manifests

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


@contextmanager
def secret_files(secrets: Mapping[str, Mapping[str, str]]) -> Iterator[Path]:
    """Yield a folder with a folder for each Secret, which has a file for each key, and remove it at the end.

    Only this user can read it. A file that is changed meanwhile takes effect like a changed Secret. Raise ValueError
    for a name that is not one of a file.
    """
    with tempfile.TemporaryDirectory(prefix="levada-secrets-") as made:
        folder = Path(made)
        for name, keys in secrets.items():
            (folder / _file_name(name)).mkdir()
            for key, value in keys.items():
                (folder / name / _file_name(key)).write_text(value, "utf-8")
        yield folder


def _file_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a name of a Secret or a key: {name!r}")
    return name


def access_token(manifests: Manifests, secrets: Path | None) -> AccessToken | None:
    """Return the token that ``spec.driver.tokenSecretRef`` names, or None without one.

    Raise NeedsOperator ``secret_missing`` if the Secret or its key does not exist.
    """
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None:
        return None
    return AccessToken(secret_folder(secrets, reference.name, reference.key) / reference.key)


def request_headers(manifests: Manifests, secrets: Path | None) -> dict[str, str]:
    """Return the HTTP headers for requests to a running driver.

    They carry the token if the manifest names one and ``secrets``, the folder with the Secrets, is given.
    """
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None or secrets is None:
        return {}
    return {"Authorization": f"Bearer {AccessToken(secrets / reference.name / reference.key).read()}"}
