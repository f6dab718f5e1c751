"""The BigQuery destination, on an emulator."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.bigquery import PROJECT, Emulator, emulator
from tests.servers.ports import free_port

from levada.destinations import DestinationContext, OnSchemaChange
from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.failures import failure
from levada.destinations.bigquery.json_text import json_arrays
from levada.destinations.bigquery.rest import RestClient
from levada.destinations.bigquery.served_table import ServedTable
from levada.destinations.bigquery.settings import Settings
from levada.destinations.data_files import upsert
from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, StaleEpoch, Transient, Unrepresentable
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import OP
from levada.testing import ArrowRows, DestinationConformance, DestinationPlace, column, fold_changelog, table
from levada.values import Durability, Lsn, QualifiedTable, TableId, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
_numbers = itertools.count(1)


@dataclass
class Warehouse:
    """The datasets of one test."""

    server: Emulator
    manifest: dict[str, Any]
    context: DestinationContext
    dataset: str

    def destination(self, **context: Any) -> BigQueryDestination:
        """A destination as a process that just started has it."""
        settings = Settings.model_validate(self.manifest)
        made = BigQueryDestination.from_settings(settings, replace(self.context, **context))
        made.startup()
        return made

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        return Watermark(self.context.pipeline, epoch, Lsn(lsn))

    def rows(self, name: str = "orders", columns: str = "*") -> list[list[Any]]:
        return self.server.sql(f"SELECT {columns} FROM `{PROJECT}`.`{self.dataset}`.`{name}` ORDER BY 1")

    def items(self) -> dict[int, Any]:
        return {int(i): item for i, item in self.rows(columns="id, item")}

    def read_back(self, target: TableTarget) -> list[dict[str, Any]]:
        """Return the rows of a table in the types of the source, by BigQuery's own client."""
        found = self.server.read(self.dataset, target.name.name)
        columns = {}
        for name in found.column_names:
            source = next((c for c in target.schema.columns if c.name == name), None)
            values = found.column(name)
            if source is not None and source.type.kind is Kind.ARRAY:
                columns[name] = [None if v is None else json.loads(v) for v in values.to_pylist()]
            else:
                columns[name] = (values if source is None else values.cast(source.type.arrow)).to_pylist()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return fold_changelog(target.schema, rows) if OP in found.column_names else rows

    def staged(self) -> set[str]:
        """The tables of the metadata dataset that are no state."""
        return {t for t in self.server.tables(f"{self.dataset}_meta") if not t.startswith("state_")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for the module."""
    with emulator(tmp_path_factory.mktemp("bigquery")) as found:
        yield found


@pytest.fixture
def warehouse(server: Emulator, tmp_path: Path) -> Warehouse:
    """Datasets without tables."""
    dataset = f"shop_{next(_numbers)}"
    manifest = {
        "project": PROJECT,
        "dataset": dataset,
        "metadataDataset": f"{dataset}_meta",
        "endpoint": server.endpoint,
    }
    return Warehouse(server, manifest, DestinationContext("shop", tmp_path), dataset)


@dataclass(frozen=True)
class InChild:
    """Opens the destination in another process."""

    manifest: dict[str, Any]
    context: DestinationContext

    def __call__(self) -> BigQueryDestination:
        return BigQueryDestination.from_settings(Settings.model_validate(self.manifest), self.context)


def shown(column: Column, value: Any) -> Any:
    """Return a value as `read_back` has it: arrays are JSON."""
    if column.type.kind is Kind.ARRAY:
        return [e.strftime("%Y-%m-%d %H:%M:%S.%f+00") if isinstance(e, dt.datetime) else e for e in value]
    return value


class TestConformance(DestinationConformance):
    """The conformance suite, read back by BigQuery's own client."""

    @pytest.fixture
    def place(self, warehouse: Warehouse) -> DestinationPlace:
        """Return datasets without tables."""
        return DestinationPlace(
            open=lambda: InChild(warehouse.manifest, warehouse.context)(),
            read=warehouse.read_back,
            shown=shown,
            in_child=InChild(warehouse.manifest, warehouse.context),
        )


def copy(
    warehouse: Warehouse,
    destination: BigQueryDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    name: QualifiedTable | None = None,
    epoch: int = 1,
) -> Stream:
    """Copy rows 1 to n as of LSN 1000. The stream returned has the changes after that."""
    target = TableTarget.of(schema, mode, name)
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), warehouse.mark(1000, epoch))
    return Stream(schema, mode=mode)


def apply(warehouse: Warehouse, destination: BigQueryDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, warehouse.mark(batch.until, epoch)) is Durability.DURABLE


def test_copy_then_changes(warehouse: Warehouse) -> None:
    """A copy and a batch of changes leave the last state of each row, and no staging table."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    assert destination.applied(ORDERS.id) == warehouse.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(warehouse, destination, stream)
    assert warehouse.items() == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(TableId(1)) is None
    assert warehouse.staged() == set()


def error_of(call: Callable[[], object]) -> LevadaError:
    """Return the error that the call raises."""
    with pytest.raises(LevadaError) as caught:
        call()
    return caught.value


def test_two_drivers_of_one_epoch_write_a_batch_once(warehouse: Warehouse) -> None:
    """Of two processes that apply the same changes to a changelog at the same time, one changes nothing."""
    first, second = warehouse.destination(), warehouse.destination()
    stream = copy(warehouse, first, mode=TableMode.CHANGELOG)
    for destination in (first, second):
        assert destination.applied(ORDERS.id) == warehouse.mark(1000)
    stream.insert(id=4, item="once", note=None)
    batch = stream.batch()
    first.write_events(batch, warehouse.mark(batch.until))
    # The second still knows the state from before.
    assert error_of(lambda: second.write_events(batch, warehouse.mark(batch.until))).code == "commit_conflict"
    second.write_events(batch, warehouse.mark(batch.until))
    assert [r[0] for r in warehouse.rows(columns="item")].count("once") == 1


def test_the_shadow_copy_of_a_newer_driver_stays(warehouse: Warehouse) -> None:
    """An older driver neither drops nor replaces the shadow copy of a newer one."""
    older, newer = warehouse.destination(), warehouse.destination()
    copy(warehouse, older)
    target = TableTarget.of(ORDERS, TableMode.UPSERT)
    assert older.copy_replacement(target, ArrowRows.of(ORDERS, []), warehouse.mark(1000))
    fresh = [{"id": 1, "item": "fresh", "note": None}]
    assert newer.copy_replacement(target, ArrowRows.of(ORDERS, fresh), warehouse.mark(1000, 2))
    with pytest.raises(StaleEpoch):
        older.copy_replacement(target, ArrowRows.of(ORDERS, []), warehouse.mark(1000))
    with pytest.raises(StaleEpoch):
        older.drop_replacement(ORDERS.id)
    assert newer.swap_replacement(ORDERS.id, warehouse.mark(1000, 2))
    assert warehouse.items() == {1: "fresh"}


def test_only_the_shadow_copy_of_this_process_is_swapped_in(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a shadow copy that took the place of another one never become those of the table."""
    one, two = warehouse.destination(), warehouse.destination()
    copy(warehouse, one)
    target, mark = TableTarget.of(ORDERS, TableMode.UPSERT), warehouse.mark(1000)
    assert one.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    assert two.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    assert not one.swap_replacement(ORDERS.id, mark)
    assert one.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    change = ServedTable.change

    def overtaken(self: ServedTable, *arguments: Any) -> Any:
        monkeypatch.undo()
        assert two.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
        return change(self, *arguments)

    monkeypatch.setattr(ServedTable, "change", overtaken)
    with pytest.raises(Transient):
        one.swap_replacement(ORDERS.id, mark)
    assert len(warehouse.items()) == 3


def test_a_changelog_has_every_change(warehouse: Warehouse) -> None:
    """A changelog has copied rows, both halves of a changed key, deletes and truncates, with LSN and ordinal."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination, mode=TableMode.CHANGELOG, n=1)
    stream.update(id=1, item="A", note=None, unchanged=[3])
    stream.update(old={"id": 1}, id=2, item="B", note="n")
    stream.truncate()
    stream.delete(id=2)
    apply(warehouse, destination, stream)
    found = warehouse.server.read(warehouse.dataset, "orders").sort_by("_levada_commit_lsn").to_pylist()
    assert [(r["_levada_op"], r["id"], r["_levada_unchanged"]) for r in found] == [
        ("I", 1, []),
        ("U", 1, ["note"]),
        ("D", 1, []),
        ("I", 2, []),
        ("T", None, []),
        ("D", 2, []),
    ]
    assert found[0]["_levada_commit_lsn"] == 1000
    assert found[0]["_levada_ordinal"] is None
    assert all(r["_levada_ordinal"] is not None for r in found[1:])


def test_a_batch_of_many_pieces(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a batch are merged in order, and unknown values pass from piece to piece, under other keys too."""
    monkeypatch.setattr(upsert, "PIECE_ROWS", 1)
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    for turn in range(3):
        stream.update(id=1, item=f"turn {turn}", note=None, unchanged=[3])
    stream.update(old={"id": 1}, id=5, item="five", note=None, unchanged=[3])
    stream.update(old={"id": 5}, id=6, item="six", note=None, unchanged=[3])
    stream.delete(id=2)
    stream.insert(id=2, item="again", note="n")
    apply(warehouse, destination, stream)
    assert warehouse.rows(columns="id, item, note") == [
        ["2", "again", "n"],
        ["3", "item 3", "x" * 100],
        ["6", "six", "x" * 100],
    ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (column(1, "k", Kind.FLOAT8), [float("nan"), -0.0, 1.5]),
        (column(1, "k", Kind.JSON), ['{"a": 1}', "null", "[1,2]"]),
        (column(1, "k", Kind.BYTEA), [b"", b"\x00", b"\xff"]),
        (column(1, "k", Kind.TIMESTAMPTZ), [dt.datetime(y, 1, 1, tzinfo=dt.UTC) for y in (1, 1970, 9999)]),
        (column(1, "k", Kind.DATE), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
        (column(1, "k", Kind.TIME), [dt.time(0), dt.time(1, 2, 3, 4), dt.time(23, 59, 59, 999999)]),
        (column(1, "k", Kind.DECIMAL, precision=20, scale=4), [Decimal("-1.5"), Decimal("0"), Decimal("1e15")]),
        (column(1, "k", Kind.BOOL), [True, False]),
        (column(1, "k", Kind.TEXT), ["", "a'b\\", "ü"]),
        (column(1, "k", Kind.ARRAY, element=ColumnType(Kind.INT4)), [[], [None], [1, 2]]),
    ],
    ids=lambda v: v.type.kind.value if isinstance(v, Column) else "",
)
def test_keys_of_every_type(warehouse: Warehouse, kind: Column, values: list[Any]) -> None:
    """A row is updated and deleted by a key of any type, and never doubled."""
    if kind.type.kind is Kind.JSON:
        kind = replace(kind, type_oid=3802)
    schema = table(kind, column(2, "v", Kind.INT8), name="public.keyed")
    destination = warehouse.destination()
    rows = [{"k": k, "v": n} for n, k in enumerate(values)]
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    stream = Stream(schema)
    for n, k in enumerate(values):
        stream.update(k=k, v=100 + n)
    stream.delete(k=values[0])
    apply(warehouse, destination, stream)
    found = warehouse.rows("keyed", "v")
    assert sorted(int(v) for (v,) in found) == [100 + n for n in range(1, len(values))]


@pytest.mark.parametrize("day", ["10000-01-01", "0001-01-01 BC"])
def test_a_year_that_bigquery_lacks(warehouse: Warehouse, day: str) -> None:
    """A date outside of the years 1 to 9999 parks the table, in the stream and in a copy, without its value."""
    schema = table(column(1, "id", Kind.INT8), column(2, "day", Kind.DATE), name="public.days")
    destination = warehouse.destination()
    days = {"10000-01-01": 2932897, "0001-01-01 BC": -719528}[day]
    columns = [pa.array([1]), pa.array([days], pa.int32()).cast(pa.date32())]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    target, rows = TableTarget.of(schema), ArrowRows(schema, batch)
    error = error_of(lambda: destination.write_table_rows(target, rows, warehouse.mark(1000)))
    assert (type(error), error.code) == (Unrepresentable, "unrepresentable_value")
    assert "Text" in error.hint
    assert day not in str(error)
    assert destination.applied(schema.id) is None


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (
            ColumnType(Kind.DECIMAL, precision=20, scale=10),
            ["0.0000001", "0", "-1.5", None],
            '["0.0000001000","0.0000000000","-1.5000000000",null]',
        ),
        (
            ColumnType(Kind.DATE),
            [17_542_950, -719_163, -719_162, 2_932_896, None],
            '["50000-12-19","0001-12-31 BC","0001-01-01","9999-12-31",null]',
        ),
        (
            ColumnType(Kind.TIMESTAMPTZ),
            [9_145_440_000_000_000_000, -62_135_596_800_000_001, 1, None],
            '["291777-06-16 00:00:00.000000+00","0001-12-31 23:59:59.999999+00 BC",'
            '"1970-01-01 00:00:00.000001+00",null]',
        ),
    ],
    ids=["decimals", "dates", "times"],
)
def test_elements_of_arrays_as_postgres_prints_them(kind: ColumnType, values: list[Any], text: str) -> None:
    """Small decimals have no exponent in an array, and days have their era and years of any length."""
    if kind.kind is Kind.DECIMAL:
        elements = pa.array([None if v is None else Decimal(v) for v in values], kind.arrow)
    else:
        elements = pa.array(values, pa.int32() if kind.kind is Kind.DATE else pa.int64()).view(kind.arrow)
    lists = pa.ListArray.from_arrays([0, len(elements), len(elements)], elements)
    assert json_arrays(lists, ColumnType(Kind.ARRAY, element=kind)).to_pylist() == [text, "[]"]


@pytest.mark.parametrize(
    "default",
    [{"defaultTableExpirationMs": "3600000"}, {"defaultCollation": "und:ci"}],
    ids=["expiration", "collation"],
)
def test_defaults_of_a_dataset_that_lose_rows(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, default: dict[str, str]
) -> None:
    """No table is created in a dataset whose defaults would lose rows."""
    destination, dataset = warehouse.destination(), RestClient.dataset

    def with_default(self: RestClient, name: str) -> Any:
        found = dataset(self, name)
        return None if found is None else {**found, **default}

    monkeypatch.setattr(RestClient, "dataset", with_default)
    for call in (lambda: copy(warehouse, destination), warehouse.destination):
        assert error_of(call).code == "destination_loses_rows"
    assert not warehouse.server.tables(warehouse.dataset)


def test_a_row_that_is_too_large(warehouse: Warehouse) -> None:
    """A row above 10 MB parks the table. Rows that are larger only together are split."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    for n in range(4, 9):
        stream.insert(id=n, item="x" * 4_000_000, note=None)
    apply(warehouse, destination, stream)
    assert len(warehouse.items()) == 8
    stream.insert(id=9, item="y" * 10_500_000, note=None)
    error = error_of(lambda: apply(warehouse, destination, stream))
    assert error.code == "row_too_large"
    assert "yyy" not in str(error)
    assert warehouse.staged() == set()


def test_tables_of_others_are_left_alone(warehouse: Warehouse) -> None:
    """A table without our label, or of another pipeline or source table, is never dropped, replaced or written."""
    mine = warehouse.destination()
    warehouse.server.call(
        "POST", "/datasets", {"datasetReference": {"projectId": PROJECT, "datasetId": warehouse.dataset}}
    )
    warehouse.server.sql(f"CREATE TABLE `{warehouse.dataset}`.orders AS SELECT 1 AS a")
    target = TableTarget.of(ORDERS)

    def acts(destination: BigQueryDestination, target: TableTarget) -> list[Callable[[], object]]:
        return [
            lambda: destination.check_place(target),
            lambda: destination.drop_table_for_copy(target, 1),
            lambda: destination.write_table_rows(target, MemoryRows(target.schema), warehouse.mark(1000)),
            lambda: destination.copy_replacement(target, MemoryRows(target.schema), warehouse.mark(1000)),
        ]

    for act in acts(mine, target):
        assert error_of(act).code == "table_not_ours"
    assert warehouse.rows() == [["1"]]
    warehouse.server.sql(f"DROP TABLE `{warehouse.dataset}`.orders")
    copy(warehouse, mine)
    for act in acts(warehouse.destination(pipeline="another"), target):
        error = error_of(act)
        assert error.code == "table_not_ours"
        assert "Pipeline shop" in error.message
    twin = TableTarget.of(replace(ORDERS, id=TableId(17000)))
    for act in acts(mine, twin):
        assert error_of(act).code == "destination_collision"
    assert len(warehouse.items()) == 3


def test_what_others_do_to_a_table(warehouse: Warehouse) -> None:
    """A dropped column, a replaced or dropped table, and a state that was set back park the table."""
    destination = warehouse.destination()
    name = f"`{warehouse.dataset}`.orders"
    stream = copy(warehouse, destination)
    warehouse.server.sql(f"ALTER TABLE {name} DROP COLUMN note")
    stream.insert(id=4, item="d", note="n")
    batch = stream.batch()
    mark = warehouse.mark(batch.until)
    assert error_of(lambda: destination.write_events(batch, mark)).code == "foreign_schema_change"
    rows = MemoryRows(ORDERS, [{"id": 1, "item": "a", "note": "n"}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, mark) is False
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    stream = copy(warehouse, destination)
    state = next(t for t in warehouse.server.tables(f"{warehouse.dataset}_meta") if t.startswith("state_"))
    warehouse.server.sql(f"ALTER TABLE {name} ADD COLUMN theirs STRING")
    stream.insert(id=4, item="d", note=None)
    apply(warehouse, destination, stream)
    assert len(warehouse.items()) == 4
    warehouse.server.sql(f"UPDATE `{warehouse.dataset}_meta`.`{state}` SET lsn = 900 WHERE TRUE")
    assert error_of(lambda: destination.applied(ORDERS.id)).code == "table_rolled_back"
    warehouse.server.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT 1 AS id")
    again = warehouse.destination()
    assert error_of(lambda: again.maintain(ORDERS.id) or again.applied(ORDERS.id)).code == "table_not_ours"
    warehouse.server.sql(f"DROP TABLE {name}")
    stream.insert(id=5, item="e", note=None)
    assert error_of(lambda: apply(warehouse, again, stream)).code == "destination_table_missing"
    assert again.applied(ORDERS.id) is None


def test_a_kill_between_a_statement_and_its_state(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ALTER TABLE is repeated or recognised after a kill before it or after it, also where names change places."""
    swapped = (ORDERS.columns[0], replace(ORDERS.columns[1], name="note"), replace(ORDERS.columns[2], name="item"))
    wanted = replace(ORDERS, columns=(*swapped, column(4, "n", Kind.INT4, missing_value="7")))

    class Killed(BaseException):
        pass

    plain = ServedTable.alter

    for number, (before, at) in enumerate(itertools.product((True, False), range(4))):
        schema = replace(ORDERS, id=TableId(18000 + number), name=QualifiedTable("public", f"t{number}"))
        stream = copy(warehouse, warehouse.destination(), schema)
        stream.alter(replace(wanted, id=schema.id, name=schema.name))
        stream.insert(id=4, note="was item", item="was note", n=None)
        batch = stream.batch()
        count = itertools.count()

        def alter(self: ServedTable, change: str, count: Any = count, before: bool = before, at: int = at) -> None:
            killed = next(count) == at
            if not (killed and before):
                plain(self, change)
            if killed:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(ServedTable, "alter", alter)
            with pytest.raises(Killed):
                warehouse.destination().write_events(batch, warehouse.mark(batch.until))
        warehouse.destination().write_events(batch, warehouse.mark(batch.until))
        assert warehouse.rows(schema.name.name, "id, note, item, n") == [
            *([str(i), f"item {i}", "x" * 100, "7"] for i in (1, 2, 3)),
            ["4", "was item", "was note", None],
        ]


def test_partitions_and_clusters(warehouse: Warehouse) -> None:
    """A table has the partitions and clusters of its layout, and another layout needs another table."""
    schema = table(column(1, "id", Kind.INT8), column(2, "at", Kind.TIMESTAMPTZ), column(3, "item", Kind.TEXT))
    layout = {"table": "public.orders", "partitionBy": "at", "partitionUnit": "Month", "clusterBy": ["item"]}
    rows = [{"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "item": "a"}]
    warehouse.destination().write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    path = f"/datasets/{warehouse.dataset}/tables/orders"
    assert warehouse.server.call("GET", path)["clustering"] == {"fields": ["id"]}
    warehouse.manifest["layouts"] = [layout]
    destination = warehouse.destination()
    assert destination.copy_replacement(TableTarget.of(schema), MemoryRows(schema), warehouse.mark(1000)) is False
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    found = warehouse.server.call("GET", path)
    assert found["timePartitioning"]["type"] == "MONTH"
    assert found["timePartitioning"]["field"] == "at"
    assert found["clustering"] == {"fields": ["item"]}
    stream = Stream(schema)
    stream.alter(replace(schema, columns=schema.columns[:2]))
    stream.update(id=1, at=None)
    assert error_of(lambda: apply(warehouse, destination, stream)).code == "schema_change_unsupported"
    warehouse.manifest["layouts"] = [{**layout, "clusterBy": ["missing"]}]
    error = error_of(
        lambda: warehouse.destination().write_table_rows(
            TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000)
        )
    )
    assert error.code == "invalid_manifest"


def test_policies_of_schema_changes(warehouse: Warehouse) -> None:
    """Fail names the change and parks. Ignore leaves new columns out, and dropped ones become NULL."""
    stream = copy(warehouse, warehouse.destination())
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns[:2], column(4, "more", Kind.INT4, missing_value="1"))))
    stream.insert(id=4, item="d", more=5)
    batch = stream.batch()
    failing = warehouse.destination(on_schema_change=OnSchemaChange.FAIL)
    error = error_of(lambda: failing.write_events(batch, warehouse.mark(batch.until)))
    assert error.code == "schema_change_refused"
    assert "more" in error.message
    warehouse.destination(on_schema_change=OnSchemaChange.IGNORE).write_events(batch, warehouse.mark(batch.until))
    assert warehouse.rows(columns="*")[-1] == ["4", "d", None]


def test_no_server(warehouse: Warehouse) -> None:
    """A server that does not answer is Transient, for the REST API and for the Storage Write API."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    warehouse.manifest["endpoint"] = {**warehouse.server.endpoint, "storage": f"127.0.0.1:{free_port()}"}
    away = warehouse.destination()
    assert isinstance(error_of(lambda: away.write_events(batch, warehouse.mark(batch.until))), Transient)
    warehouse.manifest["endpoint"] = {"rest": f"http://127.0.0.1:{free_port()}", "storage": "127.0.0.1:1"}
    assert isinstance(error_of(warehouse.destination), Transient)
    destination.write_events(batch, warehouse.mark(batch.until))
    assert len(warehouse.items()) == 4


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind", "code"),
    [
        (403, "accessDenied", "x", AccessDenied, "destination_denied"),
        (403, "quotaExceeded", "x", Transient, "destination_unavailable"),
        (403, "rateLimitExceeded", "x", Transient, "destination_unavailable"),
        (0, "backendError", "x", Transient, "destination_unavailable"),
        (503, "", "x", Transient, "destination_unavailable"),
        (401, "", "x", LoginFailed, "destination_login_failed"),
        (0, "invalidQuery", "Transaction is aborted due to concurrent update", Transient, "commit_conflict"),
        (400, "invalidQuery", "secret value", NeedsOperator, "destination_error"),
    ],
)
def test_errors(status: int, reason: str, message: str, kind: type[LevadaError], code: str) -> None:
    """BigQuery's reasons decide who resolves an error, and no value of a row is in the message."""
    error = failure("write t", status, reason, message, has_rows=True)
    assert (type(error), getattr(error, "code", "")) == (kind, code)
    assert "secret" not in str(error)


def test_credentials(tmp_path: Path) -> None:
    """A service account's key opens a session and a channel. Any other text is LoginFailed, and is in no message."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "private_key": key.decode(),
        "client_email": "levada@project-1.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    connection = Connection.of(Settings.model_validate({"project": PROJECT}), tmp_path)
    federation = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "/var/run/token"},
    }
    file = tmp_path / "credentials.json"
    for good in (account, federation):
        file.write_text(json.dumps(good))
        connection.session().close()
        connection.channel().close()
    for text in ("secret", '"secret"', '{"type": "secret"}', json.dumps({**account, "private_key": "secret"})):
        file.write_text(text)
        for opened in (connection.session, connection.channel):
            error = error_of(opened)
            assert (type(error), error.code) == (LoginFailed, "credentials_unreadable")
            assert "secret" not in str(error)
    file.unlink()
    assert error_of(connection.session).code == "credentials_unreadable"
