"""Reads files of a table from begin to end, to find those whose bytes have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from levada.destinations.data_files.deletion_vectors import DeletionVector, read_vectors
from levada.destinations.data_files.live_files import open_parquet
from levada.destinations.data_files.storage import Storage, table_file
from levada.errors import DestinationChanged


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """A task that reads Parquet files and deletion vectors. It returns the paths of the damaged ones.

    Pages have checksums, and so have vectors. A Parquet file of another writer may have none. Its values are then
    compared with the source, as all are.
    """

    storage: Storage

    def __call__(self, paths: Sequence[str], vectors: Sequence[DeletionVector] = ()) -> list[str]:
        """Return the paths of the damaged files, each once. Raise Transient if the storage does not answer."""
        damaged = [path for path in paths if not self._is_parquet(path)]
        return list(dict.fromkeys([*damaged, *(v.path for v in vectors if not self._is_vector(v))]))

    def _is_parquet(self, path: str) -> bool:
        try:
            with open_parquet(self.storage, path) as file, table_file(self.storage, path):
                for group in range(file.num_row_groups):
                    file.read_row_group(group)
        except DestinationChanged:
            return False
        return True

    def _is_vector(self, vector: DeletionVector) -> bool:
        try:
            return len(list(read_vectors(self.storage, [vector]))) == 1
        except DestinationChanged:
            return False
