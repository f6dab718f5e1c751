"""Solutions of errors as complete commands."""

from __future__ import annotations

import re
from typing import Final

from levada.status.progress import ManifestProgress

_COMMAND: Final = re.compile(r"\b(levada [a-z]+) MANIFEST\b")


def runnable(solution: str, manifest: ManifestProgress) -> str:
    """Return the solution with the manifest of the engine in its commands, and the words that run them in its pod.

    It stays as it is if the engine does not report its manifest.
    """
    if not manifest.arguments:
        return solution
    prefix = f"{manifest.prefix} " if manifest.prefix else ""
    return _COMMAND.sub(lambda found: f"{prefix}{found[1]} {manifest.arguments}", solution)
