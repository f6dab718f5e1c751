"""The state that this process keeps of one table. Everything in it can be read again from the cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from levada.destinations.fenced import rolled_back
from levada.destinations.opensearch.batches import Applied
from levada.destinations.opensearch.generations import Generation
from levada.values import Lsn, resync_command


@dataclass(slots=True)
class TableState:
    """The index that the alias points to, as this driver has claimed it, and the shadow copy. ``lock`` guards both."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    applied: Applied | None = None
    shadow: Applied | None = None
    seen: Lsn | None = None
    """The last watermark that this driver has written or read."""

    def saw(self, lsn: Lsn | None, generation: Generation) -> None:
        """Remember the stored watermark. Raise DestinationChanged ``table_rolled_back`` if it has moved back."""
        if self.seen is not None and (lsn is None or lsn < self.seen):
            raise rolled_back(generation.alias, resync_command(generation.owner.source_name))
        self.seen = lsn

    def forget(self) -> None:
        """Discard the index. The next call reads it again."""
        self.applied = None
