"""Applies changes to a generation that has one document per change.

The id of a document has the change's position, so a replay writes the same documents.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.data_files.changelog import change_rows, truncate_rows
from levada.destinations.json_text import joined
from levada.destinations.opensearch.bulk import Bulk
from levada.destinations.opensearch.client import Client
from levada.destinations.opensearch.generations import Generation
from levada.destinations.opensearch.layout import one_array
from levada.destinations.opensearch.naming import writer_alias
from levada.destinations.opensearch.state import Progress
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OP, ORDINAL
from levada.segments.batch import TableEvents

ONLY_VERSION: Final = 1
"""The version of every document. A document of a changelog never changes."""


def append_changes(
    client: Client, generation: Generation, progress: Progress, events: TableEvents, schema: ReplicatedTableSchema
) -> None:
    """Write the changes from the watermark on."""
    after = int(progress.lsn or events.after)
    bulk = Bulk(client, writer_alias(generation.index, progress.epoch), generation.alias)
    for batch in events.scan():
        kept = batch.filter(pc.greater_equal(batch.column(COMMIT_LSN), after))
        if kept.num_rows:
            _write(bulk, generation, change_rows(kept, schema), schema)
    truncates = [t for t in events.truncates if int(t.commit_lsn) >= after]
    if truncates:
        _write(bulk, generation, truncate_rows(truncates, schema), schema)


def _write(bulk: Bulk, generation: Generation, rows: pa.Table, schema: ReplicatedTableSchema) -> None:
    position = [pc.cast(rows.column(name), pa.large_string()) for name in (COMMIT_LSN, ORDINAL, OP)]
    ids = one_array(joined(*position, separator="-"))
    for part, documents in generation.layout.documents(rows, schema):
        bulk.index(ids.slice(part.start, part.stop - part.start), documents, ONLY_VERSION)
