"""The checksums of a source table under an exported snapshot, computed by the server, one range per connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from levada import codes
from levada.copy.guard import TableGuard
from levada.copy.keyed_rows import KeyedRows
from levada.copy.plan import BlockRange, plan_ranges
from levada.copy.range_reader import snapshot_session
from levada.destinations.checksum_sql import ChecksumSql, at_places, joined_places, read_result
from levada.destinations.row_hashes import HashedRows
from levada.destinations.verification import CHUNKS, PART, PLACE, PLACES, Comparison
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.pgoutput.encoding import UnconvertibleTexts
from levada.postgres.catalog import PublishedTable
from levada.postgres.connection import PostgresConnection
from levada.postgres.conversion import unconvertible_texts
from levada.postgres.copy_out import copy_out
from levada.postgres.failures import source_errors
from levada.postgres.slots import ExportedSnapshot
from levada.threads import MarkedPool
from levada.values import OnUnrepresentable
from levada.verify.masked_rows import MaskedRows, is_masked

_LOCK_WAIT_MS: Final = 500
"""The longest wait for a lock, which a statement that waits for the guard's locks brings about. PostgreSQL looks for
deadlocks after a second, and may then end the other statement, which is an application's."""
_CANCEL_S: Final = 5.0
_PLACES_OF_ONE_READ: Final = 20_000
_GONE = frozenset({codes.TABLE_MISSING, codes.COLUMN_MISSING})


@dataclass(slots=True)
class SourceLoad:
    """The seconds for which the source's server was busy with the statements of a comparison."""

    seconds: float = 0.0


@dataclass(slots=True)
class SourceTable:
    """A published table in ``snapshot``, which the caller keeps open while ``guard`` holds the table's locks.

    ``connections`` is the maximum number of connections. With ``load``, the seconds are added up for which the server
    is busy, over one connection and without parallel workers, and a leaf is read as one range. If ``cancelled`` is set,
    the methods raise Transient ``verify_cancelled``. They raise Transient ``table_changed`` if the table changed since
    the snapshot.
    """

    connection: PostgresConnection
    snapshot: ExportedSnapshot
    published: PublishedTable
    connections: int
    policy: OnUnrepresentable
    guard: TableGuard
    cancelled: threading.Event
    mask_keys: MaskKeyFiles = NO_KEY_FILES
    load: SourceLoad | None = None
    _utf8: bool | None = field(default=None, init=False)
    _unconvertible: UnconvertibleTexts | None = field(default=None, init=False)

    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""
        if is_masked(comparison):
            masked = MaskedRows(comparison, self.mask_keys, ())
            return pa.concat_tables(self._masked_parts(masked, masked.chunks, CHUNKS))
        statements = self._sql(comparison)
        return self._read(statements.chunks, CHUNKS)

    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        if is_masked(comparison):
            masked = MaskedRows(comparison, self.mask_keys, comparison.key)
            return pa.concat_tables(
                self._masked_parts(masked, lambda rows: masked.by_key(rows, chunks), comparison.rows_schema)
            )
        statements = self._sql(comparison)
        return self._read(lambda part: statements.rows(part, chunks), comparison.rows_schema)

    def digests(self, comparison: Comparison, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, with the columns PLACE and PART."""
        if is_masked(comparison):
            masked = MaskedRows(comparison, self.mask_keys, ())
            tables = self._masked_parts(masked, lambda rows: masked.digests(rows, chunks), PLACES)
        else:
            statements = self._sql(comparison)
            tables = self._read_parts(lambda part: statements.digests(part, chunks), PLACES)
        parts = [pa.repeat(pa.scalar(i, pa.int32()), t.num_rows) for i, t in enumerate(tables)]
        return pa.concat_tables([t.append_column(PART, part) for t, part in zip(tables, parts, strict=True)])

    def rows_at(self, comparison: Comparison, places: pa.Table) -> pa.Table:
        """Return the checksums of some rows of `digests` by key, in the schema `Comparison.rows_schema`."""
        statements, ranges = self._sql(comparison), self.ranges
        found = [comparison.rows_schema.empty_table()]
        for number in _parts(places):
            part = ranges[number]
            wanted = joined_places(places.filter(pc.equal(places[PART], number))[PLACE])
            if is_masked(comparison):
                masked = MaskedRows(comparison, self.mask_keys, comparison.key)
                found.append(self._masked_part(masked, partial(masked.by_key, chunks=None), part, wanted))
            else:
                found.append(self._run(statements.rows_at(part, wanted), part, comparison.rows_schema))
        return pa.concat_tables(found)

    def reads(self, places: pa.Table) -> Iterator[KeyedRows]:
        """Return what reads these rows of `digests` whole."""
        for number in _parts(places):
            wanted = places.filter(pc.equal(places[PART], number))[PLACE]
            for first in range(0, len(wanted), _PLACES_OF_ONE_READ):
                some = wanted.slice(first, _PLACES_OF_ONE_READ)
                condition = at_places(joined_places(some))
                yield KeyedRows(self.ranges[number].leaf, condition, len(some), by_place=True)

    def values(self, comparison: Comparison, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, in the schema `Comparison.values_schema`."""
        if is_masked(comparison):
            masked = MaskedRows(comparison, self.mask_keys, comparison.columns)
            return pa.concat_tables(
                self._masked_parts(masked, lambda rows: masked.values(rows, hashes), comparison.values_schema)
            )
        statements, numbers = self._sql(comparison), hashes.to_pylist()
        return self._read(lambda part: statements.values(part, numbers), comparison.values_schema)

    @property
    def ranges(self) -> tuple[BlockRange, ...]:
        """The ranges of the table. Each row is in one of them."""
        if self.load is not None:
            # An index finds the keys of a range. Ranges of blocks would each search it.
            return tuple(BlockRange(leaf.name, 0, None, leaf.bytes) for leaf in self.published.leaves)
        return plan_ranges(self.published.leaves, self.connections)

    def last_key(self, comparison: Comparison, rows: int) -> tuple[str, ...] | None:
        """Return the key of the last of the first ``rows`` rows of the comparison's range, None if there are fewer."""
        parts = self.ranges
        if not parts:
            return None
        layout = pa.schema([(f"t{i}", pa.string()) for i in range(len(comparison.key))])
        found = self._run(self._sql(comparison).last_key(parts, rows), parts[0], layout).to_pylist()
        return tuple(found[0].values()) if found else None

    def _sql(self, comparison: Comparison) -> ChecksumSql:
        if self._utf8 is None:
            with snapshot_session(self.connection, self.snapshot, "verify") as conn, source_errors("reading a setting"):
                row = conn.execute("SELECT current_setting('server_encoding') = 'UTF8'").fetchone()
                if self.policy is OnUnrepresentable.NULL:
                    self._unconvertible = unconvertible_texts(self.connection, conn)
            self._utf8 = bool(row and row[0])
        return ChecksumSql(comparison, self.published.row_filter, self.policy, self._utf8, self._unconvertible)

    def _masked_parts(
        self, masked: MaskedRows, result: Callable[[HashedRows], pa.Table], layout: pa.Schema
    ) -> list[pa.Table]:
        """Return the result for each of `ranges`, in their order, of rows that are masked and hashed here."""
        return self._each_part(lambda part: self._masked_part(masked, result, part), layout)

    def _masked_part(
        self,
        masked: MaskedRows,
        result: Callable[[HashedRows], pa.Table],
        part: BlockRange,
        places: str | None = None,
    ) -> pa.Table:
        statement = self._sql(masked.comparison).unmasked(part, masked.shown, places)
        # One slice at a time, which bounds the memory that has values in clear.
        found = [result(masked.hashed(read_result(data, masked.layout))) for data in self._slices(statement, part)]
        return pa.concat_tables(found or [result(masked.hashed(masked.layout.empty_table()))])

    def _read(self, statement: Callable[[BlockRange], str], layout: pa.Schema) -> pa.Table:
        return pa.concat_tables(self._read_parts(statement, layout))

    def _read_parts(self, statement: Callable[[BlockRange], str], layout: pa.Schema) -> list[pa.Table]:
        return self._each_part(lambda part: self._run(statement(part), part, layout), layout)

    def _each_part(self, result: Callable[[BlockRange], pa.Table], layout: pa.Schema) -> list[pa.Table]:
        """Return the result for each of `ranges`, in their order. There is at least one."""

        def read(part: BlockRange) -> pa.Table:
            self.check()
            return result(part)

        with MarkedPool(max(1, self.connections), "levada-verify-source") as pool:
            try:
                tables = list(pool.map(read, self.ranges))
            finally:
                pool.shutdown(cancel_futures=True)
        self.check()
        return tables or [layout.empty_table()]

    def check(self) -> None:
        """Raise the error with which the reading must stop, if there is one."""
        if self.cancelled.is_set():
            raise Transient("verify_cancelled", f"the verification of {self.published.name} was cancelled")
        if (ended := self.guard.ended()) is not None:
            raise ended

    def _run(self, statement: str, part: BlockRange, layout: pa.Schema) -> pa.Table:
        text = bytearray()
        for data in self._slices(statement, part):
            text += data
        return read_result(text, layout)

    def _slices(self, statement: str, part: BlockRange) -> Iterator[bytearray]:
        """Yield the result of a statement as CSV, in slices of whole rows."""
        copy, begun = f"COPY ({statement}) TO STDOUT (FORMAT csv)".encode(), time.monotonic()
        try:
            with snapshot_session(self.connection, self.snapshot, "verify") as conn:
                try:
                    conn.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_MS}ms'")
                    if self.load is not None:
                        conn.execute("SET LOCAL max_parallel_workers_per_gather = 0")
                    for data, _ in copy_out(conn, copy, f"computing the checksums of {part.leaf}", self.check):
                        yield data
                except LevadaError:
                    # The server notices a closed connection only when it has an answer. Until then it would keep the
                    # table's lock, behind which an ALTER TABLE and all later statements wait.
                    with suppress(psycopg.Error):
                        conn.cancel_safe(timeout=_CANCEL_S)
                    raise
        except NeedsOperator as error:
            raise self._changed(error) from error
        finally:
            if self.load is not None:
                self.load.seconds += time.monotonic() - begun

    def _changed(self, error: NeedsOperator) -> LevadaError:
        if error.code not in _GONE:
            return error
        return Transient("table_changed", f"table {self.published.name} changed during its verification")


def _parts(places: pa.Table) -> list[int]:
    """Return the numbers of the ranges that have these rows. Without rows, there may be no column for them."""
    return pc.unique(places[PART]).to_pylist() if places.num_rows else []
