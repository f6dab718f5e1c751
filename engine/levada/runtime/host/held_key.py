"""Another key of masks that waits for an approval, while the former one stays in effect.

The Secret has the new key already, and the process still knows the former one.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada import codes
from levada.errors import LevadaError
from levada.runtime.host.approval import require_approval, require_key_approval
from levada.runtime.host.secret_watcher import SecretWatcher
from levada.runtime.report.snapshot import fatal_progress
from levada.spec import Manifests
from levada.status import ErrorProgress

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
"""Seconds after which the question is asked again that the store or the source did not answer."""


@dataclass(slots=True)
class HeldKey:
    """Whether a run holds the changed key of its Secret back. For one thread, except for ``request``.

    ``request`` says what waits, with the command that approves it. None: no key waits.
    """

    request: ErrorProgress | None = None
    _asked: tuple[object, ...] = ()
    _again_at: float = 0.0

    def waits(
        self, watcher: SecretWatcher, manifests: Manifests, *, secrets: Path | None, work_dir: Path, approved: str
    ) -> bool:
        """Return True if the Secret's changed key waits, because it copies the masked tables again.

        It is asked once for each content of the Secret, each approval and each rule of the manifest. ``approved`` is
        the approval of a cluster.
        """
        spec = manifests.pipeline.spec
        asked = (watcher.content, approved, spec.approval, spec.approval_above)
        if asked == self._asked and time.monotonic() < self._again_at:
            return self.request is not None
        self._asked, self._again_at = asked, float("inf")
        try:
            require_approval(manifests, secrets=secrets, work_dir=work_dir)
            require_key_approval(manifests, secrets=secrets, work_dir=work_dir, approved=approved)
        except LevadaError as error:
            # Also while the store or the source is away.
            found = fatal_progress(error)
            if found != self.request:
                _log.warning("the changed key of masks waits for a restart or an approval: %s", error)
            self.request = found
            if error.code != codes.APPROVAL_REQUIRED:
                self._again_at = time.monotonic() + _AGAIN_S
        else:
            self.request = None
        return self.request is not None

    def set_back(self) -> None:
        """Record that the Secret has the key again that is in effect. Any other one is asked for again."""
        self.request, self._asked = None, ()
