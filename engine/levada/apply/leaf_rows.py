"""The rows of attached partitions as of one snapshot, in files of this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, TableId


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of leaves in a snapshot at ``lsn``, whose columns are those of ``schema``.

    ``counts`` has the number of rows of each leaf that the table has in the snapshot. They are in files of ``folder``.
    ``nulled`` counts the values that became NULL under the policy ``Null``.
    """

    lsn: Lsn
    schema: ReplicatedTableSchema
    folder: Path
    counts: Mapping[TableId, int]
    nulled: int

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for leaf in self.counts:
            with pa.OSFile(str(leaf_file(self.folder, leaf))) as source, pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def leaf_file(folder: Path, leaf: TableId) -> Path:
    """Return the path of the rows of a leaf."""
    return folder / f"{int(leaf)}.arrow"
