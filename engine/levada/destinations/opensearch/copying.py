"""The rows of a copy, written to a generation by the processes that read them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.copy.rows import TableRows
from levada.destinations.json_text import joined
from levada.destinations.opensearch.bulk import Bulk
from levada.destinations.opensearch.changelog import ONLY_VERSION
from levada.destinations.opensearch.client import Address, Client
from levada.destinations.opensearch.generations import Generation, Generations
from levada.destinations.opensearch.ids import ids_of
from levada.destinations.opensearch.layout import COPY_PART, one_array
from levada.destinations.opensearch.naming import writer_alias
from levada.destinations.opensearch.versions import copy_version
from levada.errors import Transient
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OP
from levada.values import Lsn, TableMode


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one task: its number, and the count of its documents."""

    part: str
    rows: int


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes the rows of a partition. It is pickled, and may run more than once for a partition."""

    address: Address
    generation: Generation
    schema: ReplicatedTableSchema
    epoch: int
    snapshot: Lsn

    def __call__(self, reader: pa.RecordBatchReader) -> Written:
        """Write the rows, and return their count."""
        client, part, rows = self.address.open(), secrets.token_hex(8), 0
        try:
            for batch in reader:
                if batch.num_rows:
                    self._write(client, pa.Table.from_batches([batch]), part, rows)
                    rows += batch.num_rows
        finally:
            client.close()
        return Written(part, rows)

    def _write(self, client: Client, rows: pa.Table, part: str, before: int) -> None:
        bulk = Bulk(client, writer_alias(self.generation.index, self.epoch), self.generation.alias)
        layout, n = self.generation.layout, rows.num_rows
        if layout.mode is TableMode.UPSERT:
            names = [c.name for c in self.schema.key_columns]
            ids = ids_of([one_array(rows.column(name)) for name in names], self.schema)
            version = copy_version(self.snapshot)
        else:
            numbers = pc.cast(pa.array(np.arange(before, before + n)), pa.large_string())
            ids = joined(f"copy-{part}-", numbers)
            version = ONLY_VERSION
            constants = {OP: "I", COMMIT_LSN: int(self.snapshot), COPY_PART: part}
            for name, value in constants.items():
                rows = rows.append_column(name, pa.repeat(pa.scalar(value), n))
        for piece, documents in layout.documents(rows, self.schema):
            bulk.index(ids.slice(piece.start, piece.stop - piece.start), documents, version)


def copy_rows(
    generations: Generations,
    generation: Generation,
    schema: ReplicatedTableSchema,
    rows: TableRows,
    epoch: int,
    at: Lsn,
) -> None:
    """Write all rows to the generation, and compare their number with that of its documents.

    Raise Transient ``copy_incomplete`` if they differ, because another client has written to the index.
    """
    writer = PartitionWriter(generations.client.address, generation, schema, epoch, at)
    parts = rows.map_partitions(writer)
    if generation.layout.mode is TableMode.CHANGELOG:
        _remove_repeated(generations, generation, [p.part for p in parts])
    generations.refresh(generation)
    expected, found = sum(p.rows for p in parts), generations.count(generation)
    if expected != found:
        raise Transient(
            "copy_incomplete",
            f"{generation.alias}: {expected} rows were copied, but the new index {generation.index} has {found}"
            " documents, because another client has written to it",
        )


def _remove_repeated(generations: Generations, generation: Generation, parts: list[str]) -> None:
    """Remove the documents of tasks whose results were not used."""
    generations.refresh(generation)
    query = {"query": {"bool": {"must_not": {"terms": {COPY_PART: parts}}}}}
    generations.client.request(
        "POST",
        f"/{generation.index}/_delete_by_query",
        query,
        doing=f"removing repeated documents of {generation.alias}",
        seconds=600,
        conflicts="proceed",
    )
