"""Reads files of a table from begin to end, to find those whose bytes have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from levada.destinations.data_files.deletion_vectors import DeletionVector, read_vectors
from levada.destinations.data_files.listed_file import ListedFile, agrees
from levada.destinations.data_files.live_files import open_parquet
from levada.destinations.data_files.storage import Storage, table_file
from levada.errors import DestinationChanged


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """A task that reads Parquet files and deletion vectors. It returns the paths of the damaged ones.

    Pages have checksums, and so have vectors. A Parquet file of another writer may have none. Its values are then
    compared with the source, as all are. Footers and the table's metadata have no checksums, so that their counts and
    bounds are compared with the values.
    """

    storage: Storage

    def __call__(self, files: Sequence[ListedFile], vectors: Sequence[DeletionVector] = ()) -> list[str]:
        """Return the paths of the damaged files, each once. Raise Transient if the storage does not answer."""
        damaged = [file.path for file in files if not self._is_parquet(file)]
        return list(dict.fromkeys([*damaged, *(v.path for v in vectors if not self._is_vector(v))]))

    def _is_parquet(self, listed: ListedFile) -> bool:
        try:
            with table_file(self.storage, listed.path), self.storage.open(listed.path) as source:
                source.seek(0, 2)
                if source.tell() != listed.bytes:
                    return False
            with open_parquet(self.storage, listed.path) as file, table_file(self.storage, listed.path):
                return agrees(listed, file)
        except DestinationChanged:
            return False

    def _is_vector(self, vector: DeletionVector) -> bool:
        try:
            return len(list(read_vectors(self.storage, [vector]))) == 1
        except DestinationChanged:
            return False
