"""The state that a driver keeps of a table in OpenSearch."""

from __future__ import annotations

import pytest

from levada.destinations.opensearch.generations import Generation
from levada.destinations.opensearch.layout import Layout
from levada.destinations.opensearch.table_state import TableState
from levada.destinations.ownership import TableOwner
from levada.errors import DestinationChanged
from levada.values import Lsn, QualifiedTable, TableId, TableMode

OWNER = TableOwner("shop", "1", TableId(1), QualifiedTable("public", "orders"))
GENERATION = Generation("orders~1", "uuid", "orders", OWNER, Layout((), TableMode.UPSERT), (1,))


@pytest.mark.parametrize("found", [Lsn(99), None])
def test_a_watermark_that_has_moved_back_is_an_error(found: Lsn | None) -> None:
    """The changes between the two watermarks may not be staged any more."""
    state = TableState()
    state.saw(Lsn(50), GENERATION)
    state.saw(Lsn(100), GENERATION)
    state.saw(Lsn(100), GENERATION)
    with pytest.raises(DestinationChanged) as refused:
        state.saw(found, GENERATION)
    assert refused.value.code == "table_rolled_back"
