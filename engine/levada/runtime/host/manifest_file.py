"""A manifest's file, and the work folder next to it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from levada.errors import InvalidManifest
from levada.runtime.host.work_dir import default_work_dir
from levada.spec import Manifests, load_manifests, manifest_digest

COMMAND_PREFIX: Final = "LEVADA_COMMAND_PREFIX"
"""The variable with the words by which commands run in this pod. Set only in pods."""


UTF_8_HINT: Final = "save the file as UTF-8. A binary file is no manifest"


def read_manifest_file(path: Path) -> Manifests:
    """Return the Pipeline and the TableSyncs of a file. Raise InvalidManifest, which lists every problem found."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidManifest("invalid_manifest", f"{path} is not UTF-8 text", hint=UTF_8_HINT) from None
    except OSError as error:
        raise InvalidManifest("invalid_manifest", f"{path} cannot be read: {error.strerror}") from None
    return load_manifests(text, str(path))


def file_digest(path: Path) -> str:
    """Return the digest of a manifest's file, or an empty string if it cannot be read."""
    try:
        return manifest_digest(path.read_bytes())
    except OSError:
        return ""


def work_folder(path: Path | None, manifests: Manifests, given: Path | None) -> Path:
    """Return the absolute work folder: the given one, or the default next to the manifest's file.

    Without a file the default is in the current folder.
    """
    parent = Path.cwd() if path is None else path.absolute().parent
    return (given or default_work_dir(parent, manifests.pipeline.metadata.name)).absolute()


def command_words(path: Path | None, secrets: Path | None) -> tuple[str, str]:
    """Return ``prefix`` and ``arguments`` of `ManifestProgress`. Both are empty without a file."""
    if path is None:
        return "", ""
    prefix = os.environ.get(COMMAND_PREFIX, "")
    # The environment of a pod names its Secrets.
    options = [] if secrets is None or prefix else ["--secrets", str(secrets.absolute())]
    return prefix, shlex.join([str(path.absolute()), *options])
