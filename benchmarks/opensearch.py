"""Copy and apply into OpenSearch, next to the bulk load of OpenSearch's own client.

    python -m benchmarks.opensearch [--url http://127.0.0.1:9200] [--rows 200000]

Without a URL it starts the node of the tests. Each side writes the same documents into an empty index with one shard
and no replica. CPU is that of this process, not of the node. The client is `opensearchpy.helpers.bulk`, which makes a
Python object per row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from opensearchpy import OpenSearch
from opensearchpy.helpers import bulk
from tests.servers.opensearch import opensearch

from levada.destinations import DestinationContext
from levada.destinations.opensearch import OpenSearchDestination
from levada.destinations.opensearch.settings import Settings
from levada.schema import Kind, ReplicatedTableSchema
from levada.testing import ArrowRows, Source, column, table

ORDERS = table(
    column(1, "id", Kind.INT8),
    column(2, "customer", Kind.TEXT),
    column(3, "total", Kind.DECIMAL, precision=12, scale=2),
    column(4, "placed", Kind.TIMESTAMPTZ),
    column(5, "paid", Kind.BOOL),
    column(6, "note", Kind.TEXT),
)


def orders(n: int) -> pa.Table:
    ids = np.arange(n)
    return pa.table(
        {
            "id": ids,
            "customer": pa.array([f"customer {i % 1000}" for i in ids]),
            "total": pa.array(ids % 100_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
            "placed": pa.array(ids * 1_000_000 + 1_600_000_000_000_000, pa.timestamp("us", "UTC")),
            "paid": pa.array(ids % 2 == 0),
            "note": pa.array([f'note "{i}" of some length, as notes are' for i in ids]),
        },
        schema=ORDERS.arrow,
    )


class Rows(ArrowRows):
    """The rows of one partition, without a conversion to Python."""

    def __init__(self, schema: ReplicatedTableSchema, rows: pa.Table) -> None:
        self.schema = schema
        self._rows = rows

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
        return [fn(pa.RecordBatchReader.from_batches(self.schema.arrow, self._rows.to_batches(max_chunksize=20_000)))]


def measured(name: str, rows: int, work: Callable[[], object]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:34} {rows / wall:10,.0f} rows/s {cpu / rows * 1e6:8.1f} CPU s per million rows")


def actions(rows: pa.Table, index: str) -> Iterator[dict[str, Any]]:
    for row in rows.to_pylist():
        row |= {"total": str(row["total"]), "placed": row["placed"].isoformat()}
        yield {"_op_type": "index", "_index": index, "_id": str(row["id"]), "_source": row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="")
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _cluster(given.url, Path(folder)) as url:
        compare(url, orders(given.rows), Path(folder))


def _cluster(url: str, folder: Path) -> AbstractContextManager[str]:
    return nullcontext(url) if url else opensearch(folder)


def compare(url: str, rows: pa.Table, folder: Path) -> None:
    prefix, n = f"benchmark-{int(time.time())}-", rows.num_rows
    settings = Settings.model_validate({"urls": [url], "prefix": prefix, "replicas": 0})
    destination = OpenSearchDestination.from_settings(settings, DestinationContext("benchmark", folder))
    destination.startup()
    source = Source()
    part = source.add(ORDERS)
    target, mark = part.target, source.mark(1000)
    measured("Levada, copy", n, lambda: destination.write_table_rows(target, Rows(ORDERS, rows), mark))
    client = OpenSearch([url], timeout=120)
    (index,) = client.indices.get_alias(name=f"{prefix}public.orders")
    properties = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
    body = {"settings": {"number_of_replicas": 0, "refresh_interval": "-1"}, "mappings": {"properties": properties}}
    client.indices.create(index=f"{prefix}client", body=body)
    load = actions(rows, f"{prefix}client")
    measured("opensearchpy.helpers.bulk", n, lambda: bulk(client, load, chunk_size=5000, max_chunk_bytes=5 << 20))
    changes = rows.slice(0, n // 4).to_pylist()
    with source.transaction():
        for row in changes:
            part.update(**{**row, "note": "changed"})
    batch = part.batch()
    end = source.mark(int(batch.until))
    measured("Levada, apply updates", len(changes), lambda: destination.write_events(batch, end))
    destination.shutdown()
    client.indices.delete(index=f"{prefix}*")


if __name__ == "__main__":
    main()
