"""The comparison of one table: what is compared, then chunk by chunk, then key by key in the chunks that differ."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from levada import codes
from levada.destinations.key_ranges import WHOLE, KeyRange
from levada.destinations.verification import SAMPLE_PARTS, Comparison, FixedTable
from levada.errors import DestinationChanged
from levada.printable import counted
from levada.schema import Column, ReplicatedTableSchema, TableTarget
from levada.schema.kept_rows import DELETED_AT, DELETED_AT_ATTNUM
from levada.schema.metadata import COLUMNS
from levada.values import Deletes, Lsn
from levada.verify.differences import (
    ChunkDifferences,
    Difference,
    KeyDifferences,
    compare_chunks,
    compare_keys,
    with_values,
)
from levada.verify.passes import REPAIRED_ROWS, Passes, first_chunks
from levada.verify.report import TableReport
from levada.verify.rows import RowDifferences
from levada.verify.source_table import SourceLoad, SourceTable

_log = logging.getLogger(__name__)

MAX_CHUNKS: Final = 1 << 16
MIN_CHUNKS: Final = 16


@dataclass(frozen=True, slots=True)
class CompareLimits:
    """The sizes of a comparison.

    Chunks with ``chunk_rows`` rows are aimed at. The checksums of ``examined_values`` values are compared by key, and
    the hashes of ``repaired_rows`` rows at a time by a repair, which bounds the memory.
    """

    chunk_rows: int = 1000
    examined_values: int = 5_000_000
    repaired_rows: int = REPAIRED_ROWS


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of a verification.

    ``sample`` is the share of the keys whose values are compared, above 0 and at most 1. All keys are compared in any
    case. ``examples`` is the highest number of differences that are described. With ``repair``, the rows of the keys
    that differ are written again. With ``show_values``, the described differences have the values that differ.
    ``patience_s`` is the longest wait in seconds for the transactions that are open when the verification begins.
    ``between`` is the range of keys that is compared. With ``load``, the source is read as `SourceTable` describes.
    ``told`` is called with what is done next, in words.
    """

    sample: float = 1.0
    examples: int = 100
    repair: bool = False
    show_values: bool = False
    patience_s: float = math.inf
    limits: CompareLimits = field(default_factory=CompareLimits)
    between: KeyRange = WHOLE
    load: SourceLoad | None = None
    told: Callable[[str], None] = field(default=lambda step: None)


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns of a comparison. ``problems`` and ``not_compared`` are those of `TableReport`.

    ``marks`` is True if the table marks deleted rows, and ``keeps`` if it may have some without a mark.
    """

    columns: tuple[Column, ...]
    problems: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    marks: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """A report, and what a repair needs: the comparisons so far, and the rows that differ.

    ``passes`` is the number of passes that the repair takes, as far as is known.
    """

    report: TableReport
    comparisons: Passes
    rows: RowDifferences = field(default_factory=RowDifferences)
    passes: int = 0
    damage: DestinationChanged | None = None
    """The error of a file at the destination that cannot be read, so that no rows were compared."""


def scope_of(
    schema: ReplicatedTableSchema,
    known: ReplicatedTableSchema,
    lake: FixedTable,
    target: TableTarget | None = None,
) -> Scope:
    """Return the columns to compare.

    ``schema`` is the table in the source's snapshot, and ``known`` the version that the stream had reached at its LSN.
    A column that only one side has is a problem, unless the destination does not follow changes of columns. ``target``
    shows which rows the table keeps, and None stands for one that keeps none.
    """
    columns, problems, skipped = [], [], []
    marks = target is not None and target.deletes is Deletes.MARK
    streamed = known.by_attnum
    described = () if target is None else tuple(COLUMNS[one] for one in target.metadata.columns)
    for column in schema.columns:
        at_lake, stored = lake.columns.get(column.attnum), streamed.get(column.attnum)
        if at_lake is None:
            if lake.keeps_columns:
                skipped.append(f"{column.name}: the destination does not have it")
            else:
                problems.append(f"column {column.name} is missing at the destination")
            continue
        if not lake.keeps_columns and stored is not None and at_lake != stored.name:
            problems.append(f"column {column.name} has the name {at_lake} at the destination")
        if lake.is_history and column.missing_value is not None:
            skipped.append(f"{column.name}: rows from before the column keep NULL in a changelog")
            continue
        columns.append(column)
    if not lake.keeps_columns:
        at_source = schema.by_attnum
        own = {DELETED_AT_ATTNUM} if marks else set()
        own |= {column.attnum for column in described}
        gone = (name for attnum, name in lake.columns.items() if attnum not in at_source.keys() | own)
        problems += [f"column {name} is at the destination, and not at the source" for name in gone]
    for column in described:
        if column.attnum in lake.columns:
            skipped.append(f"{column.name}: the source does not have it")
        else:
            problems.append(f"column {column.name} is missing at the destination")
    if marks and DELETED_AT_ATTNUM not in lake.columns:
        problems.append(f"column {DELETED_AT} is missing at the destination")
        marks = False
    return Scope(tuple(columns), tuple(problems), tuple(skipped), marks, target is not None and target.keeps_unmarked)


def compare(
    source: SourceTable,
    lake: FixedTable,
    schema: ReplicatedTableSchema,
    scope: Scope,
    lsn: Lsn,
    options: VerifyOptions,
    former: Compared | None = None,
) -> Compared:
    """Compare both sides and return the differences. Raise the errors of the source and of the destination.

    A missing or damaged file at the destination is a difference, and no error. ``former`` is the result before the last
    change of a repair.
    """
    comparison = comparison_of(source, lake, schema, scope, options)
    comparisons = Passes(source, comparison, options.told, options.limits.repaired_rows)
    if former is not None and _is_same(former.comparisons.comparison, comparison):
        comparisons = former.comparisons
        comparisons.told, comparison = options.told, comparisons.comparison
    report = TableReport(
        schema.name,
        lsn,
        lake.applied,
        0,
        0,
        tuple(c.name for c in comparison.key),
        sample=options.sample,
        problems=scope.problems,
        not_compared=scope.not_compared,
    )
    try:
        if comparison.marked is not None:
            report = replace(report, kept=lake.marked_rows())
        if ((options.repair and options.sample >= 1) or comparison.keeps) and comparison.key:
            found = comparisons.compare(lake, damaged=former is not None and former.damage is not None)
            examples = comparisons.examples(lake, found.rows, options.examples)
            report = replace(report, source_rows=found.source_rows, lake_rows=found.lake_rows)
            report = replace(report, kept=report.kept + found.rows.kept)
            examples = _with_values(source, lake, comparison, examples, options)
            report = replace(report, counts=found.rows.counts, examples=examples)
            return Compared(report, comparisons, found.rows, found.passes)
        options.told("reading the files")
        lake.check_files()
        rows = max(source.published.estimated_rows or 0, lake.estimated_rows)
        options.told(f"comparing about {counted(rows, 'row')}")
        source_chunks, lake_chunks = source.chunks(comparison), lake.chunks(comparison)
        chunks = compare_chunks(source_chunks, lake_chunks)
        report = replace(report, source_rows=chunks.source_rows, lake_rows=chunks.lake_rows)
        keys, left = _examine(source, lake, comparison, chunks, (source_chunks, lake_chunks), options)
        examples = _with_values(source, lake, comparison, keys.examples, options)
    except DestinationChanged as error:
        if error.code != codes.TABLE_DAMAGED:
            raise
        report = replace(report, problems=(*report.problems, error.message))
        return Compared(report, comparisons, damage=error)
    report = replace(report, counts=keys.counts, examples=examples, unexamined=left)
    return Compared(report, comparisons)


def _is_same(one: Comparison, other: Comparison) -> bool:
    """Return True if both compare the same columns by the same key."""
    return (one.columns, one.key) == (other.columns, other.key)


def _with_values(
    source: SourceTable,
    lake: FixedTable,
    comparison: Comparison,
    examples: tuple[Difference, ...],
    options: VerifyOptions,
) -> tuple[Difference, ...]:
    """Return the examples, with the values that differ if they are wanted."""
    changed = [d.hash for d in examples if d.columns] if options.show_values else []
    if not changed:
        return examples
    hashes = pa.array(changed, pa.int64())
    return with_values(comparison, examples, source.values(comparison, hashes), lake.values(comparison, hashes))


def comparison_of(
    source: SourceTable, lake: FixedTable, schema: ReplicatedTableSchema, scope: Scope, options: VerifyOptions
) -> Comparison:
    """Return what is compared of both sides."""
    compared = {c.attnum for c in scope.columns}
    key = schema.key_columns if compared.issuperset(schema.key) and not lake.is_history else ()
    rows = max(source.published.estimated_rows or 0, lake.estimated_rows)
    chunks = min(MAX_CHUNKS, max(MIN_CHUNKS, rows // options.limits.chunk_rows))
    parts = max(1, round(options.sample * SAMPLE_PARTS))
    marked, keeps = False if scope.marks else None, scope.keeps and bool(key)
    offset = secrets.randbelow(SAMPLE_PARTS)
    return Comparison(scope.columns, key, chunks, parts, offset, marked, keeps, options.between)


def _examine(
    source: SourceTable,
    lake: FixedTable,
    comparison: Comparison,
    found: ChunkDifferences,
    sides: tuple[pa.Table, pa.Table],
    options: VerifyOptions,
) -> tuple[KeyDifferences, int]:
    """Return the keys that differ in the first chunks, and the number of chunks that are left."""
    if not found.chunks:
        return KeyDifferences({}, ()), 0
    chunks = first_chunks(found.chunks, sides, options.limits.examined_values // len(comparison.columns))
    options.told(f"looking for the keys that differ, {len(chunks)} of {counted(comparison.chunks, 'chunk')} of rows")
    keys = compare_keys(comparison, source.rows(comparison, chunks), lake.rows(comparison, chunks), options.examples)
    if not keys.total:
        # Both reads saw the same versions, so this would be an error of this program.
        raise AssertionError(f"{source.published.name}: {len(chunks)} chunks differ, but none of their keys")
    return keys, len(found.chunks) - len(chunks)
