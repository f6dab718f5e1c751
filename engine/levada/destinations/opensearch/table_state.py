"""The state that this process keeps of one table. Everything in it can be read again from the cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from levada.destinations.opensearch.batches import Applied


@dataclass(slots=True)
class TableState:
    """The index that the alias points to, as this driver has claimed it, and the shadow copy. ``lock`` guards both."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    applied: Applied | None = None
    shadow: Applied | None = None

    def forget(self) -> None:
        """Discard the index. The next call reads it again."""
        self.applied = None
