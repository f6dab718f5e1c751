"""Arrays of one value, for each kind of value and number of rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from levada.schema.types import repeated

_VALUES = [
    pa.array([7]),
    pa.array(["text"]),
    pa.array([None], pa.int32()),
    pa.array([[]], pa.list_(pa.string())),
    pa.array([[1, None]], pa.list_(pa.int32())),
    pa.array([None], pa.list_(pa.int32())),
    pa.array([{"x": 1, "y": [True]}]),
    pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("value", _VALUES, ids=lambda v: str(v.type))
def test_a_value_of_any_type_is_repeated_any_number_of_times(value: pa.Array, count: int) -> None:
    """A file whose rows are all deleted has no row to fill, also with a list."""
    made: pa.Array = repeated(value, count)
    expected: list[Any] = value.to_pylist() * count
    assert (made.type, made.to_pylist()) == (value.type, expected)
