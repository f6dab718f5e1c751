"""Partitions and the sort order of Iceberg tables: files, deletes, changes of the settings, odd values."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal

import pytest
from tests.destinations.memory import MemoryRows
from tests.destinations.sales import COUNTRIES, SALES, Sales, row, settings
from tests.rigs.lake import Lake

from levada.destinations import TableMode
from levada.destinations.data_files import arrangement
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.iceberg.java import each
from levada.destinations.iceberg.settings import TableSettings
from levada.destinations.iceberg.terms import parse_partition, parse_sort
from levada.errors import NeedsOperator, Unrepresentable
from levada.schema import Kind, TableTarget
from levada.testing import column, table


@pytest.fixture
def hadoop(hadoop: Lake, request: pytest.FixtureRequest) -> Lake:
    """A Hadoop catalog with tables of format version 2, or of the parameter's."""
    hadoop.manifest["formatVersion"] = getattr(request, "param", 2)
    return hadoop


of_each_version = pytest.mark.parametrize("hadoop", [2, pytest.param(3, marks=pytest.mark.nightly)], indirect=True)


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(settings("country"), marks=pytest.mark.nightly),
        pytest.param(settings("day(at)", "bucket(4, id)"), marks=pytest.mark.nightly),
        settings("truncate(2, country)", "year(at)", sort_by=("amount desc", "note")),
        settings(sort_by=("at desc nulls first", "bucket(3, id)", "id")),
    ],
    ids=str,
)
def test_rows_are_in_their_partitions(hadoop: Lake, by: TableSettings) -> None:
    """Copies, updates that move rows, deletes, a restart and a compaction leave every row once, in its partition."""
    sales = Sales(hadoop, by)
    sales.copy(40)
    sales.check()
    rng = random.Random(5)
    for round_ in range(4):
        for i in rng.sample(range(60), 15):
            sales.put(**row(i + rng.randrange(7), id=i, note=f"r{round_}"))
        for i in rng.sample(sorted(sales.rows), 4):
            sales.drop(i)
        sales.apply()
        sales.check()
        if round_ == 1:
            sales.destination = hadoop.destination()
        if round_ == 2:
            hadoop.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all','true'))")
            sales.check()
    check_files(hadoop, by)


def check_files(lake: Lake, by: TableSettings) -> None:
    """Spark puts each row into the partition of its file. Each file that we wrote is sorted."""
    functions = {"identity": "{}"} | {f: f"{{c}}.system.{f}s({{}})" for f in ("year", "month", "day", "hour")}
    terms = []
    for text in by.partition_by:
        term = parse_partition(text)
        function, _, number = term.transform.rstrip("]").partition("[")
        call = functions.get(function, f"{{c}}.system.{function}({number}, {{}})").replace("{}", term.column)
        terms.append(call)
    fields = [f.name for f in lake.iceberg().spec().fields]
    assert len(fields) == len(terms)
    compared = [f"NOT ({term} <=> _partition.{name})" for term, name in zip(terms, fields, strict=True)]
    assert lake.sql(f"SELECT * FROM {{t}} WHERE {' OR '.join(compared) or 'false'}") == []
    order = [f"{t.term.column} {'desc' if t.descending else 'asc'} nulls {'first' if t.nulls_first else 'last'}"
             for t in map(parse_sort, by.sort_by) if t.term.transform == "identity"]  # fmt: skip
    if order:
        first = order[0]
        ranked = lake.sql(
            f"SELECT _file, rank() OVER (PARTITION BY _file ORDER BY {first}) AS r FROM {{t}} ORDER BY _file, _pos"
        )
        for before, after in itertools.pairwise(ranked):
            assert before._file != after._file or before.r <= after.r


@pytest.mark.parametrize("hadoop", [2, 3], indirect=True)
def test_rows_of_one_file_are_deleted_one_after_the_other(hadoop: Lake) -> None:
    """In the partition of NULL too, and after a restart, whose partitions are read from the table."""
    sales = Sales(hadoop, settings("country", "day(at)"))
    sales.copy(24, at=None)
    for number in (2, 10, 3, 0):
        sales.put(**row(number, at=None, note="changed"))
        sales.apply()
    sales.destination = hadoop.destination(work="other")
    for numbers in ((2, 10), (3, 18), (11, 0)):
        for number in numbers:
            sales.drop(number)
        sales.apply()
        sales.check()


@of_each_version
def test_an_update_moves_a_row_to_another_partition(hadoop: Lake) -> None:
    """It is deleted in its old partition, by a delete file of that partition, and Spark skips the others."""
    sales = Sales(hadoop, settings("country"))
    sales.copy(16)
    for i in range(16):
        sales.put(**row(i, country="moved", note=None))
    sales.apply()
    sales.check()
    found = hadoop.sql("SELECT count(*) AS n FROM {t}.delete_files")
    assert found[0].n == len(COUNTRIES)
    assert [r.n for r in hadoop.sql("SELECT count(DISTINCT _file) AS n FROM {t} WHERE country = 'moved'")] == [1]
    scanned = sales.destination._known.states[SALES.id].table
    assert scanned is not None
    expressions = scanned._jvm.iceberg.expressions.Expressions
    files = scanned.java.newScan().filter(expressions.equal("country", "DE")).planFiles()
    assert sum(1 for _ in each(files)) == 1
    for i in range(16):
        sales.put(**row(i))
    sales.apply()
    sales.check()
    sales.drop(3)
    sales.apply()
    sales.check()
    check_files(hadoop, settings("country"))


@pytest.mark.nightly
@of_each_version
@pytest.mark.parametrize("mode", list(TableMode))
def test_settings_change_in_place(hadoop: Lake, mode: TableMode) -> None:
    """Files of each former spec stay and take deletes. New files are in the new partitions, and nothing is copied."""
    both = settings("bucket(3, id)", "country", sort_by=("note",))
    steps = [None, settings("country"), both, settings("day(at)"), None, settings("country")]
    sales = Sales(hadoop, steps[0], mode=mode)
    sales.copy(10)
    for step, by in enumerate(steps):
        sales.stream.settings = by
        for i in range(step, 12):
            sales.put(**row(i + step, id=i, note=f"s{step}"))
        sales.apply()
        if mode is TableMode.UPSERT:
            sales.check()
            files = hadoop.sql("SELECT spec_id, count(*) AS n FROM {t}.files WHERE content = 0 GROUP BY spec_id")
            assert len(files) > min(step, 1)
    spec = hadoop.iceberg().spec()
    assert [(f.name, str(f.transform)) for f in spec.fields] == [("country", "identity")]
    assert len(hadoop.iceberg().specs()) == 4
    seen = hadoop.sql("SELECT id, note FROM {t} WHERE note = 's5'")
    assert sorted(r.id for r in seen) == list(range(5, 12))
    hadoop.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all','true'))")
    check_files(hadoop, settings("country"))


@of_each_version
def test_a_row_that_changes_in_several_pieces_of_a_batch(hadoop: Lake) -> None:
    """Its earlier file is not committed yet, and has no partition if those of the table were taken away."""
    sales = Sales(hadoop, settings("country"))
    sales.copy(10)
    sales.stream.settings = None
    sales.stream.limit(piece_rows=3)
    for batch in range(2):
        for note in ("one", "two"):
            for i in range(8):
                sales.put(**row(i + batch, id=i, note=note))
        sales.drop(9 - batch)
        sales.apply()
        sales.check()


def test_rows_without_a_partition_are_refused(hadoop: Lake) -> None:
    """Rows that the table has count too, because a compaction would move them. A resync compares its own rows alone."""
    cents, wide = settings("truncate(1000, amount)"), settings("hour(at)")
    sales = Sales(hadoop, wide)
    sales.copy(10)
    sales.put(**row(10, amount=Decimal("-9999999.99")))
    sales.apply()
    sales.stream.settings = cents
    sales.put(**row(11))
    with pytest.raises(Unrepresentable, match="column amount") as refused:
        sales.apply()
    assert refused.value.code == "partition_value_unrepresentable"
    assert [f.name for f in hadoop.iceberg().spec().fields] == ["at_hour"]
    sales.copy(10)
    sales.check()
    assert [f.name for f in hadoop.iceberg().spec().fields] == ["amount_trunc_1000"]


@pytest.mark.nightly
def test_a_renamed_column_keeps_its_partitions(hadoop: Lake) -> None:
    """The setting names it by its former name until it changes. A new column of that name means nothing to it."""
    by = settings("country", "day(at)", sort_by=("country", "at desc"))
    sales = Sales(hadoop, by)
    sales.copy(10)
    renamed = replace(
        SALES,
        columns=tuple(replace(c, name={"country": "land", "at": "day"}.get(c.name, c.name)) for c in SALES.columns),
    )
    sales.stream.alter(renamed)
    for i in range(12):
        new = row(i, note="renamed")
        new["land"], new["day"] = new.pop("country"), new.pop("at")
        sales.put(**new)
    sales.apply()
    sales.check()
    spec = hadoop.iceberg().spec()
    assert [f.source_id for f in spec.fields] == [2, 3]
    assert len(hadoop.iceberg().specs()) == 2
    # The setting's own name changes nothing.
    sales.stream.settings = settings("land", "day(`day`)", sort_by=("land", "`day` desc"))
    sales.put(**{**sales.rows[1], "note": "x"})
    sales.apply()
    sales.check()
    assert len(hadoop.iceberg().specs()) == 2


@pytest.mark.nightly
@of_each_version
def test_a_dropped_column_parks_the_table_and_breaks_nothing(hadoop: Lake) -> None:
    """The table is readable without the column, and says which setting names it. Another setting goes on."""
    sales = Sales(hadoop, settings("country", "bucket(2, id)", sort_by=("country",)))
    sales.copy(10)
    sales.put(**row(3, note="x"))
    sales.apply()
    sales.stream.alter(replace(SALES, columns=tuple(c for c in SALES.columns if c.name != "country")))
    for i in range(12):
        sales.put(**{n: v for n, v in row(i, note="dropped").items() if n != "country"})
    batch = sales.stream.batch()
    with pytest.raises(NeedsOperator) as raised:
        sales.destination.write_events(batch, hadoop.mark(batch.until))
    assert raised.value.code == "partition_column_missing"
    assert "partitionBy names column country" in raised.value.message
    left = hadoop.rows()
    assert len(left) == 10
    assert "country" not in left[0]
    sales.destination = hadoop.destination(work="restarted")
    sales.stream.settings = settings("bucket(2, id)")
    batch = sales.stream.batch(since=sales.stream.taken if not batch else int(batch.changes(SALES.id).after))
    sales.destination.write_events(batch, hadoop.mark(batch.until))
    sales.check()
    check_files(hadoop, settings("bucket(2, id)"))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("by", "code"),
    [
        (settings("region"), "partition_column_missing"),
        (settings("Country"), "partition_column_missing"),
        (settings("hour(country)"), "partition_type_unsupported"),
        (settings("truncate(4, at)"), "partition_type_unsupported"),
        (settings(sort_by=("day(amount)",)), "partition_type_unsupported"),
    ],
)
def test_settings_that_do_not_fit_the_table_are_refused(hadoop: Lake, by: TableSettings, code: str) -> None:
    """The error names table, setting and column. A table that exists is not changed."""
    sales = Sales(hadoop, by)
    with pytest.raises(NeedsOperator, match=r"public\.orders: (partitionBy|sortBy)") as raised:
        sales.copy(3)
    assert raised.value.code == code
    assert "levada retry MANIFEST" in (raised.value.hint or "")
    sales.stream.settings = None
    sales.copy(3)
    sales.stream.settings = by
    sales.put(**row(1, note="x"))
    batch = sales.stream.batch()
    with pytest.raises(NeedsOperator):
        sales.destination.write_events(batch, hadoop.mark(batch.until))
    assert len(hadoop.iceberg().specs()) == 1
    assert len(hadoop.rows()) == 3


@pytest.mark.nightly
@of_each_version
def test_a_shadow_copy_has_the_partitions(hadoop: Lake) -> None:
    """It is made, follows the stream and takes the place of a table with other partitions."""
    by = settings("country", sort_by=("id desc",))
    sales = Sales(hadoop, settings("bucket(2, id)"))
    sales.copy(20)
    sales.stream.settings = by
    fresh = [row(i, note="fresh") for i in range(20)]
    source = MemoryRows(SALES, fresh[::2], fresh[1::2])
    assert sales.destination.copy_replacement(sales.stream.target, source, hadoop.mark(sales.stream.lsn + 1))
    sales.rows = {r["id"]: r for r in fresh}
    for step in range(3):
        for i in range(step, 24, 2):
            sales.put(**row(i + step, id=i, note=f"s{step}"))
        sales.drop(23 - step if 23 - step in sales.rows else 20)
        batch = sales.stream.batch()
        sales.destination.write_events(batch, hadoop.mark(batch.until))
        assert sales.destination.write_replacement_events(batch, hadoop.mark(batch.until))
    assert sales.destination.swap_replacement(SALES.id, hadoop.mark(sales.stream.taken))
    sales.check()
    check_files(hadoop, by)
    assert {r.spec_id for r in hadoop.sql("SELECT spec_id FROM {t}.files")} == {hadoop.iceberg().spec().spec_id}
    for i in range(20):
        sales.put(**row(i + 1, id=i, note="after"))
    sales.apply()
    sales.check()


@pytest.mark.nightly
@of_each_version
def test_compaction_sorts_and_keeps_partitions(hadoop: Lake) -> None:
    """Maintenance merges small files of former partitions into the current ones, sorted by the order of the table."""
    by = settings("truncate(1, country)", sort_by=("id desc",))
    sales = Sales(hadoop, None)
    sales.destination = hadoop.destination(maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0})
    sales.copy(30)
    sales.stream.settings = by
    for step in range(6):
        for i in range(30):
            sales.put(**row(i, note=f"s{step}"))
        sales.apply()
    before = len(hadoop.sql("SELECT file_path FROM {t}.files"))
    sales.destination.maintain(SALES.id)
    assert len(hadoop.sql("SELECT file_path FROM {t}.files")) < before
    sales.check()
    check_files(hadoop, by)
    assert {r.spec_id for r in hadoop.sql("SELECT spec_id FROM {t}.data_files")} == {hadoop.iceberg().spec().spec_id}
    for i in range(30):
        sales.put(**row(i + 1, id=i))
    sales.apply()
    sales.check()


@pytest.mark.nightly
def test_a_batch_over_thousands_of_partitions(hadoop: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file is open at a time, in a copy and in a batch that moves every row."""
    opened: list[int] = [0, 0]

    class Counting(DataWriter):
        def _open_file(self, dictionaries: list[str]) -> None:
            super()._open_file(dictionaries)
            opened[0] += 1
            opened[1] = max(opened)

        def _close_file(self) -> None:
            opened[0] -= self._writer is not None
            super()._close_file()

    monkeypatch.setattr(arrangement, "DataWriter", Counting)
    sales = Sales(hadoop, settings("id"))
    sales.copy(1500)
    sales.stream.settings = settings("bucket(1000, id)")
    for i in range(1500):
        sales.put(**row(i, note="moved"))
    sales.apply()
    assert opened == [0, 1]
    sales.check()


@pytest.mark.nightly
def test_changelogs_have_partitions_of_their_own_columns(hadoop: Lake) -> None:
    """A changelog can be divided by the time of the commit."""
    by = settings("day(_levada_commit_ts)", "_levada_op", sort_by=("_levada_commit_lsn desc",))
    sales = Sales(hadoop, by, mode=TableMode.CHANGELOG)
    sales.copy(10)
    for i in range(12):
        sales.put(**row(i, note="x"))
    sales.drop(3)
    sales.stream.truncate()
    sales.apply()
    check_files(hadoop, by)
    assert [tuple(r) for r in hadoop.sql("SELECT _levada_op, count(*) FROM {t} GROUP BY 1 ORDER BY 1")] == [
        ("D", 1), ("I", 12), ("T", 1), ("U", 10)]  # fmt: skip


@pytest.mark.nightly
def test_a_widened_partition_column(hadoop: Lake) -> None:
    """Files from before keep their partitions in the narrower type, and take deletes."""
    narrow = table(
        column(1, "id", Kind.INT4),
        column(2, "shelf", Kind.INT4),
        column(3, "amount", Kind.DECIMAL, precision=5, scale=2),
    )
    wide = table(
        column(1, "id", Kind.INT8),
        column(2, "shelf", Kind.INT8),
        column(3, "amount", Kind.DECIMAL, precision=12, scale=2),
    )
    sales = Sales(hadoop, settings("bucket(3, id)", "shelf", "truncate(100, amount)"), schema=narrow)
    rows = [{"id": i, "shelf": [None, -1, 7][i % 3], "amount": Decimal(i - 5)} for i in range(12)]
    sales.rows = {r["id"]: r for r in rows}
    sales.destination.write_table_rows(sales.stream.target, MemoryRows(narrow, rows), hadoop.mark(1000))
    sales.stream.alter(wide)
    for i in range(0, 14, 2):
        sales.put(id=i, shelf=2**40, amount=Decimal(10**8))
    sales.apply()
    sales.check()
    sales.destination = hadoop.destination(work="restarted")
    for i in range(0, 12, 3):
        sales.put(id=i, shelf=-1, amount=None)
    sales.apply()
    sales.check()
    assert [r.id for r in hadoop.sql("SELECT id FROM {t} WHERE shelf = 7")] == [
        r["id"] for r in sales.rows.values() if r["shelf"] == 7
    ]
    hadoop.sql("CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all','true'))")
    sales.check()


def test_columns_with_odd_names(hadoop: Lake) -> None:
    """Dots, spaces, quotes and backquotes are parts of a name."""
    names = ["a.b", "with `ticks`", "ü x", '"q"', "day(at)"]
    schema = table(column(1, "id", Kind.INT8), *(column(i, n, Kind.TEXT) for i, n in enumerate(names, 2)))
    quoted = [f"`{n.replace('`', '``')}`" for n in names]
    sales = Sales(hadoop, settings(*quoted, sort_by=(f"bucket(2, {quoted[0]})", *quoted)), schema=schema)
    rows = [{"id": i, **{n: f"{n} {i % 2}" for n in names}} for i in range(6)]
    sales.rows = {r["id"]: r for r in rows}
    sales.destination.write_table_rows(sales.stream.target, MemoryRows(schema, rows), hadoop.mark(1000))
    sales.check()
    for i in range(3, 8):
        sales.put(id=i, **dict.fromkeys(names, f"new {i}"))
    sales.apply()
    sales.check()
    assert len(hadoop.iceberg().spec().fields) == 5


@pytest.mark.nightly
def test_a_column_with_the_name_of_a_partition(hadoop: Lake) -> None:
    """Iceberg refuses it for good, so a resync makes the table again. Until then it stays as it is."""
    sales = Sales(hadoop, settings("country"))
    sales.copy(4)
    sales.stream.settings = None
    sales.put(**row(1, note="x"))
    sales.apply()
    moved = replace(SALES, columns=(*(replace(c, name="land") if c.name == "country" else c for c in SALES.columns),
                                    column(6, "country", Kind.TEXT)))  # fmt: skip
    sales.stream.alter(moved)
    sales.stream.insert(id=9, land="DE", country="FR", at=None, amount=None, note=None)
    batch = sales.stream.batch()
    with pytest.raises(NeedsOperator) as raised:
        sales.destination.write_events(batch, hadoop.mark(batch.until))
    assert raised.value.code == "partition_name_taken"
    assert "levada resync" in (raised.value.hint or "")
    sales.check()
    target = TableTarget.of(moved, settings=settings("country"))
    copied = MemoryRows(moved, [{"id": 1, "country": "FR", "land": "DE", "at": None, "amount": None, "note": None}])
    assert not sales.destination.copy_replacement(target, copied, hadoop.mark(9000))
    sales.destination.drop_table_for_copy(target)
    sales.destination.write_table_rows(target, copied, hadoop.mark(9000))
    assert [r["country"] for r in hadoop.rows()] == ["FR"]


@pytest.mark.nightly
def test_deletes_stay_in_their_partitions_when_the_format_version_rises(hadoop: Lake) -> None:
    """Position deletes of two specs become deletion vectors, each in the partition of its data file."""
    sales = Sales(hadoop, settings("country"))
    sales.copy(40)
    for number in (1, 2, 9):
        sales.drop(number)
    sales.apply()
    sales.stream.settings = settings("bucket(3, id)")
    sales.put(**row(3, note="moved"))
    sales.put(**row(50))
    sales.apply()
    sales.drop(50)
    sales.apply()
    hadoop.manifest["formatVersion"] = 3
    sales.destination = hadoop.destination(work="other")
    for number in (4, 10):
        sales.drop(number)
    sales.put(**row(3, note="moved again"))
    sales.apply()
    sales.check()
    name = hadoop.spark_name()
    found = hadoop.spark.sql(
        "SELECT d.file_format AS form, d.spec_id = f.spec_id AND d.partition <=> f.partition AS fits "
        f"FROM {name}.delete_files d LEFT JOIN {name}.data_files f ON f.file_path = d.referenced_data_file"
    ).collect()
    assert {f.form for f in found} == {"PUFFIN"}
    assert all(f.fits for f in found)
    assert len(found) > 3
