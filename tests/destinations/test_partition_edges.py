"""Partition values at the edges of every type, compared with those that PyIceberg computes."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import transforms as pyiceberg
from pyiceberg import types
from pyiceberg.types import PrimitiveType

from levada.destinations.iceberg.partitioning import FilePartition, IcebergArrangement, PartitionField, SortField
from levada.destinations.iceberg.transforms import fits, json_value, result_type
from levada.errors import Unrepresentable

Case = tuple[pa.DataType, PrimitiveType, list[Any]]


def _unscaled(number: int, scale: int) -> Decimal:
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _around(*numbers: int, low: int, high: int) -> list[int]:
    return sorted({min(max(n + d, low), high) for n in (*numbers, low, high) for d in (-1000, -1, 0, 1, 1000)})


_I32, _I64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_DATES = (-2_451_507, 2_145_031_948)
_TIMES = (-211_810_204_800_000_000, 9_223_371_331_199_999_999)
_HOUR = 3_600_000_000
_MOMENTS = _around(0, 2**31 * _HOUR, 2**31 * _HOUR - _HOUR, -62_135_596_800_000_000, low=_TIMES[0], high=_TIMES[1])
CASES: dict[str, Case] = {
    "int": (pa.int32(), types.IntegerType(), _around(0, low=_I32[0], high=_I32[1])),
    "long": (pa.int64(), types.LongType(), _around(0, *_I32, low=_I64[0], high=_I64[1])),
    "decimal(9, 2)": (
        pa.decimal128(9, 2),
        types.DecimalType(9, 2),
        [_unscaled(n, 2) for n in _around(0, low=1 - 10**9, high=10**9 - 1)],
    ),
    "decimal(38, 10)": (
        pa.decimal128(38, 10),
        types.DecimalType(38, 10),
        [_unscaled(n, 10) for n in _around(0, *_I64, low=1 - 10**38, high=10**38 - 1)],
    ),
    "date": (pa.date32(), types.DateType(), _around(0, -719_162, low=_DATES[0], high=_DATES[1])),
    "timestamp": (pa.timestamp("us"), types.TimestampType(), _MOMENTS),
    "timestamptz": (pa.timestamp("us", "UTC"), types.TimestamptzType(), _MOMENTS),
    "string": (
        pa.string(),
        types.StringType(),
        ["", "a", "\U0010ffff" * 9, "e\u0301" * 9, "\ue000\uffff\U00010000" * 3, "👩‍👩‍👧‍👦" * 2, "\x01\x7f\x80"],
    ),
    "binary": (pa.binary(), types.BinaryType(), [b"", b"\0" * 9, b"\xff" * 9, bytes(range(256))]),
}
"""Types in Arrow and in PyIceberg, with values in the integers that PyIceberg's transforms take."""
BY_NAME = {
    "identity": pyiceberg.IdentityTransform,
    "year": pyiceberg.YearTransform,
    "month": pyiceberg.MonthTransform,
    "day": pyiceberg.DayTransform,
    "hour": pyiceberg.HourTransform,
}
_PARAMETERS = (*(f"truncate[{n}]" for n in (1, 7, 1000, 999_999_999)), *(f"bucket[{n}]" for n in (1, 16, 999_999_999)))
_PAIRS = [(k, t) for k, t in itertools.product(CASES, (*BY_NAME, *_PARAMETERS)) if fits(t, k)]


def array(kind: str, values: list[Any]) -> pa.Array:
    """Return values as Arrow, also those that Python's types cannot have."""
    arrow = CASES[kind][0]
    if pa.types.is_date32(arrow) or pa.types.is_timestamp(arrow):
        return pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).view(arrow)
    return pa.array(values, arrow)


def arranged(kind: str, transform: str, values: pa.Array) -> Any:
    """Return the value in the manifest of the partition of the first row."""
    rows = pa.table([values], pa.schema([pa.field("v", values.type, metadata={"PARQUET:field_id": "1"})]))
    arrangement = IcebergArrangement(0, (PartitionField(1, 1000, "p", transform),), 0, (), {1: kind})
    (part,) = arrangement.arrange(rows)[1]
    assert isinstance(part.partition, FilePartition)
    return part.partition.values


def by_pyiceberg(kind: str, transform: str, value: Any) -> Any:
    """Return what a reader in Python computes, in integers without bounds."""
    source = CASES[kind][1]
    if transform.startswith(("truncate", "bucket")):
        function, _, number = transform.rstrip("]").partition("[")
        maker = {"truncate": pyiceberg.TruncateTransform, "bucket": pyiceberg.BucketTransform}[function]
        return maker(int(number)).transform(source)(value)
    if transform in ("identity", "hour"):
        return value if transform == "identity" else value // _HOUR
    if transform == "day":
        return value if kind == "date" else value // (24 * _HOUR)
    return BY_NAME[transform]().transform(source)(value)


def is_held(kind: str, transform: str, expected: Any) -> bool:
    """Return True if the type of the partition's value has this value."""
    name = result_type(transform, kind)
    if name in ("int", "long"):
        low, high = _I32 if name == "int" else _I64
        return bool(low <= expected <= high)
    return not isinstance(expected, Decimal) or len(expected.as_tuple().digits) <= CASES[kind][0].precision


def manifest_value(kind: str, transform: str, expected: Any) -> Any:
    """Return the JSON of a partition with this value."""
    name, values = result_type(transform, kind), expected
    if name in ("date", "timestamp", "timestamptz"):
        values = array(name, [expected])[0]
    elif name.startswith("decimal") or name == "binary":
        values = pa.scalar(expected)

    kept = json_value(name, values) if isinstance(values, pa.Scalar) else values
    return json.dumps({"1000": kept}, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(("kind", "transform"), _PAIRS)
def test_a_value_has_the_partition_that_readers_look_for(kind: str, transform: str) -> None:
    """It is refused if the partition's type has no such value: a wrapped one would hide the row from filters."""
    for value in CASES[kind][2]:
        try:
            expected = by_pyiceberg(kind, transform, value)
        except (OverflowError, ValueError):
            continue  # Python's dates end at the years 1 and 9999.
        if is_held(kind, transform, expected):
            assert arranged(kind, transform, array(kind, [value])) == manifest_value(kind, transform, expected), value
        else:
            with pytest.raises(Unrepresentable, match="column v") as refused:
                arranged(kind, transform, array(kind, [value]))
            assert refused.value.code == "partition_value_unrepresentable"


@pytest.mark.parametrize(("kind", "transform"), [(k, t) for k, t in _PAIRS if t.startswith(("truncate", "hour"))])
def test_sorted_rows_keep_their_order(kind: str, transform: str) -> None:
    """sortBy takes every value. Those whose transform has no place in its type are first or last."""
    values = array(kind, sorted(CASES[kind][2]))
    rows = pa.table([values], pa.schema([pa.field("v", values.type, metadata={"PARQUET:field_id": "1"})]))
    by = (SortField(1, transform, descending=False, nulls_first=True),)
    order, _ = IcebergArrangement(0, (), 1, by, {1: kind}).arrange(rows)
    assert list(order) == list(range(len(values)))


@pytest.mark.parametrize(("kind", "transform"), _PAIRS)
def test_no_rows_have_no_partition(kind: str, transform: str) -> None:
    """A file whose rows are all deleted leaves no part when its table is arranged in another way."""
    rows = pa.table([array(kind, [])], pa.schema([pa.field("v", CASES[kind][0], metadata={"PARQUET:field_id": "1"})]))
    spec, by = (PartitionField(1, 1000, "p", transform),), (SortField(1, transform, True, False),)
    for given in (rows, rows.schema.empty_table()):
        order, parts = IcebergArrangement(0, spec, 1, by, {1: kind}).arrange(given)
        assert (len(order), list(parts)) == (0, [])
