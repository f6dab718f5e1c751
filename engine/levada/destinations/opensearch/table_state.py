"""The state that this process keeps of one table. Everything in it can be read again from the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from levada.destinations.fenced import TableState
from levada.destinations.opensearch.batches import Applied


@dataclass(slots=True, eq=False)
class IndexState(TableState):
    """The index that the alias points to, as this driver has claimed it, and the shadow copy."""

    applied: Applied | None = None
    shadow: Applied | None = None

    def forget(self) -> None:
        """Discard the index, and its watermark. The shadow copy stays."""
        self.applied = self.seen = None
