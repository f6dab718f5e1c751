"""The files of a segment in its manifest, packed in columns because all waiting segments' manifests are in memory."""

from __future__ import annotations

import base64
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self, overload

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from levada.segments.rolled_back import Ranges, parse_ranges
from levada.values import Lsn, SnapshotId, TableId

_STORED: Final = np.dtype("<u8")
_CODES: Final = "BHIQ"
_COLUMNS: Final = 9


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """Changes of one version of one table, in WAL order: a Parquet file, or a piece of the segment's shared file.

    ``path`` is relative to the staging root. ``offset`` is where the piece begins in the shared file, see
    `levada.segments.pieces`. It is None for a Parquet file. ``bytes`` is the size of the Parquet file or of the piece,
    and ``checksums`` has one CRC-32 for each block of it, see `levada.segments.checksums`. ``first_lsn`` and
    ``last_lsn`` are commit LSNs, both inclusive.

    ``commit_ts_us`` is None, unless the rows were written before their transaction's COMMIT. Then it is the time of
    that COMMIT in microseconds since 1970-01-01 UTC, ``first_lsn`` is the commit LSN of all rows, and the file has
    placeholders for both. In this case, ``rolled_back`` has the ordinals in the transaction that do not count, see
    `levada.segments.rolled_back`, up to the last one of the file. ``rows`` counts also what was rolled back.
    """

    path: str
    offset: int | None
    table: TableId
    snapshot_id: SnapshotId
    rows: int
    bytes: int
    first_lsn: Lsn
    last_lsn: Lsn
    checksums: tuple[int, ...]
    commit_ts_us: int | None = None
    rolled_back: Ranges = ()


class _Column:
    """Whole numbers from 0 on, as differences to the lowest one in as few bytes as they need."""

    __slots__ = ("_base", "_rest")

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._base = int(values.min()) if len(values) else 0
        rest = values - _STORED.type(self._base)
        highest = int(rest.max()) if len(rest) else 0
        code = next(c for c in _CODES if highest < 1 << 8 * array(c).itemsize)
        self._rest = array(code, rest.astype(code).tobytes())

    def __getitem__(self, at: int) -> int:
        return self._base + self._rest[at]

    def __len__(self) -> int:
        return len(self._rest)

    def values(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._rest, self._rest.typecode).astype(_STORED) + _STORED.type(self._base)

    def sum(self, begin: int, end: int) -> int:
        if end - begin == 1:
            return self[begin]
        return self._base * (end - begin) + sum(self._rest[begin:end])

    def equal_to(self, value: int) -> tuple[int, int]:
        """Return where the values equal to ``value`` begin and end. The column is sorted."""
        rest = value - self._base
        begin = bisect_left(self._rest, rest)
        return begin, bisect_right(self._rest, rest, lo=begin)


class SegmentFiles(Sequence[SegmentFile]):
    """An immutable sequence of files in the order of their tables. A file takes about 30 bytes.

    All have the same ``commit_ts_us``, because rows that were written before a COMMIT have a segment of their own. So
    the ranges that were rolled back are those of one transaction, and each file has the first few of them.
    """

    __slots__ = (
        "_bytes", "_checksums", "_checksums_end", "_first_lsn", "_last_lsn", "_offset", "_path", "_rolled_back",
        "_rows", "_snapshot_id", "_table", "commit_ts_us", "paths", "rolled_back",
    )  # fmt: skip

    def __init__(
        self,
        paths: Sequence[str],
        columns: np.ndarray[Any, Any],
        checksums: np.ndarray[Any, Any],
        commit_ts_us: int | None = None,
        rolled_back: Ranges = (),
        counts: Sequence[int] = (),
    ) -> None:
        """Take the rows of ``columns``, which are those of `_columns`, and the checksums of all files.

        ``counts`` has the number of the ranges in ``rolled_back`` that each file has. It is empty without ranges.
        """
        self.commit_ts_us = commit_ts_us
        """That of each file."""
        self.rolled_back = rolled_back
        """The ranges of the file that has most of them."""
        self._rolled_back = tuple(counts)
        self.paths = tuple(paths)
        """The path of each file once, in the order of the files."""
        (
            self._path, self._offset, self._table, self._snapshot_id, self._rows, self._bytes, self._first_lsn,
            self._last_lsn,
        ) = map(_Column, columns[:-1])  # fmt: skip
        self._checksums_end = _Column(np.cumsum(columns[-1], dtype=_STORED))
        self._checksums = _Column(checksums)

    @classmethod
    def of(cls, files: Iterable[SegmentFile]) -> Self:
        """Return these files, which are ordered by table.

        Raise ValueError for different times of a COMMIT, and for different ranges that were rolled back.
        """
        found = tuple(files)
        [commit_ts_us] = {f.commit_ts_us for f in found} or {None}
        paths = {path: i for i, path in enumerate(dict.fromkeys(f.path for f in found))}
        rows = [
            (paths[f.path], 0 if f.offset is None else f.offset + 1, f.table, f.snapshot_id, f.rows, f.bytes,
             f.first_lsn, f.last_lsn, len(f.checksums))
            for f in found
        ]  # fmt: skip
        columns = np.array(rows, _STORED).reshape(len(rows), _COLUMNS).T
        checksums = np.array([c for f in found for c in f.checksums], _STORED)
        ranges = max((f.rolled_back for f in found), key=len, default=())
        if any(f.rolled_back != ranges[: len(f.rolled_back)] for f in found):
            raise ValueError("the files have different ranges that were rolled back")
        counts = [len(f.rolled_back) for f in found] if ranges else []
        return cls(tuple(paths), columns, checksums, commit_ts_us, ranges, counts)

    @overload
    def __getitem__(self, at: int) -> SegmentFile: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[SegmentFile, ...]: ...
    def __getitem__(self, at: int | slice) -> SegmentFile | tuple[SegmentFile, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        i = range(len(self))[at]
        begin = self._checksums_end[i - 1] if i else 0
        offset = self._offset[i]
        return SegmentFile(
            self.paths[self._path[i]],
            offset - 1 if offset else None,
            TableId(self._table[i]),
            SnapshotId(self._snapshot_id[i]),
            self._rows[i],
            self._bytes[i],
            Lsn(self._first_lsn[i]),
            Lsn(self._last_lsn[i]),
            tuple(self._checksums[c] for c in range(begin, self._checksums_end[i])),
            self.commit_ts_us,
            self.rolled_back[: self._rolled_back[i]] if self.rolled_back else (),
        )

    def __len__(self) -> int:
        return len(self._table)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, SegmentFiles) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a manifest is not hashed

    @property
    def tables(self) -> frozenset[TableId]:
        """The tables that have files."""
        return frozenset(map(TableId, self._table.values().tolist()))

    def of_table(self, table: TableId) -> tuple[SegmentFile, ...]:
        """Return the files of a table. The time grows only slightly with other tables."""
        return self[slice(*self._table.equal_to(table))]

    def size(self, table: TableId | None = None) -> tuple[int, int]:
        """Return the number of row changes and the size of the files in bytes, of one table or of all."""
        begin, end = (0, len(self)) if table is None else self._table.equal_to(table)
        return self._rows.sum(begin, end), self._bytes.sum(begin, end)

    def dumps(self) -> dict[str, Any]:
        """Return the files as plain values for JSON."""
        counts = np.diff(self._checksums_end.values(), prepend=_STORED.type(0))
        columns = (
            self._path, self._offset, self._table, self._snapshot_id, self._rows, self._bytes, self._first_lsn,
            self._last_lsn,
        )  # fmt: skip
        data = b"".join(v.astype(_STORED).tobytes() for v in (*(c.values() for c in columns), counts))
        packed = base64.b64encode(zlib.compress(data + self._checksums.values().tobytes(), 1)).decode()
        plain: dict[str, Any] = {"paths": list(self.paths), "count": len(self), "packed": packed}
        if self.commit_ts_us is not None:
            plain["commit_ts_us"] = self.commit_ts_us
        if self.rolled_back:
            plain["rolled_back"] = {"ranges": self.rolled_back, "counts": self._rolled_back}
        return plain

    @classmethod
    def loads(cls, raw: object) -> Self:
        """Parse the result of `dumps`. Raise ValueError for anything else."""
        match raw:
            case {"paths": [*paths], "count": int(count), "packed": str(packed), **more} if all(
                isinstance(path, str) for path in paths
            ):
                commit_ts_us, rolled_back = more.get("commit_ts_us"), more.get("rolled_back")
            case _:
                raise ValueError("not the packed files of a segment")
        try:
            data = np.frombuffer(zlib.decompress(base64.b64decode(packed, validate=True)), _STORED)
        except zlib.error:
            raise ValueError("the packed files cannot be unpacked") from None
        if count < 0 or len(data) < count * _COLUMNS:
            raise ValueError("the packed files are cut short")
        columns, checksums = data[: count * _COLUMNS].reshape(_COLUMNS, count), data[count * _COLUMNS :]
        if int(columns[-1].sum()) != len(checksums) or (count and int(columns[0].max()) >= len(paths)):
            raise ValueError("the packed files lack checksums or paths")
        if not (commit_ts_us is None or isinstance(commit_ts_us, int)):
            raise ValueError("the time of the COMMIT is not a number")
        if rolled_back is None:
            return cls(paths, columns, checksums, commit_ts_us)
        match rolled_back:
            case {"ranges": [*ranges], "counts": [*counts]} if len(counts) == count and all(
                isinstance(n, int) and 0 <= n <= len(ranges) for n in counts
            ):
                return cls(paths, columns, checksums, commit_ts_us, parse_ranges(ranges), counts)
        raise ValueError("not the ranges of a transaction that were rolled back")


Files = Annotated[SegmentFiles, PlainValidator(SegmentFiles.loads), PlainSerializer(SegmentFiles.dumps)]
"""Files that are packed in JSON."""
