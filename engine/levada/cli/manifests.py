"""The MANIFEST argument, and the folder that goes with it."""

from __future__ import annotations

from pathlib import Path

from levada.cli.hints import Invocation, remember
from levada.errors import InvalidManifest
from levada.runtime.host.assembly import default_work_dir
from levada.spec import Manifests, load_manifests


def read(path: Path, secrets: Path | None = None, work_dir: Path | None = None) -> Manifests:
    """Read a file, and let hints name it with these options; raise InvalidManifest that lists every problem found."""
    remember(Invocation(path, secrets, work_dir))
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidManifest("invalid_manifest", f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidManifest("invalid_manifest", f"{path} cannot be read: {error.strerror}") from None
    return load_manifests(text, str(path))


def folder(path: Path, manifests: Manifests, given: Path | None) -> Path:
    """Return the work folder: the one given, else one beside the manifest."""
    return (given or default_work_dir(path.absolute().parent, manifests.pipeline.metadata.name)).absolute()
