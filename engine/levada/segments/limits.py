"""Sizes of the files of segments, and of the parts in which a batch is processed. No manifest sets them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Sizes of staged files, in bytes and rows.

    The transactions of a segment are in its manifest up to ``inline_bytes``, because manifests are kept in memory: a
    few hundred transactions. Otherwise they are in a file with row groups of ``transaction_rows``. A file up to
    ``whole_bytes`` is read and verified in one piece, which avoids calls from Arrow into Python.

    A table's rows are written as a row group after ``row_group_bytes`` of Arrow, when the fixed cost of each column is
    small. A Parquet file of a transaction in progress is complete from ``early_rows`` or ``early_bytes`` on. It is
    folded before the COMMIT as one range of a batch, see `BatchLimits`.
    """

    inline_bytes: int = 4096
    row_group_bytes: int = 8 << 20
    transaction_rows: int = 1 << 16
    whole_bytes: int = 32 << 20
    early_rows: int = 200_000
    early_bytes: int = 12 << 20


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Sizes of the parts of a batch. Of rows and bytes, the limit that is reached first counts.

    A piece is folded and written as a whole, so ``piece_rows`` and ``piece_bytes`` of Arrow bound the memory of a
    batch. A task has a range of ``task_rows`` changes, or of ``task_bytes`` of staged files. A task of Spark costs 0.15
    CPU seconds before it begins. To fold and write 400,000 rows of ten short columns takes 0.4. A task returns at most
    ``returned_bytes`` of Arrow, because results pass through the heap of Spark's JVM. If its incomplete rows have more,
    the engine's process applies its range.
    """

    piece_rows: int = 500_000
    piece_bytes: int = 48 << 20
    task_rows: int = 400_000
    task_bytes: int = 24 << 20
    returned_bytes: int = 16 << 20
