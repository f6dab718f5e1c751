"""The columns of a data file that get a dictionary."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.data_writer import dictionary_columns


def test_dictionaries_are_for_values_that_repeat() -> None:
    """This holds for plain columns and for lists in lists. The paths are those that Parquet's writer knows."""
    rows = pa.table(
        {
            "id": range(1000),
            "state": ["open", "paid"] * 500,
            "tags": [[f"tag {i % 3}", None] for i in range(1000)],
            "grid": [[[i % 2]] for i in range(1000)],
            "path": [[i] for i in range(1000)],
        }
    )
    found = dictionary_columns(rows)
    assert found == ["state", "tags.list.element", "grid.list.element.list.element"]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, use_dictionary=found) as writer:
        writer.write_table(rows)
    group = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    assert [c.path_in_schema for c in columns if "RLE_DICTIONARY" in c.encodings] == found
