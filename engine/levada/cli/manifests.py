"""The MANIFEST argument and the pipeline's work folder."""

from __future__ import annotations

from pathlib import Path

from levada.cli.hints import Invocation, set_invocation
from levada.errors import InvalidManifest
from levada.runtime.host.assembly import default_work_dir
from levada.spec import Manifests, load_manifests


def read(path: Path, secrets: Path | None = None, work_dir: Path | None = None) -> Manifests:
    """Read a manifest, and use these arguments in later hints.

    Raise InvalidManifest, which lists every problem found.
    """
    set_invocation(Invocation(path, secrets, work_dir))
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidManifest("invalid_manifest", f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidManifest("invalid_manifest", f"{path} cannot be read: {error.strerror}") from None
    return load_manifests(text, str(path))


def folder(path: Path, manifests: Manifests, given: Path | None) -> Path:
    """Return the work folder: the given one, or the default next to the manifest."""
    return (given or default_work_dir(path.absolute().parent, manifests.pipeline.metadata.name)).absolute()
