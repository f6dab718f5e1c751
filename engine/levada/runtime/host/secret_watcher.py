"""The watcher of the Secrets of the destination and of masks, and the decision when a changed one takes effect.

A catalog, a file system and a Spark session keep the credentials that they were created with. So a changed Secret takes
effect in a new pipeline, which replaces the running one in the same process and resumes where that one stopped.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from levada.status import Progress

_REFUSED: Final = ("destination_", "staging_")
"""Prefixes of the codes of errors that other credentials may resolve."""
_HAS_SHADOW_COPY: Final = ("Copying", "CatchingUp")
"""The steps of a resync in which a shadow copy exists."""


class SecretWatcher:
    """Compares the files of a Secret with their content when this object was created. For one thread.

    It compares contents. The files of a mounted Secret are symbolic links whose own times do not change.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._initial = self._seen = self._read()

    @property
    def content(self) -> bytes | None:
        """A digest of the content that the last call of `changed` has read, None if there was none."""
        return self._seen

    @property
    def is_initial(self) -> bool:
        """True if the last call of `changed` has read the initial content."""
        return self._seen == self._initial

    def changed(self) -> bool:
        """Return True if the content differs from the initial one, and is the same in two calls in a row.

        Return False for a Secret that does not exist or cannot be read.
        """
        content = self._read()
        stable, self._seen = content == self._seen, content
        return stable and content is not None and content != self._initial

    def _read(self) -> bytes | None:
        """Return a digest of the files, or None if there are none. A digest keeps no second copy of the secrets."""
        if self._folder is None:
            return None
        try:
            files = [p for p in sorted(self._folder.iterdir()) if p.is_file()]
            parts = [part for p in files for part in (p.name.encode(), p.read_bytes())]
        except OSError:
            return None
        return hashlib.sha256(b"".join(b"%d:%s" % (len(p), p) for p in parts)).digest() if parts else None


def may_replace_pipeline(progress: Progress) -> bool:
    """Return True if the pipeline may be replaced by one with new credentials. Pure.

    It may if no copy runs, because a replacement starts a running copy again, and credentials that rotate faster than a
    copy takes would never let it end. It may also if the destination or the staging area refuses the present ones.
    """
    errors = [t.error for t in progress.tables] + [progress.capture.error, progress.error]
    if any(error is not None and error.code.startswith(_REFUSED) for error in errors):
        return True
    return not any(
        t.phase == "DataSync" or (t.resync is not None and t.resync.step in _HAS_SHADOW_COPY) for t in progress.tables
    )
