"""A stop of a pipeline from its own calls: of the destination, of the store and of the selection of tables."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S

from levada.destinations.interface import NamedCut
from levada.segments.batch import EventBatch
from levada.stores import MemoryStorage, MemoryStore
from levada.stores.storage import Change, Key, Versions
from levada.values import Durability, Lsn, QualifiedTable, TableId, Watermark


class Stopping(Recording):
    """Stops its pipeline from one of its own calls, once a test wants that."""

    capabilities = replace(Recording.capabilities, cuts=True)

    def __init__(self, rig: Rig, call: str) -> None:
        super().__init__()
        self.rig, self.call = rig, call
        self.wanted = False
        self.returned: list[str] = []

    def stop_from(self, call: str) -> None:
        if self.wanted and call == self.call:
            assert self.rig.running is not None
            self.rig.running.stop()
            self.returned.append(call)

    def startup(self) -> None:
        self.stop_from("startup")

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        self.stop_from("write_events")
        return super().write_events(events, mark)

    def applied(self, table: TableId) -> Watermark | None:
        self.stop_from("applied")
        return super().applied(table)

    def maintain(self, table: TableId) -> None:
        self.stop_from("maintain")

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        self.stop_from("update_cuts")
        return {} if added is None else {added.name: added.lsn}

    def selects(self, table: QualifiedTable) -> bool:
        self.stop_from("selects")
        return table.name == "orders"

    def shutdown(self) -> None:
        self.stop_from("shutdown")


class StoppingStore(MemoryStorage):
    """Stops the pipeline from a write of the position, in a thread of capture."""

    def __init__(self, stopping: Stopping) -> None:
        super().__init__()
        self.stopping = stopping

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        if threading.current_thread().name == "levada-position":
            self.stopping.stop_from("store")
        return super().update(epoch, keys, change)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "call",
    ["startup", "write_events", "maintain", "update_cuts", "selects", "store", "shutdown"],
)
def test_any_call_may_stop_the_pipeline(rig: Rig, db: Database, call: str) -> None:
    """A stop from a thread that runs for the pipeline does not wait for itself. What the thread began is finished."""
    rig.destination = stopping = Stopping(rig, call)
    rig.store = lambda: MemoryStore("shop", StoppingStore(stopping))
    rig.change(selects=stopping.selects, maintenance_s=0.1, discovery_s=0.1)
    stopping.wanted = call == "startup"
    rig.start()
    assert rig.running is not None
    if not stopping.wanted:
        rig.wait_caught_up()
        stopping.wanted = True
        db.execute("INSERT INTO orders VALUES (11)")
        if call == "update_cuts":
            rig.running.request_cut("month_end")
        if call == "shutdown":
            rig.running.stop()
    assert rig.running.wait(LIMIT_S)
    assert call in stopping.returned
    if call == "write_events":
        assert stopping.applied_rows == {"orders": 1}
