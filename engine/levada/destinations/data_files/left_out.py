"""The rows of a table whose keys its shadow copy does not have, read from the table's data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from levada import codes
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.data_files.storage import Storage
from levada.destinations.kept_values import NoConversionError
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.schema_changes import unconvertible
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema

_NO_KEY: Final = frozenset({codes.KEY_CHANGED, codes.SCHEMA_CHANGE_UNSUPPORTED})
"""Codes of `KeyReader` for rows without a value of the key. Their hint is a copy."""
_ROWS: Final = 65_536
"""The most rows that are read together."""


@dataclass(frozen=True, slots=True)
class LeftOutRows:
    """Reads rows of data files with ``layout`` in the columns of ``schema``, which is the shadow copy's version.

    ``copied`` has the keys of the shadow copy.
    """

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema
    copied: KeyIndex

    def read(self, files: Iterable[LiveFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Columns that the table lacks are NULL.

        Raise NeedsOperator ``kept_rows_unmovable`` if a value does not fit into its new type, if the table lacks a
        column of the key, or if a row has no value there. Another copy would lack it too.
        """
        if any(self.layout.column(attnum) is None for attnum in self.schema.key):
            raise unconvertible(self.schema)
        try:
            yield from self._read(files)
        except NoConversionError:
            raise unconvertible(self.schema) from None
        except NeedsOperator as error:
            if error.code in _NO_KEY:
                raise unconvertible(self.schema) from None
            raise

    def _read(self, files: Iterable[LiveFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raise NoConversionError for a value of a key or of another column."""
        keys = KeyReader.of(self.schema, self.layout, self.copied.seed)
        rows, names = RowLookup(self.storage, self.layout, self.schema), [c.name for c in self.schema.columns]
        for file in files:
            for found, positions in keys.file_keys(self.storage, file):
                left = positions[~self.copied.lookup(found).found]
                for first in range(0, len(left), _ROWS):
                    some = left[first : first + _ROWS]
                    read = rows.read(names, [file.path], np.zeros(len(some), np.int32), some)
                    yield from read.combine_chunks().to_batches()
