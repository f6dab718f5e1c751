"""The ``_id`` of a document, from the key of its row. Pure.

The values of the key's columns are joined by commas. In each value ``~`` is ``~0`` and ``,`` is ``~1``, so that two
keys never have the same id. An empty id is ``~e``, because OpenSearch has none. An id above OpenSearch's limit of 512
bytes is ``~h`` and its SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.json_text import joined
from levada.destinations.opensearch.types import json_values, plain_text
from levada.errors import NeedsOperator
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.types import PLAIN

MAX_ID_BYTES: Final = 512


def ids_of(columns: Sequence[pa.Array], schema: ReplicatedTableSchema) -> pa.Array:
    """Return the ids of rows as large_string. ``columns`` are the key's columns in key order.

    Raise NeedsOperator ``null_key`` for NULL, which PostgreSQL does not allow in a key.
    """
    parts = [_part(values, c) for values, c in zip(columns, schema.key_columns, strict=True)]
    ids = parts[0] if len(parts) == 1 else joined(*parts, separator=",")
    if ids.null_count:
        raise NeedsOperator(
            "null_key", f"a row of {schema.name} has NULL in its key", hint="give the table a key without NULL"
        )
    ids = pc.if_else(pc.equal(ids, ""), pa.scalar("~e", pa.large_string()), ids)
    long = pc.greater(pc.binary_length(ids), MAX_ID_BYTES)
    if not pc.any(long).as_py():
        return ids
    hashed = ["~h" + hashlib.sha256(text.as_py().encode()).hexdigest() for text in pc.filter(ids, long)]
    return pc.replace_with_mask(ids, long, pa.array(hashed, pa.large_string()))


def _part(values: pa.Array, column: Column) -> pa.Array:
    kind = column.type
    text = json_values(values, column) if kind.depth else plain_text(values, kind)
    text = pc.cast(text, pa.large_string())
    return text if kind.kind in PLAIN else pc.replace_substring(pc.replace_substring(text, "~", "~0"), ",", "~1")
