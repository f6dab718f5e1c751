"""Decoding alone: the columnar decoder and a plain per-message one, on the same bytes from a real PostgreSQL.

Prints microseconds per row, of the wall clock and of the CPU, the best of several passes. Usage::

    python benchmarks/decode.py [--rows 100000] [--slice 10000] [--passes 5]
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from levada.errors import DecodeError
from levada.local.postgres import EmbeddedPostgres
from levada.pgoutput.copybinary import CopyDecoder
from levada.pgoutput.decoder import Decoder
from levada.pgoutput.messages import HEADER, Relation
from levada.schema import Column, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId

COLUMNS = (
    "id bigint PRIMARY KEY, n int, a text, b text, p numeric(12,2), ts timestamptz, f bool, d float8, u uuid, j jsonb"
)
VALUES = (
    "g, g % 1000, 'name ' || g, repeat('x', 20) || g, g * 1.37, now() + g * interval '1 s', g % 3 = 0, g / 7.0, "
    "gen_random_uuid(), jsonb_build_object('k', g, 'v', 'value ' || g)"
)


class FixedSchema:
    def __init__(self, schema: ReplicatedTableSchema) -> None:
        self._schema = schema

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        return self._schema

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        return None

    def message(self, message: object, at: SnapshotId) -> None:
        return None

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        return None

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        raise error


class PerMessageDecoder:
    """A first, plain decoder: struct and a converter per value, lists per column, Arrow at the end."""

    def __init__(self, schema: ReplicatedTableSchema) -> None:
        self._kinds = [c.type for c in schema.columns]
        self._converters: list[Callable[[bytes], Any]] = [_CONVERTERS[k.kind.value] for k in self._kinds]

    def decode(self, messages: Sequence[bytes]) -> pa.RecordBatch:
        columns: list[list[Any]] = [[] for _ in self._kinds]
        lsns: list[int] = []
        commit_lsn = 0
        for message in messages:
            kind = message[HEADER]
            if kind == 66:
                commit_lsn = struct.unpack_from("!Q", message, HEADER + 1)[0]
            elif kind == 73:
                at = HEADER + 8
                for column, convert in zip(columns, self._converters, strict=True):
                    if message[at] == 116:
                        size = struct.unpack_from("!I", message, at + 1)[0]
                        at += 5
                        column.append(convert(message[at : at + size]))
                        at += size
                    else:
                        column.append(None)
                        at += 1
                lsns.append(commit_lsn)
        arrays = [pa.array(c, k.arrow) for c, k in zip(columns, self._kinds, strict=True)]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(lsns)], names=[*map(str, range(len(arrays))), "lsn"])


_CONVERTERS: dict[str, Callable[[bytes], Any]] = {
    "int8": int,
    "int4": int,
    "text": bytes.decode,
    "decimal": lambda v: decimal.Decimal(v.decode()),
    "timestamptz": lambda v: datetime.datetime.fromisoformat(v.decode()),
    "bool": lambda v: v == b"t",
    "float8": float,
    "uuid": bytes.decode,
    "json": bytes.decode,
}


def read_schema(conn: psycopg.Connection[Any]) -> ReplicatedTableSchema:
    rows = conn.execute(
        "SELECT attrelid::int8, attnum, attname, atttypid::int8, atttypmod, format_type(atttypid, atttypmod)"
        " FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    columns = tuple(Column(n, name, resolve_type(o, mod), shown, o, mod) for _, n, name, o, mod, shown in rows)
    return ReplicatedTableSchema(
        TableId(rows[0][0]), QualifiedTable("public", "t"), columns, IdentityKind.PRIMARY_KEY, (1,), (1,)
    )


def stream(conn: psycopg.Connection[Any], rows: int, per_transaction: int) -> list[bytes]:
    """Insert rows and return pgoutput's messages, as CopyData payloads."""
    conn.execute("TRUNCATE t")
    conn.execute("SELECT pg_create_logical_replication_slot('decode', 'pgoutput')")
    conn.execute(
        f"DO $$ BEGIN FOR k IN 0..{rows // per_transaction - 1} LOOP INSERT INTO t SELECT {VALUES}"
        f" FROM generate_series(k * {per_transaction} + 1, (k + 1) * {per_transaction}) g; COMMIT; END LOOP; END $$"
    )
    conn.execute("SELECT pg_switch_wal()")
    found = conn.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('decode', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p')",
        binary=True,
    ).fetchall()
    conn.execute("SELECT pg_drop_replication_slot('decode')")
    return [b"w" + struct.pack("!QQQ", lsn := Lsn.parse(text), lsn, 0) + data for text, data in found]


def copy(conn: psycopg.Connection[Any]) -> list[bytes]:
    with conn.cursor().copy("COPY t TO STDOUT (FORMAT binary)") as out:
        return [bytes(part) for part in out]


def copied(schema: ReplicatedTableSchema, parts: list[list[bytes]]) -> int:
    decoder = CopyDecoder(schema)
    return sum(decoder.decode(bytearray(b"".join(part)), [len(p) for p in part]).num_rows for part in parts)


def slices(messages: list[bytes], size: int) -> Iterator[list[bytes]]:
    for first in range(0, len(messages), size):
        yield messages[first : first + size]


def measure(run: Callable[[], int], passes: int) -> tuple[float, float]:
    """Return microseconds per row: wall clock and CPU, each the best of the passes."""
    wall, cpu = [], []
    for _ in range(passes):
        w, c = time.perf_counter(), time.process_time()
        rows = run()
        wall.append((time.perf_counter() - w) / rows * 1e6)
        cpu.append((time.process_time() - c) / rows * 1e6)
    return min(wall), min(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--slice", type=int, default=10_000, help="rows in a slice")
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as server:
        conn = psycopg.connect(server.uri(), autocommit=True, options="-c timezone=UTC")
        conn.execute(f"CREATE TABLE t ({COLUMNS})")
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        schema = read_schema(conn)
        results: list[tuple[str, str, float, float]] = []
        for per_transaction in (100, 1):
            messages = stream(conn, args.rows, per_transaction)
            size = args.slice if per_transaction == 100 else 3 * args.slice
            parts = list(slices(messages, size))

            def columnar(parts: list[list[bytes]] = parts) -> int:
                decoder = Decoder(FixedSchema(schema))
                return sum(decoder.decode(p).rows for p in parts)

            def plain(parts: list[list[bytes]] = parts) -> int:
                decoder = PerMessageDecoder(schema)
                return sum(decoder.decode(p).num_rows for p in parts)

            name = f"pgoutput, transactions of {per_transaction}"
            results.append((name, "columnar", *measure(columnar, args.passes)))
            results.append((name, "per message", *measure(plain, max(args.passes // 2, 1))))
        parts = list(slices(copy(conn), args.slice))
        results.append(("binary COPY", "columnar", *measure(lambda: copied(schema, parts), args.passes)))
    print(f"{'input':<32}{'decoder':<14}{'wall µs/row':>12}{'CPU µs/row':>12}")
    for name, decoder, wall, cpu in results:
        print(f"{name:<32}{decoder:<14}{wall:>12.2f}{cpu:>12.2f}")


if __name__ == "__main__":
    main()
