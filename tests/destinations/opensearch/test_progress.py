"""The progress of a batch of several pieces, with a node that is made up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

from levada.destinations.opensearch.client import Client
from levada.destinations.opensearch.generations import Generation
from levada.destinations.opensearch.layout import Layout
from levada.destinations.opensearch.state import Progress, State
from levada.destinations.opensearch.upsert import Upsert
from levada.destinations.ownership import TableOwner
from levada.schema import Kind
from levada.segments.limits import BatchLimits
from levada.testing import Source, column, table
from levada.values import Lsn, TableMode

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT))
VERSION = re.compile(rb'"version":(\d+)')


@dataclass
class Node:
    """A node that accepts every write. ``writes`` has the versions of documents and of the progress, in order."""

    writes: list[tuple[str, int]] = field(default_factory=list)

    def request(self, method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        """Answer a request."""
        if not path.endswith("/_bulk"):
            self.writes.append(("progress", body["version"]))
            return {"_seq_no": len(self.writes), "_primary_term": 1}
        actions = VERSION.findall(body)
        self.writes += (("document", int(version)) for version in actions)
        return {"items": [{"index": {"status": 200}} for _ in actions]}


def test_progress_never_covers_documents_that_are_not_written() -> None:
    """A replay after a crash begins with the piece that was interrupted."""
    orders = Source(row_group_bytes=1, limits=BatchLimits(piece_rows=2)).add(ORDERS)
    for number in range(6):
        orders.insert(id=number, item="a")
    node = Node()
    client = cast(Client, node)
    owner = TableOwner("shop", "1", ORDERS.id, ORDERS.name)
    generation = Generation("orders~1", "uuid", "orders", owner, Layout.of(ORDERS, TableMode.UPSERT), (1,))
    upsert = Upsert(
        client, State(client, "levada", "shop", 0), generation, Progress("orders~1", "uuid", 1, Lsn(0)), ORDERS
    )
    upsert.run(orders.batch().changes(ORDERS.id))
    written = -1
    for what, version in node.writes:
        written = max(written, version) if what == "document" else written
        assert what == "document" or version <= written
    assert [what for what, _ in node.writes].count("progress") > 1
