"""The MANIFEST argument, the work folder, and variables that would override a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from levada.cli.hints import Invocation, set_invocation
from levada.runtime.host.manifest_file import read_manifest_file, work_folder
from levada.spec import Manifests


def read(path: Path, secrets: Path | None = None, work_dir: Path | None = None) -> Manifests:
    """Read a manifest, and use these arguments in later hints.

    Raise InvalidManifest, which lists every problem found.
    """
    set_invocation(Invocation(path, secrets, work_dir))
    return read_manifest_file(path)


def folder(path: Path, manifests: Manifests, given: Path | None) -> Path:
    """Return the work folder: the given one, or the default next to the manifest."""
    return work_folder(path, manifests, given)


_VARIABLES: Final = ("PGSERVICE", "PGTZ", "PGDATESTYLE", "PGGEQO")


def forget_variables() -> None:
    """Remove the variables, so that the manifest alone says where and how to connect."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
