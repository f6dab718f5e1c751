"""Tables whose destination is beyond what the source was verified to, after the server was restarted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.recording import Recording

from levada.postgres.catalog import PublishedTable
from levada.postgres.connection import PostgresConnection
from levada.postgres.membership import PublicationState
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.live import LiveConfig
from levada.runtime.roster import Roster
from levada.runtime.source import SourceTables
from levada.stores import MemoryStore
from levada.stores.phases import Errored, FinishedCopy, Init, Ready, TableReplicationPhase
from levada.values import Lsn, QualifiedTable, TableId


@pytest.mark.parametrize(("phase", "becomes"), [(FinishedCopy(Lsn(200)), Init), (Ready(), Errored)])
def test_a_copy_that_the_stream_has_not_reached_is_made_again(
    tmp_path: Path, phase: TableReplicationPhase, becomes: type[TableReplicationPhase]
) -> None:
    """A crash of server and engine between a copy and its first change parks nothing. A Ready table is parked."""
    id_, name = TableId(1), QualifiedTable("public", "orders")
    config = PipelineConfig(
        "shop", PostgresConnection("localhost", 5432, "shop"), SlotConfig("levada_shop"),
        PublicationConfig("levada_shop"), StagingConfig(f"file://{tmp_path}"), tmp_path, selects=lambda table: True,
    )  # fmt: skip
    store = MemoryStore("shop")
    store.next_epoch()
    store.update_table_replication_states({id_: phase})
    roster = Roster(LiveConfig(config), store, Recording(), lambda: 1)
    found = SourceTables(
        (PublishedTable(id_, name, "r", (), None, None),), PublicationState("levada_shop", None, {}, {})
    )
    roster.adopt(found, (), resync=False, verified_to=Lsn(100))
    record = roster.tables[id_]
    roster.step(record)
    roster.locate(record, Lsn(200))
    assert isinstance(record.phase, becomes)
    assert isinstance(store.get_table_replication_state(id_), becomes)
