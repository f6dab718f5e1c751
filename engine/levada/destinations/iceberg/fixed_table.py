"""One snapshot of an Iceberg table, whose checksums Spark computes by Iceberg's own reader.

The reader is the one of Spark's users, and shares no code with the writing side. The canonical text of values is
defined in `levada.destinations.verification`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from levada import codes
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.iceberg.damage import changed_files
from levada.destinations.iceberg.java import java_errors
from levada.destinations.iceberg.metadata import VERIFY_TAG, Property
from levada.destinations.iceberg.spark_checksums import (
    COUNT,
    count_rows,
    frame_name,
    hash_of,
    joined,
    json_text,
    quoted,
    split_options,
    sum_of,
)
from levada.destinations.iceberg.spark_ranges import in_range
from levada.destinations.iceberg.spark_text import canonical_text, frame
from levada.destinations.verification import (
    CHUNK,
    CHUNKS,
    DIGEST,
    DIGESTS,
    KEY,
    KEY_HASH,
    ROWS,
    SAMPLE_PARTS,
    Comparison,
    FixedTable,
    column_digest,
    column_value,
)
from levada.errors import DestinationChanged, LevadaError, Transient
from levada.schema import Column, Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OP, ORDINAL
from levada.schema.kept_rows import DELETED_AT_ATTNUM
from levada.values import Lsn, TableMode

if TYPE_CHECKING:
    from levada.destinations.iceberg.java import JavaObject
    from levada.destinations.iceberg.schema import IcebergSchema
    from levada.destinations.iceberg.table import IcebergTable

_log = logging.getLogger(__name__)

_WANTED: Final = "_levada_wanted"
_FILE: Final = "file"
_POSITION: Final = "position"
PLACES: Final = pa.schema([*DIGESTS, (_FILE, pa.int64()), (_POSITION, pa.int64())])
"""The result of `IcebergSnapshot.digests`. A file is a number here, because its path is longer than a row's hashes."""
_ROWS_AT_ONCE: Final = 65_536


class IcebergSnapshot(FixedTable):
    """The rows of one snapshot.

    ``session`` is a session of its own, as `verification_session` returns it, with the catalog's name ``catalog``.
    ``lock`` is held for each use of ``table``. ``tags`` has the names of the tags that are in use by this process.
    """

    def __init__(
        self,
        session: SparkSession,
        table: IcebergTable,
        catalog: str,
        lock: AbstractContextManager[object],
        tags: set[str],
        *,
        keeps_columns: bool,
    ) -> None:
        self._java_table, self._lock, self._tags = table, lock, tags
        metadata = table.metadata
        self._session = session
        self._name = ".".join(map(quoted, (catalog, *table.name.namespace, table.name.name)))
        self._table = str(table.name)
        self.snapshot = metadata.snapshot_id
        self.lost: tuple[str, ...] = ()
        """The paths of files that were found to be missing or damaged."""
        held = metadata.schemas.get(table.current_schema_id() or 0, {})
        current = {f.id: f.name for f in metadata.layout.fields}
        attnums = metadata.layout.attnums
        self.columns = {a: current[i] for a, i in attnums.items() if i in current}
        self.applied = metadata.mark.lsn if metadata.mark is not None else Lsn(0)
        self.keeps_columns = keeps_columns
        self.estimated_rows = metadata.facts.rows
        self._split = split_options(metadata.facts, session.sparkContext.defaultParallelism)
        self.is_history = metadata.properties.get(Property.MODE.value) == TableMode.CHANGELOG.value
        self._read_as = {a: held.get(i) for a, i in attnums.items()}
        """The name of each column in the snapshot's schema. None if it is newer than the snapshot, and so NULL."""

    def tag(self) -> None:
        """Keep the snapshot from expiry by a tag. Remove the tags of verifications that were killed."""
        former = [name for name in self._java_table.metadata.refs if name.startswith(VERIFY_TAG)]
        tags = {} if self.snapshot is None else {self._tag: self.snapshot}
        self._tags.update(tags)
        if tags or former:
            self._java_table.set_tags(tags, [name for name in former if name not in tags])

    @property
    def _tag(self) -> str:
        return f"{VERIFY_TAG}{self.snapshot}"

    def close(self) -> None:
        """Remove the tag. A failure is logged, because maintenance and the next verification remove it too."""
        try:
            with self._lock:
                self._tags.discard(self._tag)
                self._java_table.refresh()
                if self._tag in self._java_table.metadata.refs:
                    self._java_table.set_tags({}, [self._tag])
        except LevadaError as error:
            _log.warning("the tag of a verification of %s stays for now: %s", self._table, error)

    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""
        if self.snapshot is None:
            return CHUNKS.empty_table()
        return self._chunks(comparison)

    def _chunks(self, comparison: Comparison, rows: DataFrame | None = None) -> pa.Table:
        chunks = self._hashed(comparison, rows=rows).groupBy((sf.col(KEY_HASH) % comparison.chunks).alias(CHUNK))
        return self._collect(chunks.agg(count_rows(), sum_of(sf.col(DIGEST), DIGEST)), CHUNKS)

    def chunks_after(self, comparison: Comparison, former: FixedTable, known: pa.Table) -> pa.Table:
        """Return what `chunks` does, from what was read of ``former`` and the files that only one of the two has.

        A data file that both have with the same deletes has the same rows, because no file is ever changed.
        """
        assert isinstance(former, IcebergSnapshot)
        if self.snapshot is None or former.snapshot is None:
            return self.chunks(comparison)
        with self._lock:
            self._java_table.refresh()
            before, after, few = self._java_table.files_between(former.snapshot, self.snapshot)
        if not few:
            return self.chunks(comparison)
        sums = [known]
        for snapshot, paths, sign in ((former.snapshot, before, -1), (self.snapshot, after, 1)):
            if paths:
                with self._files(snapshot, paths) as rows:
                    found = self._chunks(comparison, rows)
                sums.append(_signed(found, sign))
        whole = pa.concat_tables(sums).group_by(CHUNK).aggregate([(ROWS, "sum"), (DIGEST, "sum")])
        whole = whole.rename_columns({f"{name}_sum": name for name in (ROWS, DIGEST)})
        return whole.select(CHUNKS.names).cast(CHUNKS)

    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        if self.snapshot is None:
            return comparison.rows_schema.empty_table()
        return self._by_key(comparison, self._in_chunks(comparison, self._hashed(comparison), chunks))

    def _by_key(self, comparison: Comparison, hashed: DataFrame) -> pa.Table:
        digests = [sum_of(hash_of(sf.col(frame_name(c))), column_digest(c.attnum)) for c in comparison.columns]
        rows = hashed.groupBy(KEY_HASH).agg(
            sf.min(KEY).alias(KEY), count_rows(), sum_of(sf.col(DIGEST), DIGEST), *digests
        )
        return self._collect(rows, comparison.rows_schema)

    def digests(self, comparison: Comparison, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema `PLACES`."""
        if self.snapshot is None:
            return PLACES.empty_table()
        hashed = self._hashed(comparison, _path_hash().alias(_FILE), sf.col("_pos").alias(_POSITION))
        return self._collect(hashed if chunks is None else self._in_chunks(comparison, hashed, chunks), PLACES)

    def rows_at(self, comparison: Comparison, places: pa.Table) -> pa.Table:
        """Return the checksums of some rows of `digests` by key, in the schema `Comparison.rows_schema`."""
        if self.snapshot is None or not places.num_rows:
            return comparison.rows_schema.empty_table()
        paths = self.paths_of(places[_FILE])
        with self._files(self.snapshot, list(paths.values())) as rows:
            # These are all rows with their keys. The set of files has no positions of rows in each format version.
            return self._by_key(comparison, self._of_keys(comparison, places[KEY_HASH], rows=rows))

    def paths_of(self, numbers: pa.ChunkedArray) -> dict[int, str]:
        """Return the path of each file with a number in the result of `digests`."""
        assert self.snapshot is not None
        with self._lock:
            self._java_table.refresh()
            paths = self._java_table.data_paths(self.snapshot)
        known = self._table_of(pa.table({"_file": pa.array(paths, pa.string())}))
        hashed = self._collect(known.select(_path_hash().alias(_FILE)), pa.schema([PLACES.field(_FILE)]))
        by_number = dict(zip(hashed[_FILE].to_pylist(), paths, strict=True))
        return {number: by_number[number] for number in pc.unique(numbers).to_pylist()}

    @contextmanager
    def _files(self, snapshot: int, paths: Sequence[str]) -> Iterator[DataFrame]:
        """Yield the rows of some data files of a snapshot, with the table's current columns."""
        with self._lock:
            staged = self._java_table.staged(snapshot, paths)
            name = staged.__enter__()
        try:
            yield self._related(lambda iceberg: iceberg.spark.source.SparkRewriteTable(self._java_table.java, name))
        finally:
            with self._lock:
                staged.__exit__(None, None, None)

    def _related(self, table: Callable[[JavaObject], JavaObject]) -> DataFrame:
        """Return the rows of a table of Spark that no catalog has."""
        jvm, java = self._session._jvm, self._session._jsparkSession
        assert jvm is not None
        sql, none = jvm.org.apache.spark.sql, jvm.scala.Option.empty()
        source = table(jvm.org.apache.iceberg)
        relation = sql.execution.datasources.v2.DataSourceV2Relation.create(source, none, none)
        return DataFrame(sql.classic.Dataset.ofRows(java, relation), self._session)

    def _in_chunks(self, comparison: Comparison, hashed: DataFrame, chunks: Sequence[int]) -> DataFrame:
        # A condition with thousands of numbers takes seconds to be planned.
        wanted = sf.broadcast(self._table_of(pa.table({CHUNK: pa.array(chunks, pa.int64())})))
        return hashed.join(wanted, sf.col(KEY_HASH) % comparison.chunks == wanted[CHUNK], "left_semi")

    def _table_of(self, rows: pa.Table) -> DataFrame:
        with self._reading():
            return self._session.createDataFrame(rows)

    def values(self, comparison: Comparison, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, as text for people, in `values_schema`."""
        if self.snapshot is None:
            return comparison.values_schema.empty_table()
        texts = [self._readable(c).alias(column_value(c.attnum)) for c in comparison.columns]
        return self._collect(self._of_keys(comparison, hashes, *texts), comparison.values_schema)

    def _readable(self, column: Column) -> SparkColumn:
        value = self._value(column)
        return sf.concat(sf.lit("\\x"), sf.hex(value)) if column.type.kind is Kind.BYTEA else value.cast("string")

    def _of_keys(
        self, comparison: Comparison, hashes: pa.Array, *more: SparkColumn, rows: DataFrame | None = None
    ) -> DataFrame:
        wanted, hashed = self._table_of(pa.table({_WANTED: hashes})), self._hashed(comparison, *more, rows=rows)
        return hashed.join(wanted, sf.col(KEY_HASH) == sf.col(_WANTED), "left_semi")

    def _collect(self, rows: DataFrame, layout: pa.Schema) -> pa.Table:
        with self._reading():
            return rows.select(*layout.names).toArrow().cast(layout)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with java_errors(f"read {self._table}"):
                yield
        except LevadaError as error:
            raise self._damage(error) from error

    def check_files(self, former: FixedTable | None = None) -> None:
        """Read all files, also what Spark does not look at: checksums, and the counts and bounds for filters.

        Those of ``former`` have been read already. If another writer removed the snapshot, its files may be missing,
        but those of the table are not.
        """
        if self.snapshot is None:
            return
        with self._lock:
            self._java_table.refresh()
            if self.snapshot not in self._java_table.metadata.snapshots:
                raise Transient("table_changed", f"another writer removed a snapshot of {self._table} that was read")
            files, vectors = self._java_table.content_of(self.snapshot)
            before = former.snapshot if isinstance(former, IcebergSnapshot) else None
            if before is not None and before in self._java_table.metadata.snapshots:
                read, read_vectors = self._java_table.content_of(before)
                known = {f.path for f in read} | {(v.path, v.data_file) for v in read_vectors}
                files = [f for f in files if f.path not in known]
                vectors = [v for v in vectors if (v.path, v.data_file) not in known]
            storage = self._java_table.storage()
        if lost := changed_files(self._session, storage, files, vectors, self._table):
            raise self._lost(lost)

    def _damage(self, error: LevadaError) -> LevadaError:
        """Return the error of a damaged file if there is one, because Spark's may not name it."""
        assert self.snapshot is not None
        try:
            self.check_files()
            with self._lock:
                lost = self._java_table.damaged_files(self.snapshot)
        except (DestinationChanged, Transient) as found:
            if found.code in (codes.TABLE_DAMAGED, codes.TABLE_CHANGED):
                return found
            # The storage does not answer, so this says nothing about the files.
            _log.info("%s: the files are not read again: %s", self._table, found.message)
            return error
        return self._lost(lost) if lost else error

    def _lost(self, lost: list[str]) -> DestinationChanged:
        self.lost = tuple(lost)
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return DestinationChanged(
            "table_damaged",
            f"a file of {self._table} is missing or damaged: {lost[0]}{more}",
            hint="copy the table again: levada resync MANIFEST TABLE",
        )

    def _hashed(self, comparison: Comparison, *more: SparkColumn, rows: DataFrame | None = None) -> DataFrame:
        """Return the framed columns, the hash and the text of the key, the hash that the row adds, and ``more``."""
        with self._reading():
            rows = self._shown(comparison, self._rows() if rows is None else rows)
            framed = self._counted(rows).select(
                *(self._framed(rows, c).alias(frame_name(c)) for c in comparison.columns),
                COUNT,
                *more,
                json_text([self._value(c) for c in comparison.key]).alias(KEY),
            )
        key = hash_of(joined(comparison.identity))
        row = hash_of(joined(comparison.columns))
        hashed = framed.withColumn(KEY_HASH, key)
        if not comparison.key or comparison.sample >= SAMPLE_PARTS:
            return hashed.withColumn(DIGEST, row)
        part = (sf.expr(f"{KEY_HASH} div {comparison.chunks}") + comparison.offset) % SAMPLE_PARTS
        return hashed.withColumn(DIGEST, sf.when(part < comparison.sample, row).otherwise(sf.col(KEY_HASH)))

    def _shown(self, comparison: Comparison, rows: DataFrame) -> DataFrame:
        """Return the rows that are compared."""
        name = self._read_as.get(DELETED_AT_ATTNUM)
        if (chosen := self._range(comparison, rows)) is not None:
            rows = rows.where(chosen)
        if comparison.marked is None:
            return rows
        if name is None:
            return rows.where(sf.lit(not comparison.marked))
        mark = sf.col(quoted(name))
        return rows.where(mark.isNotNull() if comparison.marked else mark.isNull())

    def _range(self, comparison: Comparison, rows: DataFrame) -> SparkColumn | None:
        names = [self._read_as[c.attnum] for c in comparison.key]
        typed = [(sf.lit(None), "", c) if n is None else (sf.col(quoted(n)), rows.schema[n].dataType.simpleString(), c)
                 for n, c in zip(names, comparison.key, strict=True)]  # fmt: skip
        return in_range(typed, comparison.between)

    def marked_rows(self) -> int:
        """Return the number of rows with the mark of deleted ones."""
        name = self._read_as.get(DELETED_AT_ATTNUM)
        if self.snapshot is None or name is None:
            return 0
        with self._reading():
            return int(self._rows().where(sf.col(quoted(name)).isNotNull()).count())

    def whole_rows(self, schema: ReplicatedTableSchema, places: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield these rows of `digests` in the columns of ``schema``."""
        if not places.num_rows:
            return
        paths = self.paths_of(places[_FILE])
        with self._lock:
            rows = RowLookup(self._java_table.storage(), self._java_table.metadata.layout.files, schema)
        names = [c.name for c in schema.columns]
        for number, path in paths.items():
            mine = places.filter(pc.equal(places[_FILE], number))[_POSITION].to_numpy()
            for first in range(0, len(mine), _ROWS_AT_ONCE):
                some = mine[first : first + _ROWS_AT_ONCE]
                read = rows.read(names, [path], np.zeros(len(some), np.int32), some)
                yield from read.combine_chunks().to_batches()

    def _rows(self) -> DataFrame:
        reader = self._session.read.option("versionAsOf", str(self.snapshot))
        for option, size in self._split.items():
            reader = reader.option(option, size)
        return reader.table(self._name)

    def _counted(self, rows: DataFrame) -> DataFrame:
        """Add how often a row counts: -1 for the old row of a changelog. Rows from before a TRUNCATE are left out."""
        if not self.is_history:
            return rows.withColumn(COUNT, sf.lit(1))
        truncate = sf.when(sf.col(OP) == "T", sf.struct(COMMIT_LSN, ORDINAL))
        last = rows.agg(sf.max(truncate).alias("last")).first()
        if last is not None and last["last"] is not None:
            lsn, ordinal = last["last"]
            later = (sf.col(COMMIT_LSN) > lsn) | ((sf.col(COMMIT_LSN) == lsn) & (sf.col(ORDINAL) > ordinal))
            rows = rows.where(later)
        return rows.withColumn(COUNT, sf.when(sf.col(OP) == "D", sf.lit(-1)).otherwise(sf.lit(1)))

    def _value(self, column: Column) -> SparkColumn:
        name = self._read_as.get(column.attnum)
        return sf.lit(None) if name is None else sf.col(quoted(name))

    def _framed(self, rows: DataFrame, column: Column) -> SparkColumn:
        name = self._read_as.get(column.attnum)
        if name is None:
            return sf.lit("~|")
        kind = rows.schema[name].dataType.simpleString()
        return frame(canonical_text(sf.col(quoted(name)), column.type, kind), column.type)


class IcebergShadow(IcebergSnapshot):
    """The rows of a shadow copy, whose files no commit refers to. It must not change until it is closed.

    ``uncommitted`` is the metadata of a table with these files, and ``layout`` has its columns.
    """

    def __init__(
        self,
        session: SparkSession,
        table: IcebergTable,
        lock: AbstractContextManager[object],
        uncommitted: JavaObject,
        layout: IcebergSchema,
        applied: Lsn,
    ) -> None:
        super().__init__(session, table, "", lock, set(), keeps_columns=False)
        self._uncommitted: JavaObject | None = uncommitted
        self.snapshot = int(uncommitted.currentSnapshot().snapshotId())
        names = {f.id: f.name for f in layout.fields}
        self.columns = {a: names[i] for a, i in layout.attnums.items() if i in names}
        self._read_as = dict(self.columns)
        self.applied = applied

    def _rows(self) -> DataFrame:
        io = self._java_table.java.io()

        def uncommitted(iceberg: JavaObject) -> JavaObject:
            operations = iceberg.StaticTableOperations(self._uncommitted, io)
            return iceberg.spark.source.SparkTable(iceberg.BaseTable(operations, self._table))

        return self._related(uncommitted)

    def check_files(self, former: FixedTable | None = None) -> None:
        """Check nothing: the files were written a moment ago, and no reader has them."""

    def _damage(self, error: LevadaError) -> LevadaError:
        return error

    def close(self) -> None:
        """Remove the manifests that were written for the comparison."""
        if self._uncommitted is not None:
            with self._lock:
                self._java_table.remove_manifests(self._uncommitted)
            self._uncommitted = None


def _path_hash() -> SparkColumn:
    return sf.xxhash64(sf.col("_file"))


def _signed(chunks: pa.Table, sign: int) -> pa.Table:
    numbers = pc.multiply(chunks[ROWS], sign)
    digests = chunks[DIGEST] if sign > 0 else pc.negate(chunks[DIGEST])
    return pa.table([chunks[CHUNK], numbers, digests], CHUNKS)
