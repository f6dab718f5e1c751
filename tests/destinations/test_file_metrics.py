"""The metrics that Levada computes for new files equal those that Iceberg's library reads from their footers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pyarrow import fs
from pyspark.sql import SparkSession

from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.layout import FIELD_ID
from levada.destinations.data_files.position_deletes import write_position_deletes
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile
from levada.destinations.iceberg.file_describer import MetricsModes
from levada.destinations.iceberg.java import Jvm
from levada.destinations.iceberg.metrics import FULL, metrics_json
from levada.destinations.iceberg.storage import POSITION_DELETES

MICROS = st.integers(-(2**62), 2**62)
# Characters around the surrogates, the last one of all, and values longer than a bound and than Parquet keeps.
TEXT = st.text(st.sampled_from("aé\ud7ff\ue000\uffff\U00010000\U0010ffff") | st.characters(codec="utf-8"), max_size=20)
LONG_TEXT = st.builds(lambda head, n, c: head + c * n, TEXT, st.integers(0, 5000), st.sampled_from("a\U0010ffff\ud7ff"))
BYTES = st.binary(max_size=20) | st.builds(
    lambda n, tail: b"\xff" * n + tail, st.integers(0, 40), st.binary(max_size=3)
)
FLOATS = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 5e-324, 1.5, -1.5]


def decimals(precision: int, scale: int) -> SearchStrategy[Decimal]:
    """Return decimals of this type, many of them around the sizes of a byte."""
    most = 10**precision - 1
    numbers = st.integers(-most, most) | st.sampled_from([0, 127, 128, -128, -129, 255, -256]).filter(
        lambda n: abs(n) <= most
    )
    return numbers.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


TYPES: Mapping[str, tuple[pa.DataType, SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.sampled_from(FLOATS) | st.floats(width=32)),
    "double": (pa.float64(), st.sampled_from(FLOATS) | st.floats()),
    "string": (pa.string(), TEXT | LONG_TEXT),
    "binary": (pa.binary(), BYTES | st.binary(min_size=4000, max_size=5000)),
    "fixed": (pa.binary(16), st.binary(min_size=16, max_size=16)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), MICROS),
    "timestamptz": (pa.timestamp("us", "UTC"), MICROS),
    "small decimal": (pa.decimal128(5, 2), decimals(5, 2)),
    "decimal": (pa.decimal128(15, 0), decimals(15, 0)),
    "large decimal": (pa.decimal128(38, 10), decimals(38, 10)),
}
_OF_EACH_RUN = {"long", "double", "string", "binary", "timestamptz", "large decimal"}
"""One type of each form of a bound. `test_a_table_of_all_types` has them all in one file."""
MODES = ["none", "counts", "truncate(1)", "truncate(16)", "full"]


@pytest.fixture(scope="module")
def jvm(spark: SparkSession) -> Jvm:
    """Return Iceberg's library."""
    return Jvm(spark)


@pytest.fixture
def folder(tmp_path: Path) -> FileSystemStorage:
    """Return a new folder for files."""
    return FileSystemStorage(f"{tmp_path}/", fs.LocalFileSystem())


def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """Return a field with a field ID. The elements of a list have another one."""
    if pa.types.is_list(kind):
        kind = pa.list_(pa.field("element", kind.value_type, metadata={FIELD_ID: str(number + 500)}))
    return pa.field(name, kind, metadata={FIELD_ID: str(number)})


def write(storage: FileSystemStorage, rows: Sequence[pa.Table], **how: Any) -> WrittenFile:
    """Write a file with a row group for each of the tables."""
    with DataWriter(storage, rows[0].schema, **how) as writer:
        for group in rows:
            writer.write(group)
            writer._flush()
    (written,) = writer.files
    return written


def by_iceberg(jvm: Jvm, written: WrittenFile, config: Any) -> dict[str, Any]:
    """Return what Iceberg reads from the footer, in the form of `ours`."""
    i = jvm.iceberg
    metrics = i.parquet.ParquetUtil.fileMetrics(i.Files.localInput(written.path), config)
    spec = i.PartitionSpec.unpartitioned()
    builder = i.DataFiles.builder(spec).withPath(written.path).withFormat("parquet")
    made = builder.withFileSizeInBytes(written.bytes).withMetrics(metrics).build()
    return as_dicts(json.loads(i.ContentFileParser.toJson(made, spec)))


def modes_of(config: Any) -> MetricsModes:
    """Return the modes of Iceberg's ``MetricsConfig``."""
    return MetricsModes(lambda columns: [str(config.columnMode(name).toString()) for name in columns])


def as_dicts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the maps of Iceberg's JSON as dicts."""
    maps = {k: dict(zip(v["keys"], v["values"], strict=True)) for k, v in found.items() if isinstance(v, dict)}
    return {name: {k: str(v).upper() for k, v in entries.items()} for name, entries in maps.items() if entries}


def check(jvm: Jvm, written: WrittenFile, config: Any, *, bounded: bool = True) -> dict[str, Any]:
    """Compare both, and return ours. Without ``bounded``, Iceberg has wrong bounds of field 1, and we have none."""
    ours = as_dicts(metrics_json(written.columns, modes_of(config).of))
    theirs = by_iceberg(jvm, written, config)
    if not bounded:
        assert not {1} & {number for bounds in ("lower-bounds", "upper-bounds") for number in ours.get(bounds, {})}
        theirs = {
            name: {k: v for k, v in found.items() if k != 1 or "bounds" not in name} for name, found in theirs.items()
        }
        theirs = {name: found for name, found in theirs.items() if found}
    assert ours == theirs
    return ours


def has_bounds(group: Sequence[Any]) -> bool:
    """Return False if a bound of the values is longer than what Parquet keeps."""
    values = sorted(v.encode() if isinstance(v, str) else v for v in group if isinstance(v, str | bytes))
    return not values or max(len(values[0]), len(values[-1])) <= 4096


def config_of(jvm: Jvm, schema: pa.Schema, properties: Mapping[str, str], order: Sequence[str] = ()) -> Any:
    """Return the configuration of an Iceberg table with these columns, all of type long."""
    fields = [{"id": i, "name": name, "required": False, "type": "long"} for i, name in enumerate(schema.names, 1)]
    java = jvm.iceberg.SchemaParser.fromJson(json.dumps({"type": "struct", "schema-id": 0, "fields": fields}))
    builder = jvm.iceberg.SortOrder.builderFor(java)
    for name in order:
        builder = builder.asc(name)
    return getattr(jvm.iceberg.MetricsConfig, "from")(jvm.map(properties), java, builder.build())


@pytest.mark.parametrize(
    "name", [pytest.param(t, marks=() if t in _OF_EACH_RUN else pytest.mark.nightly) for t in TYPES]
)
def test_each_type(jvm: Jvm, folder: FileSystemStorage, name: str) -> None:
    """Counts and bounds are equal in each mode, for all values, over one row group and over several."""
    kind, values = TYPES[name]
    column = st.lists(values | st.none(), max_size=6)
    schema = pa.schema([field("v", kind, 1), field("many", pa.list_(kind), 2)])

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(column, min_size=1, max_size=3), st.sampled_from(MODES))
    def same(groups: list[list[Any]], mode: str) -> None:
        rows = [pa.table({"v": g, "many": [g] * len(g)}, schema=schema) for g in groups if g]
        if rows:
            config = config_of(jvm, schema, {"write.metadata.metrics.default": mode})
            bounded = all(map(has_bounds, groups))
            check(jvm, write(folder, rows), config, bounded=bounded)

    same()


def test_a_long_value_is_not_outside_of_the_bounds(jvm: Jvm, folder: FileSystemStorage) -> None:
    """A column has no bounds if Parquet keeps none of one row group, else readers would pass over its values."""
    schema = pa.schema([field("v", pa.string(), 1), field("n", pa.int32(), 2)])
    rows = [pa.table({"v": values, "n": [1, 2]}, schema=schema) for values in (["a", "b"], ["z" * 5000, None])]
    found = check(jvm, write(folder, rows), config_of(jvm, schema, {}), bounded=False)
    assert (found["value-counts"], found["null-value-counts"]) == ({1: "4", 2: "4"}, {1: "1", 2: "0"})
    assert found["lower-bounds"].keys() == {2}


def test_floats_have_no_bounds(jvm: Jvm, folder: FileSystemStorage) -> None:
    """Readers pass over no NaN, as no column of floats has bounds."""
    schema = pa.schema([field("d", pa.float64(), 1), field("f", pa.float32(), 2), field("n", pa.int32(), 3)])
    rows = pa.table({"d": [0.0, float("nan")], "f": [-0.0, 1.5], "n": [1, 2]}, schema=schema)
    found = check(jvm, write(folder, [rows]), config_of(jvm, schema, {}))
    assert found["lower-bounds"].keys() == found["upper-bounds"].keys() == {3}


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write.metadata.metrics.max-inferred-column-defaults": "3"},
        {"write.metadata.metrics.default": "counts", "write.metadata.metrics.column.c7": "full"},
        {"write.metadata.metrics.default": "none"},
        {"write.metadata.metrics.default": "nonsense", "write.metadata.metrics.column.c5": "truncate(2)"},
        {"write.metadata.metrics.max-inferred-column-defaults": "-1"},
    ],
)
def test_modes_of_a_wide_table(jvm: Jvm, folder: FileSystemStorage, properties: dict[str, str]) -> None:
    """Columns have the mode that the table's properties give them. A column that sorts the table has bounds."""
    schema = pa.schema([field(f"c{i}", pa.int64(), i) for i in range(1, 121)])
    rows = pa.table({name: [1, None] for name in schema.names}, schema=schema)
    found = check(jvm, write(folder, [rows]), config_of(jvm, schema, properties, ["c110"]))
    assert 110 in found["lower-bounds"]


def test_a_table_of_all_types(jvm: Jvm, folder: FileSystemStorage) -> None:
    """The columns of a file are not mixed up, with lists of lists between them and columns without a field ID."""
    values: dict[str, Any] = {
        "boolean": True, "int": 1, "long": 2, "float": 3.0, "double": 4.0, "string": "five" * 9, "binary": b"6" * 17,
        "fixed": b"7" * 16, "date": dt.date(1969, 1, 1), "time": dt.time(8), "timestamp": 9, "timestamptz": 10,
        "small decimal": Decimal("1.11"), "decimal": Decimal(-12), "large decimal": Decimal("13.5"),
    }  # fmt: skip
    fields = [pa.field("bare", pa.int32())]
    for i, (name, (kind, _)) in enumerate(TYPES.items()):
        fields += [field(name, kind, 2 * i + 1), field(f"list of {name}", pa.list_(kind), 2 * i + 2)]
    inner = pa.field("element", pa.int32(), metadata={FIELD_ID: "991"})
    outer = pa.field("element", pa.list_(inner), metadata={FIELD_ID: "990"})
    fields.append(pa.field("deep", pa.list_(outer), metadata={FIELD_ID: "989"}))
    columns: dict[str, Any] = {"bare": [1, 2], "deep": [[[1], None], None]}
    for name, value in values.items():
        columns |= {name: [value, None], f"list of {name}": [[value, None], None]}
    rows = pa.table(columns, schema=pa.schema(fields))
    found = check(jvm, write(folder, [rows]), jvm.iceberg.MetricsConfig.getDefault())
    assert len(found["lower-bounds"]) == len(TYPES) - 2  # not the floats


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**40)), min_size=1, max_size=20))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@example([(0, 0)])
def test_position_deletes(jvm: Jvm, folder: FileSystemStorage, rows: list[tuple[int, int]]) -> None:
    """A file of position deletes has the whole paths as bounds, however long they are."""
    paths = [f"file:/{'long/' * 20}{c}.parquet" for c in "bac"]
    files, positions = np.array([f for f, _ in rows]), np.array([p for _, p in rows], np.int64)
    written = write_position_deletes(folder, POSITION_DELETES, paths, files, positions)
    ours = as_dicts(metrics_json(written.columns, lambda _: FULL))
    assert ours == by_iceberg(jvm, written, jvm.iceberg.MetricsConfig.forPositionDelete())


def test_row_groups_of_a_large_file(jvm: Jvm, folder: FileSystemStorage) -> None:
    """The writer's own row groups are merged into the bounds of the file."""
    schema = pa.schema([field("n", pa.int64(), 1), field("d", pa.decimal128(38, 0), 2)])
    with DataWriter(folder, schema, group_rows=10) as writer:
        for i in range(50):
            writer.write(pa.table({"n": [i, -i], "d": [Decimal(-i), Decimal(i)]}, schema=schema))
    (written,) = writer.files
    check(jvm, written, config_of(jvm, schema, {}))
