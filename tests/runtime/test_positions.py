"""The positions that tables get at a start."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.recording import Recording
from tests.runtime.one_table import NAME, TABLE, config_ref

from levada.copy.kept import KeptCopy
from levada.copy.plan import RangePlan
from levada.postgres.catalog import StreamedTable
from levada.postgres.membership import PublicationState
from levada.runtime.tables.kept_copies import store_kept_copy
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.source_tables import SourceTables
from levada.segments.ledger import Ledger
from levada.stores import MemoryStore
from levada.stores.phases import Init
from levada.values import Lsn

SINCE = Lsn(100)


@pytest.mark.parametrize(("newest", "continued"), [(SINCE, True), (Lsn(101), False)])
def test_an_interrupted_copy_needs_the_changes_since_its_beginning(
    tmp_path: Path, newest: Lsn, continued: bool
) -> None:
    """If a segment of the table that ends later is not staged any more, the copy begins again."""
    store = MemoryStore("shop")
    store.next_epoch()
    store.update_table_replication_states({TABLE: Init()})
    store_kept_copy(store, TABLE, KeptCopy("basis", "place", SINCE, RangePlan((), 1), {}))
    ledger = Ledger({TABLE: newest})
    registry = TableRegistry(
        config_ref(tmp_path), store, Recording(), lambda: 1, lambda table, columns, masks: None, ledger
    )
    published = (StreamedTable(TABLE, NAME),)
    found = SourceTables(published, PublicationState("levada_shop", None, {}, {}))
    registry.membership.adopt(found, (), resync=False)
    copy = registry.tables[TABLE].copy
    assert (copy.interrupted is not None) is continued
    assert registry.backlog.holds(TABLE) is continued
    assert copy.began_again == ("" if continued else "the copy began again, because staged changes are missing")
