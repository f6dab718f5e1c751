"""A table in the lake has one owner. No other pipeline drops, replaces or writes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS, RECREATED, TWIN, Source, apply, copy, items
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import QualifiedTable

NAME = ORDERS.name


def one_namespace(lake: Lake) -> Lake:
    """The lake with a namespace that does not have the source's schema in it."""
    return replace(lake, manifest={**lake.manifest, "namespace": "shop_public"})


def acts(lake: Lake, destination: IcebergDestination, schema: ReplicatedTableSchema) -> dict[str, Callable[[], object]]:
    """Everything that removes or changes what is in a table's place."""
    stream = Stream(schema)
    stream.delete(id=1)
    batch = stream.batch()
    return {
        "check": lambda: destination.check_place(TableTarget.of(schema)),
        "drop": lambda: destination.drop_table_for_copy(TableTarget.of(schema)),
        "copy": lambda: destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema), lake.mark(1000)),
        "apply": lambda: destination.write_events(batch, lake.mark(batch.until)),
        "replace": lambda: destination.copy_replacement(TableTarget.of(schema), MemoryRows(schema), lake.mark(1000)),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("fresh", [True, False], ids=["a new process", "the same process"])
def test_a_table_of_another_source_table_is_left_alone(lake: Lake, fresh: bool) -> None:
    """Two tables of the source with one name in the lake: the second is refused whatever it asks for."""
    lake = one_namespace(lake)
    destination = lake.destination(source=Source())
    copy(lake, destination)
    if fresh:
        destination = lake.destination(source=Source())
    for name, act in acts(lake, destination, TWIN).items():
        with pytest.raises(NeedsOperator) as caught:
            act()
        assert caught.value.code == "destination_collision", name
        assert "public.orders" in caught.value.message
    for act in (lambda: destination.applied(TWIN.id), lambda: destination.swap_replacement(TWIN.id, lake.mark(1000))):
        with pytest.raises(NeedsOperator, match=r"public\.orders"):
            act()
    assert lake.destination(source=Source()).applied(TWIN.id) is None
    assert len(items(lake)) == 3


def test_a_table_of_the_same_pipeline_over_another_source_is_left_alone(hadoop: Lake) -> None:
    """Pipelines of one name over two databases may have tables of one name and OID. The source distinguishes them."""
    copy(hadoop, hadoop.destination(source=Source()))
    destination = hadoop.destination(source=Source("7302/5"))
    for name, act in acts(hadoop, destination, ORDERS).items():
        with pytest.raises(NeedsOperator) as caught:
            act()
        assert caught.value.code == "table_not_ours", name
        assert "another source" in caught.value.message
    assert hadoop.destination(source=Source("7302/5")).applied(ORDERS.id) is None
    assert len(items(hadoop)) == 3


def test_a_table_of_another_namespaces_pipeline_is_left_alone(hadoop: Lake) -> None:
    """Two Pipelines of one name over one source and one lake: the second is refused, and nothing is replaced."""
    copy(hadoop, hadoop.destination(source=Source(), namespace="a"))
    before = items(hadoop)
    destination = hadoop.destination(source=Source(), namespace="b")
    for name, act in acts(hadoop, destination, ORDERS).items():
        with pytest.raises(NeedsOperator) as caught:
            act()
        assert caught.value.code == "table_not_ours", name
        assert "belongs to Pipeline a/" in caught.value.message
        assert f"this is Pipeline b/{hadoop.context.pipeline}" in caught.value.message
    assert hadoop.destination(source=Source(), namespace="b").applied(ORDERS.id) is None
    assert items(hadoop) == before
    assert hadoop.destination(source=Source(), namespace="a").applied(ORDERS.id) == hadoop.mark(1000)


def test_a_new_owner_has_the_tables_of_the_former(hadoop: Lake) -> None:
    """The tables get the new owner's name at its start, so that a new Pipeline of the former one's name is refused."""
    former = hadoop.context.pipeline
    stream = copy(hadoop, hadoop.destination(source=Source()))
    destination = hadoop.destination(source=Source(), namespace="a", former_names=lambda: (former,))
    assert destination.applied(ORDERS.id) == hadoop.mark(1000)
    assert hadoop.iceberg().properties["levada.pipeline"] == f"a/{former}"
    stream.delete(id=1)
    apply(hadoop, hadoop.destination(source=Source(), namespace="a"), stream)
    assert len(items(hadoop)) == 2
    with pytest.raises(NeedsOperator, match=f"belongs to Pipeline a/{former}"):
        hadoop.destination(source=Source()).drop_table_for_copy(TableTarget.of(ORDERS))
    assert len(items(hadoop)) == 2


def test_a_renamed_pipeline_keeps_its_tables(hadoop: Lake) -> None:
    """It goes on where the former name ended, whose epochs were counted in another state."""
    former = hadoop.context.pipeline
    stream = copy(hadoop, hadoop.destination(source=Source()))
    stream.insert(id=4, item="d", note=None)
    apply(hadoop, hadoop.destination(source=Source()), stream, epoch=5)
    renamed = replace(hadoop, context=replace(hadoop.context, pipeline="bills"))
    destination = renamed.destination(source=Source(), former_names=lambda: (former,))
    assert destination.applied(ORDERS.id) == hadoop.mark(stream.taken, epoch=5)
    stream.delete(id=1)
    apply(renamed, destination, stream)
    stream.update(id=2, item="two", note=None)
    apply(renamed, destination, stream)
    assert items(renamed) == {2: "two", 3: "item 3", 4: "d"}
    assert renamed.destination(source=Source()).applied(ORDERS.id) == renamed.mark(stream.taken)


def test_a_clean_up_removes_the_tables_of_a_former_owner(hadoop: Lake) -> None:
    """Also one that the new owner has never started with."""
    copy(hadoop, hadoop.destination(source=Source(), namespace="a"))
    former = f"a/{hadoop.context.pipeline}"
    destination = hadoop.destination(source=Source(), namespace="b", former_names=lambda: (former,))
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    assert hadoop.destination(source=Source(), namespace="a").applied(ORDERS.id) is None


def test_a_table_that_takes_another_ones_place_while_it_is_known(hadoop: Lake) -> None:
    """A table may be replaced by another pipeline's between two batches. The next batch sees the new owner."""
    other = replace(hadoop, context=replace(hadoop.context, pipeline="other"))
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    hadoop.destination(work="x").drop_table_for_copy(TableTarget.of(ORDERS))
    copy(other, other.destination())
    stream.delete(id=1)
    batch = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(batch, hadoop.mark(batch.until))
    assert caught.value.code == "table_not_ours"
    assert len(items(other)) == 3


@pytest.mark.nightly
def test_a_former_table_of_the_same_name_makes_room(hadoop: Lake) -> None:
    """The source's table was dropped and created again: its new copy takes the place of the one in the lake."""
    copy(hadoop, hadoop.destination(source=Source()))
    destination = hadoop.destination(source=Source(tables=(RECREATED,)))
    destination.check_place(TableTarget.of(RECREATED))
    destination.drop_table_for_copy(TableTarget.of(RECREATED))
    copy(hadoop, destination, RECREATED, n=1)
    assert len(items(hadoop)) == 1
    assert hadoop.destination(source=Source()).applied(ORDERS.id) is None


def test_a_former_table_that_still_exists_keeps_its_place(hadoop: Lake) -> None:
    """A table was renamed, selected or not, and another was created under its name: that one is refused."""
    copy(hadoop, hadoop.destination(source=Source()))
    destination = hadoop.destination(source=Source())
    with pytest.raises(NeedsOperator) as caught:
        destination.drop_table_for_copy(TableTarget.of(RECREATED))
    assert caught.value.code == "destination_collision"
    assert len(items(hadoop)) == 3


@pytest.mark.nightly
def test_a_move_to_a_place_that_is_taken_removes_nothing(hadoop: Lake) -> None:
    """A table whose destinationTable becomes another one's name keeps the table that it has."""
    bills = replace(TWIN, name=QualifiedTable("public", "bills"))
    destination = hadoop.destination()
    copy(hadoop, destination)
    copy(hadoop, destination, bills)
    moved = TableTarget.of(bills, name=NAME)
    for asked in (destination, hadoop.destination()):
        with pytest.raises(NeedsOperator) as caught:
            asked.drop_table_for_copy(moved)
        assert caught.value.code == "destination_collision"
    assert len(items(hadoop)) == len(hadoop.rows("bills")) == 3


def test_a_renamed_table_is_found_by_its_oid(hadoop: Lake) -> None:
    """After a restart too. A target keeps the name of the copy, so the next copy is in the same table."""
    kept = QualifiedTable("public", "kept")
    copy(hadoop, hadoop.destination(), name=kept)
    renamed = replace(ORDERS, name=QualifiedTable("public", "bills"))
    destination = hadoop.destination()
    assert destination.applied(ORDERS.id) == hadoop.mark(1000)
    destination.drop_table_for_copy(TableTarget.of(renamed, name=kept))
    copy(hadoop, destination, renamed, n=1, name=kept)
    assert len(hadoop.rows("kept")) == 1


def test_a_copy_of_the_table_is_not_the_table(hadoop: Lake) -> None:
    """A copied folder, with the properties in it, is neither written nor dropped."""
    copy(hadoop, hadoop.destination())
    folder = Path(hadoop.manifest["catalog"]["warehouse"]) / "shop_public"
    shutil.copytree(folder / "orders", folder / "a_backup")
    destination = hadoop.destination()
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    copy(hadoop, destination, n=1)
    assert len(items(hadoop)) == 1
    assert (folder / "a_backup" / "metadata" / "version-hint.text").exists()


def test_remains_of_unknown_origin_stay(hadoop: Lake) -> None:
    """A folder whose metadata is gone is removed only where this table's own drop has removed it."""
    folder = Path(hadoop.manifest["catalog"]["warehouse"]) / "shop_public" / "orders" / "metadata"
    folder.mkdir(parents=True)
    (folder / "version-hint.text").write_text("1")
    destination = hadoop.destination()
    with pytest.raises(NeedsOperator) as caught:
        destination.drop_table_for_copy(TableTarget.of(ORDERS))
    assert caught.value.code == "table_not_ours"
    assert (folder / "version-hint.text").exists()


@pytest.mark.parametrize(
    ("namespace", "place"), [("shop_public.orders", "metadata"), ("shop_public", "lower")], ids=["within", "around"]
)
def test_no_table_is_in_another_ones_folder(hadoop: Lake, namespace: str, place: str) -> None:
    """A namespace of a Hadoop catalog is a folder like a table: one in the other would go with it."""
    if place == "lower":
        first = replace(hadoop, manifest={**hadoop.manifest, "namespace": "shop_public.lower"})
        copy(first, first.destination())
    else:
        copy(hadoop, hadoop.destination())
    other = replace(hadoop, manifest={**hadoop.manifest, "namespace": namespace})
    name = QualifiedTable("other", place)
    destination = other.destination()
    acts: tuple[Callable[[], object], ...] = (
        lambda: destination.drop_table_for_copy(TableTarget.of(TWIN, name=name)),
        lambda: copy(other, destination, TWIN, name=name),
    )
    for act in acts:
        with pytest.raises(NeedsOperator) as caught:
            act()
        assert caught.value.code == "table_not_ours"
        assert "share a folder" in caught.value.message


def test_pipelines_of_a_jdbc_catalog_have_folders_of_their_own(jdbc: Lake) -> None:
    """Each pipeline has a catalog of its own there: tables of one name are two, and so are their folders."""
    other = replace(jdbc, context=replace(jdbc.context, pipeline="other"))
    copy(jdbc, jdbc.destination())
    copy(other, other.destination())
    folders: list[Any] = [lake.iceberg().properties["write.data.path"] for lake in (jdbc, other)]
    assert folders[0] != folders[1]
    other.destination(work="next").drop_table_for_copy(TableTarget.of(ORDERS))
    assert len(items(jdbc)) == 3


def test_an_owner_goes_on(lake: Lake) -> None:
    """The same pipeline over the same source, in a new process, writes and drops what is its own."""
    stream = copy(lake, lake.destination(source=Source()))
    stream.delete(id=1)
    apply(lake, lake.destination(source=Source()), stream)
    assert len(items(lake)) == 2
    lake.destination(source=Source()).drop_table_for_copy(TableTarget.of(ORDERS))
    assert lake.destination(source=Source()).applied(ORDERS.id) is None


@pytest.mark.sampled
@pytest.mark.parametrize("fresh", [True, False], ids=["a new process", "the same process"])
def test_tables_of_a_former_source_make_room(hadoop: Lake, fresh: bool) -> None:
    """A pipeline whose source is another server now copies every table again, whatever OIDs they have there."""
    source = Source()
    destination = hadoop.destination(source=source)
    copy(hadoop, destination)
    if fresh:
        destination = hadoop.destination(source=Source("7302/5", former=("7301/5",)))
    else:
        source.identity, source.former = "7302/5", ("7301/5",)
    for schema in (ORDERS, RECREATED):
        destination.check_place(TableTarget.of(schema))
        assert not destination.copy_replacement(TableTarget.of(schema), MemoryRows(schema), hadoop.mark(1000))
    destination.drop_table_for_copy(TableTarget.of(ORDERS))
    copy(hadoop, destination, n=1)
    assert len(items(hadoop)) == 1
    assert hadoop.destination(source=Source("7302/5")).applied(ORDERS.id) == hadoop.mark(1000)


def test_a_table_whose_place_was_taken_moves_away(hadoop: Lake) -> None:
    """Another pipeline has the table's place by now: destinationTable gives it another one, without a restart."""
    other = replace(hadoop, context=replace(hadoop.context, pipeline="other"))
    moved = QualifiedTable("public", "moved")
    destination = hadoop.destination()
    copy(hadoop, destination)
    hadoop.destination(work="x").drop_table_for_copy(TableTarget.of(ORDERS))
    copy(other, other.destination())
    destination.drop_table_for_copy(TableTarget.of(ORDERS, name=moved))
    copy(hadoop, destination, n=1, name=moved)
    assert len(hadoop.rows("moved")) == 1
    assert len(items(other)) == 3
