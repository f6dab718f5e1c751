"""A copy and batches of changes into PostgreSQL: this destination and the server's own bulk load, in one run.

Both write a table of the same rows and key into an embedded PostgreSQL, and get the same batches: 70 % updates, 10 %
deletes, 20 % inserts. The server's side of a copy is one COPY of a prepared text, into a table with the key and into
one that gets its key afterwards. That of a batch is COPY into a temporary table, then DELETE and INSERT ... ON
CONFLICT. Prints CPU seconds of the client, and of the server in its own column. Usage::

    python -m benchmarks.postgres [--rows 1000000] [--changes 10 100000] [--turns 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString, TypeVar

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.apply import PARTITION, PIPELINE, SHAPES, TARGET, Base, Batch, FileEvents, Source, rows_of
from benchmarks.measure import Meter, table

from levada.destinations import DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.copy_text import copy_rows
from levada.destinations.postgres.settings import Settings
from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.schema.changes import OP
from levada.values import Lsn, Watermark

T = TypeVar("T")
OURS: LiteralString = "copied.orders"
THEIRS: LiteralString = "loaded.orders"
BLOCK = 1 << 20


class Prepared(Base):
    """Rows that are in memory already, because it is no part of a copy to make them up."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        starts = range(1, rows + 1, PARTITION)
        self.parts = [rows_of(np.arange(i, min(i + PARTITION, rows + 1)), 0) for i in starts]

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        return [fn(part.to_reader()) for part in self.parts]


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock, and CPU seconds of the client and of the server."""

    wall: float
    client: float
    server: float


def measured(server: EmbeddedPostgres, run: Callable[[], object]) -> Cost:
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    with Meter(postmaster) as theirs, Meter() as ours:
        run()
    return Cost(ours.usage.wall, ours.usage.cpu, theirs.usage.cpu)


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(getattr(c, n) for c in costs) for n in ("wall", "client", "server")))


def load(server: EmbeddedPostgres, text: Path, *, key_first: bool) -> None:
    key = f"ALTER TABLE {THEIRS} ADD PRIMARY KEY (id)"
    with psycopg.connect(server.uri()) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {THEIRS}")
        connection.execute(f"CREATE TABLE {THEIRS} (LIKE {OURS})")
        if key_first:
            connection.execute(key)
        with connection.cursor() as cursor, cursor.copy(f"COPY {THEIRS} FROM STDIN") as copy, text.open("rb") as file:
            while block := file.read(BLOCK):
                copy.write(block)
        if not key_first:
            connection.execute(key)
        connection.execute(f"ANALYZE {THEIRS}")


def change(connection: psycopg.Connection, text: Path) -> None:
    names: LiteralString = ", ".join(SHAPES)
    updates: LiteralString = ", ".join(f"{n} = excluded.{n}" for n in SHAPES if n != "id")
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE changes (op text, LIKE {THEIRS}) ON COMMIT DROP")
        with cursor.copy(f"COPY changes (op, {names}) FROM STDIN") as copy:
            copy.write(text.read_bytes())
        cursor.execute(f"DELETE FROM {THEIRS} t USING changes c WHERE t.id = c.id AND c.op = 'D'")
        cursor.execute(
            f"INSERT INTO {THEIRS} ({names}) SELECT {names} FROM changes WHERE op <> 'D'"
            f" ON CONFLICT (id) DO UPDATE SET {updates}"
        )


def compare_copies(server: EmbeddedPostgres, destination: PostgresDestination, rows: int, turns: int) -> None:
    prepared, text = Prepared(rows), server.data / "orders.txt"
    mark = Watermark(PIPELINE, 1, Lsn(1000))
    costs: dict[str, list[Cost]] = {"Levada, one task": [], "COPY, then the key": [], "COPY into the key": []}
    for _ in range(turns):
        destination.drop_table_for_copy(TARGET)
        ours = measured(server, lambda: destination.write_table_rows(TARGET, prepared, mark))
        _write(text, (bytes(b) for part in prepared.parts for b in copy_rows(part)))
        last, first = (measured(server, lambda k=k: load(server, text, key_first=k)) for k in (False, True))
        for name, cost in zip(costs, (ours, last, first), strict=True):
            costs[name].append(cost)
    lines = []
    for name, all_turns in costs.items():
        cost = median(all_turns)
        lines.append([name, int(rows / cost.wall), cost.client / rows * 1e6, cost.server / rows * 1e6])
    print(table(["copy", "rows/s", "client CPU s/M", "server CPU s/M"], lines), end="\n\n")


def compare_batches(
    server: EmbeddedPostgres,
    destination: PostgresDestination,
    source: Source,
    changes: list[int],
    turns: int,
) -> None:
    seed, lines = 1, []
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        for n in changes:
            costs: dict[str, list[Cost]] = {"Levada": [], "COPY, DELETE and INSERT": []}
            for turn in range(turns + 1):
                events = source.batch(n, seed)
                text = _text_of(events)
                mark = Watermark(PIPELINE, 1, events.until)
                seed += 1
                both = (
                    measured(server, lambda e=events, m=mark: destination.write_events(Batch(e), m)),
                    measured(server, lambda t=text: change(connection, t)),
                )
                for name, cost in zip(costs, both, strict=True):
                    costs[name] += [cost] if turn else []
            for name, all_turns in costs.items():
                cost = median(all_turns)
                lines.append([n, name, int(n / cost.wall), cost.wall, cost.client, cost.server])
    print(table(["changes", "by", "changes/s", "wall s", "client CPU s", "server CPU s"], lines))


def _text_of(events: FileEvents) -> Path:
    rows = pq.read_table(events.path, columns=[OP, *SHAPES])
    return _write(events.path.with_suffix(".txt"), (bytes(b) for b in copy_rows(rows.combine_chunks())))


def _write(path: Path, blocks: Iterable[bytes]) -> Path:
    with path.open("wb") as file:
        file.writelines(blocks)
    return path


def compare(server: EmbeddedPostgres, rows: int, changes: list[int], turns: int, folder: Path) -> None:
    os.environ["PGUSER"] = "postgres"
    place = {"host": "127.0.0.1", "port": server.port, "database": "postgres", "schema": "copied"}
    settings = Settings.model_validate({**place, "tls": {"mode": "Disable"}})
    destination = PostgresDestination.from_settings(settings, DestinationContext(PIPELINE, folder / "work"))
    destination.startup()
    with psycopg.connect(server.uri()) as connection:
        connection.execute("CREATE SCHEMA loaded")
    compare_copies(server, destination, rows, turns)
    source = Source(rows, folder)
    compare_batches(server, destination, source, changes, turns)
    sums = "SELECT count(*), count(DISTINCT id), sum(hashtextextended(t::text, 0)::numeric) FROM "
    with psycopg.connect(server.uri()) as connection:
        found = [connection.execute(f"{sums}{name} t").fetchone() for name in (OURS, THEIRS)]
    assert found[0] == found[1], f"the two tables differ: {found}"
    assert found[0] is not None
    assert found[0][0] == len(source.live), "rows are missing or twice there"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[10, 100_000])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with temporary_postgres() as server, tempfile.TemporaryDirectory() as folder:
        compare(server, options.rows, options.changes, options.turns, Path(folder))


if __name__ == "__main__":
    main()
