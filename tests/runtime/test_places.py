"""The mapping from tables of the source to tables at the destination. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from levada.destinations.collisions import Place, TargetName, find_later
from levada.destinations.iceberg.catalog_config import CatalogConfig
from levada.destinations.iceberg.settings import Settings
from levada.errors import NeedsOperator
from levada.runtime.config import PipelineConfig, TableConfig
from levada.runtime.tables.exchanged_names import find_followers
from levada.runtime.tables.places import find_misplaced, place_problems, require_no_kept_rows
from levada.runtime.tables.requests import CopySettings, settings_changed
from levada.schema import TableTarget
from levada.schema.masks import Mask, TableMasks
from levada.schema.stored_types import AS_RESOLVED, ColumnChoice, StoredTypes
from levada.testing.destinations.steps import ORDERS as STORED
from levada.values import Deletes, MaskMethod, OnPartitionGone, OnUnstreamable, QualifiedTable, TableId, TableMode

ORDERS, BILLS = QualifiedTable("public", "orders"), QualifiedTable("public", "bills")
CATALOGS: dict[str, dict[str, Any]] = {
    "Hadoop": {"type": "Hadoop", "warehouse": "/lake"},
    "Jdbc": {"type": "Jdbc", "uri": "jdbc:postgresql://h/db", "warehouse": "/lake"},
    "MySQL": {"type": "Jdbc", "uri": "jdbc:mysql://h/db", "warehouse": "/lake"},
    "Rest": {"type": "Rest", "uri": "http://h"},
    "Hive": {"type": "Hive", "uri": "thrift://h"},
    "Glue": {"type": "Glue", "warehouse": "s3://lake"},
}


def catalog(kind: str = "Hadoop", namespace: str = "lake") -> CatalogConfig:
    """A catalog as a manifest names it."""
    return CatalogConfig.of(Settings.model_validate({"catalog": CATALOGS[kind], "namespace": namespace}), "shop")


def config(**tables: TableConfig) -> PipelineConfig:
    """A configuration with settings for some tables of schema public."""
    made: Any = PipelineConfig.__new__(PipelineConfig)
    for name, value in {"tables": {QualifiedTable("public", t): s for t, s in tables.items()}}.items():
        object.__setattr__(made, name, value)
    object.__setattr__(made, "default_table", TableConfig())
    object.__setattr__(made, "copies_depend_on", "")
    object.__setattr__(made, "copied_otherwise", ())
    object.__setattr__(made, "mask_comments", {})
    object.__setattr__(made, "name", "shop")
    object.__setattr__(made, "namespace", "")
    object.__setattr__(made, "largest_own_copy", None)
    result: PipelineConfig = made
    return result


def new(*tables: QualifiedTable) -> dict[TableId, tuple[QualifiedTable, CopySettings | None]]:
    """Tables that were never copied, the first with the lowest OID."""
    return {TableId(i): (table, None) for i, table in enumerate(tables, start=1)}


def test_tables_of_one_name_collide() -> None:
    """Two schemas in one namespace, and a destinationTable that is another table's name: both are named."""
    tables = new(QualifiedTable("a", "orders"), QualifiedTable("a", "u"), BILLS)
    moved = config(bills=TableConfig(destination_table="orders"))
    ((error, refused),) = place_problems(moved, catalog().target_name, tables)
    assert (error.code, refused) == ("destination_collision", True)
    assert "a.orders and public.bills have the same table at the destination: lake.orders" in error.message
    assert not list(place_problems(moved, catalog(namespace="{schema}").target_name, tables))


@pytest.mark.parametrize(
    ("kind", "collide"), [("Hadoop", False), ("Jdbc", False), ("MySQL", True), ("Rest", True), ("Hive", True)]
)
def test_names_that_differ_in_case_collide_where_that_is_folded(kind: str, collide: bool) -> None:
    """A catalog that may take two names for one table gets one of them."""
    tables = new(QualifiedTable("public", "Orders"), ORDERS)
    assert bool(list(place_problems(config(), catalog(kind).target_name, tables))) is collide


def test_new_tables_of_one_name_stop_no_pipeline_with_copied_tables() -> None:
    """They were created at the source since. A manifest that moves copied tables to one place is refused as before."""
    one, other = QualifiedTable("a", "t"), QualifiedTable("b", "t")
    copied = {TableId(9): (ORDERS, CopySettings.of(config(), ORDERS))}
    ((error, refused),) = place_problems(config(), catalog().target_name, {**copied, **new(one, other)})
    assert (error.code, refused) == ("destination_collision", False)
    misplaced = find_misplaced(config(), catalog().target_name, {**copied, **new(one, other)})
    assert misplaced.keys() == {2}, "the second one is parked"
    moved = config(bills=TableConfig(destination_table="x"), orders=TableConfig(destination_table="x"))
    both = copied | {TableId(10): (BILLS, CopySettings.of(config(), BILLS))}
    assert [refused for _, refused in place_problems(moved, catalog().target_name, both)] == [True]


def test_the_hint_on_kept_rows_has_a_command_that_runs() -> None:
    """A table whose name has a blank is one argument of it."""
    table = QualifiedTable("public", "late orders")
    target = TableTarget(replace(STORED, name=table), TableMode.UPSERT, table).keeping(Deletes.MARK)
    destination: Any = SimpleNamespace(has_table=lambda target: True)
    with pytest.raises(NeedsOperator) as refused:
        require_no_kept_rows(destination, target)
    *_, argument = shlex.split(refused.value.hint)
    assert QualifiedTable.parse(argument) == table


@pytest.mark.parametrize("name", ["..", ".", "../../x", "a/b", "a\\b", "a#b?c%d", "a\nb\t", " a ", "a.b", "metadata"])
def test_every_name_is_one_part_of_a_path_below_its_namespace(name: str) -> None:
    """This holds for a table and for a schema in the namespace's template. A search of the lake finds the schema."""
    lake = catalog(namespace="shop_{schema}")
    found = lake.table(QualifiedTable(name, name), QualifiedTable(name, name))
    for part in (*found.namespace, found.name):
        assert not set(part) & set("./\\#?\n\t")
        assert part.strip() == part
    assert lake.may_hold(found.namespace)


@pytest.mark.parametrize(
    ("kind", "name", "usable"),
    [
        ("Hive", "Orders", True),
        ("Hive", "größe", False),
        ("Hive", "a b", False),
        ("Glue", "orders_2", True),
        ("Glue", "Orders", False),
        ("Hadoop", "注" * 85, True),
        ("Hadoop", "注" * 86, False),
        ("Jdbc", "x" * 256, False),
    ],
)
def test_names_that_a_catalog_does_not_take_are_refused(kind: str, name: str, usable: bool) -> None:
    """Never cut, folded or replaced: the user gives the table another name."""
    place = QualifiedTable("public", name)
    if usable:
        assert catalog(kind).table(ORDERS, place).name == name
        return
    with pytest.raises(NeedsOperator) as caught:
        catalog(kind).table(ORDERS, place)
    assert caught.value.code == "destination_name_unusable"
    assert "destinationTable" in caught.value.hint


def test_who_has_a_target_keeps_it() -> None:
    """Of other tables, the one with the oldest OID has the target.

    A table may keep its target, whatever others want.
    """
    one, other = TargetName("lake.t", "lake.t"), TargetName("lake.u", "lake.u")
    young, old = Place(TableId(9), ORDERS, one, one), Place(TableId(1), BILLS, one)
    assert find_later([old, young]) == {1: young}
    assert find_later([old, replace(young, held=None)]) == {9: old}
    assert find_later([replace(old, wanted=other), young]) == {}
    # Two tables that want to exchange their places would each drop the other's.
    crossed = [Place(TableId(1), BILLS, one, other), Place(TableId(2), ORDERS, other, one)]
    assert find_later(crossed).keys() == {1, 2}


def test_a_renamed_table_keeps_its_place() -> None:
    """Only a destinationTable under the new name moves it, and another copy under the same settings does not."""
    before = CopySettings.of(config(), ORDERS)
    again = CopySettings.of(config(), BILLS, before)
    assert before.place == again.place == CopySettings.of(config(), BILLS, again).place == ORDERS
    assert catalog().table(BILLS, again.place).name == "orders"
    assert not settings_changed(before, again)
    moved = CopySettings.of(config(bills=TableConfig(destination_table="bills")), BILLS, before)
    assert moved.place == BILLS
    assert settings_changed(before, moved)


def test_a_renamed_table_keeps_its_destination_table() -> None:
    """The settings of the former name's TableSync hold until a TableSync of the new name differs."""
    before = CopySettings.of(config(orders=TableConfig(destination_table="x")), ORDERS)
    again = CopySettings.of(config(orders=TableConfig(destination_table="x")), BILLS, before)
    assert before.place == again.place == QualifiedTable("public", "x")
    assert not settings_changed(again, CopySettings.of(config(), BILLS, again))
    same = CopySettings.of(config(bills=TableConfig(destination_table="x")), BILLS, before)
    assert not settings_changed(before, same)
    taken_back = CopySettings.of(config(), ORDERS, before)
    assert taken_back.place == ORDERS
    assert settings_changed(before, taken_back)


def test_a_renamed_table_keeps_its_columns() -> None:
    """Its exclusions, masks and types stay, until a TableSync of the new name says otherwise."""
    masks = TableMasks.of({"card": Mask(MaskMethod.NULL)})
    chosen = TableConfig(
        excluded_columns=frozenset({"note"}), stored_types=StoredTypes.of({"price": "Text"}), masks=masks
    )
    before = CopySettings.of(config(orders=chosen), ORDERS)
    assert CopySettings.from_text(before.to_text()) == before
    for now in (config(orders=chosen), config()):
        again = CopySettings.of(now, BILLS, before)
        assert again.choice == before.choice == chosen.choice
        assert not settings_changed(before, again)
    changed = CopySettings.of(config(orders=replace(chosen, stored_types=AS_RESOLVED)), BILLS, before)
    assert settings_changed(before, changed)
    taken_back = CopySettings.of(config(bills=TableConfig()), BILLS, before)
    assert taken_back.choice == ColumnChoice()
    assert settings_changed(before, taken_back)


def test_a_new_table_under_the_old_name_is_misplaced() -> None:
    """The renamed table goes on, also where names were swapped.

    The error of the new table names the holder of its place.
    """
    before = CopySettings.of(config(), ORDERS)
    found = find_misplaced(config(), catalog().target_name, {TableId(1): (BILLS, before), TableId(2): (ORDERS, None)})
    assert found.keys() == {2}
    assert "public.bills and public.orders" in found[TableId(2)].message
    swapped = {TableId(1): (BILLS, before), TableId(2): (ORDERS, CopySettings.of(config(), BILLS))}
    assert find_misplaced(config(), catalog().target_name, swapped) == {}


def test_places_follow_names_that_went_to_other_tables() -> None:
    """A swap, a new table and a dropped one make the tables follow. A rename to a free name and an exchange do not."""
    old, new = QualifiedTable("public", "old"), QualifiedTable("public", "new")

    def followers(left: tuple[QualifiedTable, ...] = (), of: PipelineConfig | None = None, **names: str) -> set[int]:
        """Return those of tables that were copied as orders, new and bills, by the names that they have now."""
        copied = {"orders": (1, ORDERS), "new": (2, new), "bills": (3, BILLS), "created": (4, None)}
        known = {
            TableId(copied[was][0]): (
                QualifiedTable("public", now),
                CopySettings.of(config(), before) if (before := copied[was][1]) else None,
            )
            for was, now in names.items()
        }
        return {int(t) for t in find_followers(of or config(), known, left, {TableId(1): 10})}

    assert followers(orders="old", new="new", bills="bills") == set()
    assert followers(orders="old", new="orders", bills="bills") == {1, 2}
    assert followers(orders="new", new="orders", bills="bills") == set()
    assert followers(orders="new", new="bills", bills="orders") == set()
    assert followers(orders="old", new="orders", bills="new") == {1, 2, 3}
    assert followers(orders="old", created="orders") == {1}
    assert followers((ORDERS,), new="orders", bills="bills") == {2}
    gone = TableConfig(on_partition_gone=OnPartitionGone.KEEP)
    assert followers(of=config(old=gone), orders="old", new="orders") == set()
    held = TableConfig(on_unstreamable=OnUnstreamable.HOLD)
    assert followers(of=config(old=held), orders="old", new="orders") == set()
    assert followers(of=config(old=TableConfig(destination_table="orders")), orders="old", new="orders") == set()
    limited = config()
    object.__setattr__(limited, "largest_own_copy", 10)
    assert followers(of=limited, orders="old", new="orders") == {1}, "the size of the other one is not known"

    before = CopySettings.from_text(replace(CopySettings.of(config(), ORDERS), follows=True).to_text())
    assert CopySettings.of(config(), old, before).place == old
    assert settings_changed(before, CopySettings.of(config(), old, before))


def test_a_check_lists_all_that_is_wrong_with_names() -> None:
    """A collision keeps a pipeline from starting. A name that cannot be used keeps out its table alone."""
    tables = new(QualifiedTable("a", "t"), QualifiedTable("b", "t"), QualifiedTable("a", "größe"))
    found = [(error.code, refused) for error, refused in place_problems(config(), catalog("Hive").target_name, tables)]
    assert found == [("destination_name_unusable", False), ("destination_collision", True)]
