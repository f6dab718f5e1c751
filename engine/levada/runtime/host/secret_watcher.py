"""The destination's Secret under a running engine: when it has changed, and when to begin anew with it.

A catalog, a file system and a Spark session keep the keys that they were made with. So a changed Secret is taken up by
a pipeline that is made anew, in the same process, from where the last one stopped.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from levada.runtime.progress import Progress

_REFUSED: Final = ("destination_", "staging_")
"""How the codes of errors begin that other keys may mend."""
_MADE: Final = ("Copying", "CatchingUp")
"""The steps in which there is something of a copy beside its table."""


class SecretFollower:
    """Looks at the files of a Secret; for one thread.

    By content: a mounted Secret's files are links into a folder that is put in the place of another.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._taken = self._seen = self._read()

    def changed(self) -> bool:
        """Tell whether it differs from what it was at first, by a content that two looks in a row have found.

        One that is not there, or cannot be read, has not changed.
        """
        content = self._read()
        stable, self._seen = content == self._seen, content
        return stable and content is not None and content != self._taken

    def _read(self) -> bytes | None:
        """Return a digest, so that no second copy of the secrets is kept; None for nothing to read."""
        if self._folder is None:
            return None
        try:
            files = [p for p in sorted(self._folder.iterdir()) if p.is_file()]
            parts = [part for p in files for part in (p.name.encode(), p.read_bytes())]
        except OSError:
            return None
        return hashlib.sha256(b"".join(b"%d:%s" % (len(p), p) for p in parts)).digest() if parts else None


def may_begin_anew(progress: Progress) -> bool:
    """Tell whether beginning anew costs no copy: none is made, or the destination refuses the keys that it has. Pure.

    A copy that goes on under the former keys is let go on: keys that change faster than it ends would never let it.
    """
    errors = [t.error for t in progress.tables] + [progress.capture.error, progress.error]
    if any(error is not None and error.code.startswith(_REFUSED) for error in errors):
        return True
    return not any(t.phase == "DataSync" or (t.resync is not None and t.resync.step in _MADE) for t in progress.tables)
