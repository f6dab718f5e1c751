"""The external versions of documents. OpenSearch keeps the write with the highest version, in whatever order they come.

A version is a position in the WAL: the commit LSN and the number of a block of changes in the transaction. A document
with version V has the state of its row as of position V. So two writes of one version have the same content, and a
replay changes nothing. A block is always folded as a whole, which `block_ends` is for.

OpenSearch's versions are 63 bits. The LSN of a WAL record is a multiple of 8, so its lowest three bits are left out.
The block has 9 bits, and the LSN has the other 54 bits, up to 144 petabytes of WAL.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.errors import NeedsOperator
from levada.schema.changes import COMMIT_LSN, ORDINAL
from levada.values import Lsn

Versions = npt.NDArray[np.int64]

_ALIGNMENT_BITS: Final = 3
_BLOCK_BITS: Final = 9
BLOCK_ROWS_BITS: Final = 18
"""A block has 2^18 changes of a transaction, counted over all its tables."""
_MAX_LSN: Final = 1 << (63 - _BLOCK_BITS + _ALIGNMENT_BITS)
# The last block is not used, so that a document whose version OpenSearch has raised by one is still below the next LSN.
_MAX_BLOCK: Final = (1 << _BLOCK_BITS) - 2


def versions_of(changes: pa.Table | pa.RecordBatch, table: str) -> Versions:
    """Return the version of each change. Later changes never have a lower one.

    Raise NeedsOperator ``version_exhausted`` for an LSN or an ordinal that no version can hold.
    """
    lsn: Versions = changes.column(COMMIT_LSN).to_numpy()
    block = changes.column(ORDINAL).to_numpy() >> BLOCK_ROWS_BITS
    if len(lsn) and (int(lsn.max()) >= _MAX_LSN or int(lsn.min()) < 0 or int(block.max()) > _MAX_BLOCK):
        raise NeedsOperator(
            "version_exhausted",
            f"{table}: a transaction has more than {(_MAX_BLOCK + 1) << BLOCK_ROWS_BITS} changes, or its LSN is above"
            f" {Lsn(_MAX_LSN)}, which the version of a document in OpenSearch cannot hold",
            hint="copy the table again: levada resync MANIFEST TABLE",
        )
    versions: Versions = ((lsn >> _ALIGNMENT_BITS) << _BLOCK_BITS) | block
    return versions


def copy_version(snapshot: Lsn) -> int:
    """Return the version of the documents of a copy. It is below that of every change from ``snapshot`` on."""
    return max(0, ((int(snapshot) >> _ALIGNMENT_BITS) << _BLOCK_BITS) - 1)


def block_ends(versions: Versions) -> npt.NDArray[np.int64]:
    """Return the lengths of the prefixes that end with a complete block, in ascending order."""
    return np.append(np.flatnonzero(versions[1:] != versions[:-1]) + 1, len(versions))
