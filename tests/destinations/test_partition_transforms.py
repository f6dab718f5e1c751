"""Iceberg's transforms over Arrow, and the syntax of partitionBy and sortBy, compared with Spark's own."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pyspark.sql import SparkSession

from levada.destinations.iceberg.java import Jvm, each
from levada.destinations.iceberg.partitioning import FilePartition, IcebergArrangement, PartitionField, SortField
from levada.destinations.iceberg.settings import TableSettings
from levada.destinations.iceberg.terms import SortTerm, Term, parse_partition, parse_sort
from levada.destinations.iceberg.transforms import exceeds, fits, json_value

KINDS: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), "boolean"),
    "int": (pa.int32(), "int"),
    "long": (pa.int64(), "bigint"),
    "decimal(9, 2)": (pa.decimal128(9, 2), "decimal(9,2)"),
    "decimal(38, 10)": (pa.decimal128(38, 10), "decimal(38,10)"),
    "date": (pa.date32(), "date"),
    "timestamp": (pa.timestamp("us"), "timestamp_ntz"),
    "timestamptz": (pa.timestamp("us", "UTC"), "timestamp"),
    "string": (pa.string(), "string"),
    "binary": (pa.binary(), "binary"),
}
"""Iceberg's types that a partition may have, in Arrow and in Spark."""
TRANSFORMS = (
    *("identity", "bucket[1]", "bucket[16]", "bucket[2147483647]", "truncate[1]", "truncate[7]", "truncate[100]"),
    *("year", "month", "day", "hour"),
)
_OF_EACH_RUN = {"int", "decimal(38, 10)", "timestamptz", "string", "binary"}
"""One type of each rule of a transform. Another type differs from one of these by its width or its zone."""
_DAY = 86_400_000_000


def values(kind: str) -> list[Any]:
    """Return values of a type: the edges, and random ones. Python's types cannot have all, so they are integers."""
    rng = random.Random(kind)
    times = [
        0,
        -1,
        1,
        -_DAY,
        _DAY - 1,
        -_DAY - 1,
        1_772_280_000_000_000,
        -62_135_596_800_000_000,
        253_402_300_799_999_999,
    ]
    times += [rng.randrange(-62_135_596_800_000_000, 253_402_300_799_999_999) for _ in range(60)]
    match kind:
        case "boolean":
            return [True, False, None]
        case "int":
            return [0, -1, 1, 2**31 - 1, -(2**31), None, *(rng.randrange(-(2**31), 2**31) for _ in range(60))]
        case "long":
            return [0, -1, 1, 2**63 - 1, -(2**63), None, *(rng.randrange(-(2**63), 2**63) for _ in range(60))]
        case "decimal(9, 2)":
            cents = [
                0,
                1,
                -1,
                127,
                128,
                -128,
                -129,
                999_999_899,
                -999_999_899,
                *(rng.randrange(-(10**8), 10**8) for _ in range(60)),
            ]
            return [Decimal(c).scaleb(-2) for c in cents] + [None]
        case "decimal(38, 10)":
            units = [0, 1, -1, 2**63, -(2**63), -(2**63) - 1, 2**64, -(2**64), 10**37, -(10**37)]
            units += [rng.randrange(-(10**37), 10**37) for _ in range(60)]
            return [Decimal((u < 0, tuple(map(int, str(abs(u)))), -10)) for u in units] + [None]
        case "date":
            return [*sorted({t // _DAY for t in times}), None]
        case "timestamp" | "timestamptz":
            return [*times, None]
        case "string":
            odd = [
                "",
                "a",
                "abcd",
                "abcde",
                "ü",
                "日本語の文字",
                "🙂🙂🙂",
                "e\u0301" * 8,
                "a/b=c d",
                "x" * 150,
                "null",
                None,
            ]
            return odd + ["".join(rng.choices("aé日🙂 ", k=rng.randrange(12))) for _ in range(60)]
    return [b"", b"\0", b"\xff" * 5, b"abcd", None, *(rng.randbytes(rng.randrange(40)) for _ in range(60))]


def column(kind: str) -> pa.Array:
    """Return the values as Arrow."""
    arrow = KINDS[kind][0]
    if pa.types.is_date32(arrow):
        return pa.array(values(kind), pa.int32()).view(arrow)
    if pa.types.is_timestamp(arrow):
        return pa.array(values(kind), pa.int64()).view(arrow)
    return pa.array(values(kind), arrow)


@pytest.fixture(scope="module")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a catalog of Spark's own."""
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop",
                       ".warehouse": str(tmp_path_factory.mktemp("warehouse"))}.items():  # fmt: skip
        spark.conf.set(f"spark.sql.catalog.transforms{key}", value)
    return "transforms"


def term_of(transform: str, column: str) -> str:
    """Return a term of PARTITIONED BY."""
    function, _, number = transform.rstrip("]").partition("[")
    if number:
        return f"{function}({number}, {column})"
    return column if function == "identity" else f"{function}s({column})"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in _OF_EACH_RUN else pytest.mark.nightly) for k in KINDS]
)
def test_partitions_are_those_of_sparks_writer(kind: str, spark: SparkSession, catalog: str) -> None:
    """For each type and transform, Spark writes each row to the partition that we compute, value for value.

    A table has a copy of the column for each transform.
    """
    jvm, transforms = Jvm(spark), [t for t in TRANSFORMS if fits(t, kind)]
    # Spark lets the partition of the others wrap.
    ours = column(kind)
    ours = ours.filter(
        pa.array([not any(exceeds(t, kind, ours[i : i + 1]) for t in transforms) for i in range(len(ours))])
    )
    copies = {f"v{i}": ours for i in range(len(transforms))}
    rows = pa.table({"n": pa.array(range(len(ours)), pa.int32()), **copies})
    spark.createDataFrame(rows).createOrReplaceTempView("given")
    name = f"{catalog}.db.{''.join(c for c in kind if c.isalnum())}"
    columns = ", ".join(f"{c} {KINDS[kind][1]}" for c in copies)
    terms = ", ".join(map(term_of, transforms, copies))
    spark.sql(f"CREATE TABLE {name} (n int, {columns}) USING iceberg PARTITIONED BY ({terms})")
    spark.sql(f"INSERT INTO {name} SELECT * FROM given")
    java = jvm.iceberg.spark.Spark3Util.loadIcebergTable(jvm.session, name)
    kinds, values_of, of_file = java.spec().partitionType(), jvm.iceberg.SingleValueParser, {}
    for task in each(java.newScan().planFiles()):
        of_file[task.file().location()] = values_of.toJson(kinds, task.file().partition())
    seen = {r.n: json.loads(of_file[r._file]) for r in spark.sql(f"SELECT n, _file FROM {name}").collect()}
    spec = tuple(PartitionField(2 + i, 1000 + i, f"p{i}", t) for i, t in enumerate(transforms))
    fields = [f.with_metadata({"PARQUET:field_id": str(1 + i)}) for i, f in enumerate(rows.schema)]
    arrangement = IcebergArrangement(0, spec, 0, (), dict.fromkeys(range(2, 2 + len(spec)), kind))
    order, parts = arrangement.arrange(rows.cast(pa.schema(fields)))
    mine = {int(i): part.partition for part in parts for i in order[part.begin : part.end]}
    assert len(mine) == len(seen) == len(ours)
    for n, place in mine.items():
        assert isinstance(place, FilePartition)
        # Through Java, because a moment has several forms there.
        computed = json.loads(values_of.toJson(kinds, values_of.fromJson(kinds, place.values)))
        different = [t for i, t in enumerate(transforms) if computed.get(str(1000 + i)) != seen[n].get(str(1000 + i))]
        assert not different, ours[n]
    spark.sql(f"DROP TABLE {name} PURGE")


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_any_moment_of_postgresql_has_an_exact_partition(kind: str, spark: SparkSession) -> None:
    """Also those before the year 1 and after 9999, which Python's own types cannot have."""
    jvm = Jvm(spark)
    first, last = (
        (-2_440_588, 2_145_031_948) if kind == "date" else (-210_866_803_200_000_000, 9_223_371_331_199_999_999)
    )
    rng = random.Random(1)
    numbers = [first, last, *(rng.randrange(first, last) for _ in range(50))]
    held = pa.array(numbers, pa.int32() if kind == "date" else pa.int64()).view(KINDS[kind][0])
    types = jvm.iceberg.types.Types
    java = (
        types.DateType.get()
        if kind == "date"
        else getattr(types.TimestampType, "withZone" if kind == "timestamptz" else "withoutZone")()
    )
    for number, value in zip(numbers, held, strict=True):
        assert jvm.iceberg.SingleValueParser.fromJson(java, json.dumps(json_value(kind, value))) == number


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return values of Python that compare equal. It has no moments as early and as late as Arrow."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


FLOATS = [float("nan"), None, 0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), 5e-324, -5e-324]


@pytest.mark.parametrize("descending", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.parametrize("nulls_first", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", [*KINDS, "double", "float"])
def test_rows_are_in_sparks_order(kind: str, descending: bool, nulls_first: bool, spark: SparkSession) -> None:
    """The order within a file is that of ORDER BY, for NULL and NaN too."""
    double = kind in ("double", "float")
    arrow = {"double": pa.float64(), "float": pa.float32()}.get(kind)
    ours = pa.array(FLOATS, arrow) if double else column(kind)
    fields = [pa.field("n", pa.int32(), metadata={"PARQUET:field_id": "1"}),
              pa.field("v", ours.type, metadata={"PARQUET:field_id": "2"})]  # fmt: skip
    rows = pa.table({"n": pa.array(range(len(ours)), pa.int32()), "v": ours}).cast(pa.schema(fields))
    arrangement = IcebergArrangement(0, (), 1, (SortField(2, "identity", descending, nulls_first),), {2: kind})
    order, (part,) = arrangement.arrange(rows)
    assert (part.begin, part.end) == (0, len(ours))
    spark.createDataFrame(rows.replace_schema_metadata()).createOrReplaceTempView("given")
    by = f"v {'desc' if descending else 'asc'} nulls {'first' if nulls_first else 'last'}"
    # Spark's ORDER BY takes the two zeros as equal. Iceberg's order has -0 first.
    seen = _plain(spark.sql(f"SELECT v FROM given ORDER BY {by}").toArrow().column("v"))
    again = _plain(rows.take(order).column("v"))
    assert repr([0.0 if v == 0 and double else v for v in again]) == repr(
        [0.0 if v == 0 and double else v for v in seen]
    )


# -- the syntax

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)


@given(NAMES, st.sampled_from(["identity", "year", "month", "day", "hour", "bucket[5]", "truncate[17]"]), st.booleans())
def test_any_name_can_be_quoted(name: str, transform: str, spaces: bool) -> None:
    """A column of any name has a spelling, and no other column has it."""
    quoted, gap = f"`{name.replace('`', '``')}`", "  " if spaces else ""
    function, _, number = transform.rstrip("]").partition("[")
    text = quoted if function == "identity" else f"{function}({gap}{f'{number},{gap}' if number else ''}{quoted}{gap})"
    assert parse_partition(f"{gap}{text}{gap}") == Term(transform, name)
    assert parse_sort(f"{text} DESC NULLS FIRST") == SortTerm(Term(transform, name), True, True)
    assert TableSettings.model_validate({"partitionBy": [text], "sortBy": [f"{text} asc"]}).partition_by == (text,)


@given(st.text(max_size=30))
def test_any_text_is_a_term_or_an_error(text: str) -> None:
    """The parser raises ValueError and nothing else. A bare name is spelled as it is."""
    try:
        term = parse_partition(text)
    except ValueError:
        return
    if term.transform == "identity" and "`" not in text:
        assert term.column == text.strip(" ")


@pytest.mark.parametrize(
    "text",
    ["", " ", "bucket(0, id)", "bucket(id)", "bucket(id, 4)", "bucket(-1, id)", "bucket(16 id)", "day()", "day(a, b)",
     "days(`a)", "a b", "a,b", "minute(at)", "void(a)", "day(at) desc", "bucket(99999999999, id)", "identity(a)", "`a",
     "'a'"],
)  # fmt: skip
def test_what_is_no_transform_is_refused(text: str) -> None:
    """A typing error is refused at the border, and is no column of that name."""
    with pytest.raises(ValidationError, match="column"):
        TableSettings.model_validate({"partitionBy": [text]})


@pytest.mark.parametrize("by", [["a", "a"], ["a", " `a`"], ["day(at)", "hours(at)"], ["bucket(4, a)", "bucket( 4,a)"]])
def test_redundant_partitions_are_refused(by: list[str]) -> None:
    """Iceberg would refuse them when the table is changed."""
    with pytest.raises(ValidationError, match="rules"):
        TableSettings.model_validate({"partitionBy": by})
