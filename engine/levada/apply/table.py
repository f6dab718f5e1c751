"""One batch of one table, or of all tables together, to the destination."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from levada.destinations import Destination
from levada.segments.manifest import Manifest
from levada.segments.staged import StagedBatch
from levada.segments.staging import Staging
from levada.values import Durability, Lsn, OnUnrepresentable, TableId, Watermark

_ASK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch came to: everything below ``until`` is durable; ``seconds`` is what it took."""

    until: Lsn
    rows: int
    unrepresentable: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Applier:
    """What it takes to apply segments of one pipeline. Called from several threads, never for one table from two."""

    pipeline: str
    epoch: int
    staging: Staging
    destination: Destination
    policy: OnUnrepresentable
    stopping: threading.Event

    def run(self, positions: Mapping[TableId, Lsn], manifests: Sequence[Manifest]) -> Applied:
        """Apply the manifests' changes of these tables, each from its position on; return once it is durable.

        Raise what the destination raises. A stop while a destination has only accepted the batch leaves the positions
        where they were: it is applied again.
        """
        began = time.monotonic()
        until = manifests[-1].end_lsn
        batch = StagedBatch(self.staging, manifests, positions, until, policy=self.policy)
        mark = Watermark(self.pipeline, self.epoch, until)
        durability = self.destination.write_events(batch, mark)
        if durability is not Durability.DURABLE:
            settle(self.destination, StagedBatch(self.staging, (), positions, until, policy=self.policy), mark, self.stopping)
        rows = sum(f.rows for m in manifests for f in m.files if f.table in positions)
        return Applied(until, rows, batch.unrepresentable, time.monotonic() - began)


def settle(destination: Destination, empty: StagedBatch, mark: Watermark, stopping: threading.Event) -> None:
    """Ask until what was accepted is durable; raise InterruptedError when the pipeline stops before."""
    while destination.write_events(empty, mark) is not Durability.DURABLE:
        if stopping.wait(_ASK_AGAIN_S):
            raise InterruptedError("stopped before the destination made its writes durable")
