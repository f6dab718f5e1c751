"""The decision how a table is copied, and what is dropped and forgotten before the copy. Nothing is copied here."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rigs.recording import Recording

from levada.destinations import Capabilities, Ordering
from levada.errors import Transient
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.orders import plan_to_text, read_plan
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.tables.copy_plan import CopyPlan, Recreate, ReplaceInPlace, Shadow, plan_copy
from levada.runtime.tables.requests import CopySettings, can_replace
from levada.schema import IdentityKind, ReplicatedTableSchema, TableTarget
from levada.schema.table import COPY_VERSION
from levada.stores import CopyOrder, MemoryStore
from levada.values import QualifiedTable, SnapshotId, TableId, TableMode

ORDERS, BILLS = QualifiedTable("public", "orders"), QualifiedTable("public", "bills")
WANTED = CopySettings(ORDERS, TableMode.UPSERT, "", frozenset({"note"}), "lake", ORDERS)
FORMER: dict[str, CopySettings | None] = {
    "no copy": None,
    "same": WANTED,
    "mode": replace(WANTED, mode=TableMode.CHANGELOG),
    "columns": replace(WANTED, excluded_columns=frozenset()),
    "place": replace(WANTED, destination_table="bills", place=BILLS),
    "catalog": replace(WANTED, depends_on="another lake"),
    "renamed": replace(WANTED, table=BILLS, mode=TableMode.CHANGELOG),
    "renamed, columns": replace(WANTED, table=BILLS, excluded_columns=frozenset()),
    "renamed, place": replace(WANTED, table=BILLS, place=BILLS),
    "renamed, catalog": replace(WANTED, table=BILLS, depends_on="another lake"),
}
STAYS = {"same", "mode", "columns", "renamed", "renamed, columns"}
"""The former copies that are in the place of the next one."""
UNCHANGED = {"same", "renamed"}
"""The former copies whose settings the next one has. After a rename only the place and the columns are compared."""


@pytest.mark.parametrize("former", FORMER)
@pytest.mark.parametrize(("replaces", "streams", "dedicated"), list(product((False, True), repeat=3)))
def test_the_plan_of_every_copy(former: str, replaces: bool, streams: bool, dedicated: bool) -> None:
    """A table is dropped only if it has no copy in its place, or if the destination cannot replace it.

    It stays up to date if it streams, and if this process makes a copy with the same settings.
    """
    plan = plan_copy(FORMER[former], WANTED, replaces=replaces, streams=streams, dedicated=dedicated)
    expected: CopyPlan
    if not replaces or former not in STAYS:
        expected = Recreate(WANTED, FORMER[former])
    elif streams and not dedicated and former in UNCHANGED:
        expected = Shadow(cast(CopySettings, FORMER[former]))
    else:
        expected = ReplaceInPlace(WANTED, cast(CopySettings, FORMER[former]))
    assert plan == expected


@pytest.mark.parametrize(
    ("capabilities", "replaces"),
    [
        (Capabilities(replacement=True), True),
        (Capabilities(), False),
        (Capabilities(replacement=True, ordering=Ordering.PIPELINE), False),
    ],
)
def test_who_can_replace_a_table(capabilities: Capabilities, replaces: bool) -> None:
    """A destination with shadow copies, which gets one call per table."""
    destination = Recording()
    destination.capabilities = capabilities  # type: ignore[misc]  # of this object alone
    assert can_replace(destination) is replaces


@pytest.mark.parametrize(
    "plan", [Recreate(WANTED), Recreate(WANTED, FORMER["place"]), ReplaceInPlace(WANTED, replace(WANTED, table=BILLS))]
)
def test_an_order_transports_the_plan(plan: Recreate | ReplaceInPlace) -> None:
    """The process of a dedicated copy carries out what the driver has decided."""
    assert read_plan(CopyOrder("token", 1, plan=plan_to_text(plan))) == plan


class Dropping(Recording):
    """Keeps the targets that it dropped, with the schemas in the store at that time, and may fail."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._store = store
        self.fails = False
        self.checked: list[TableTarget] = []
        self.targets: list[TableTarget] = []

    def check_place(self, target: TableTarget) -> None:
        self.checked.append(target)

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        assert self._store.get_table_schemas(), "the store keeps the schema until the table is dropped"
        self.targets.append(target)
        if self.fails:
            raise Transient("destination_unavailable", "the destination does not answer")


STORED = ReplicatedTableSchema(TableId(1), BILLS, (), IdentityKind.FULL, snapshot_id=SnapshotId(8))
"""The last version of the table, which was renamed since."""


@pytest.fixture
def store() -> MemoryStore:
    """A store with the schema of the last copy."""
    store = MemoryStore("shop")
    store.next_epoch()
    store.store_table_schema(STORED)
    return store


def copier(store: MemoryStore, destination: Recording) -> TableCopy:
    """Return what carries a plan out, without a source."""
    none = cast(Any, None)
    config = PipelineConfig("shop", none, SlotConfig("s"), PublicationConfig("p"), StagingConfig("/s"), Path("/w"))
    return TableCopy(ConfigRef(config), store, destination, none, 1, none)


def test_a_table_is_dropped_before_the_store_forgets_it(store: MemoryStore) -> None:
    """It is dropped by the schema and the settings of the last copy. After a failure the next attempt drops it too."""
    destination, plan = Dropping(store), Recreate(WANTED, FORMER["place"])
    destination.fails = True
    with pytest.raises(Transient):
        copier(store, destination).make_room(STORED.id, ORDERS, plan)
    assert store.get_table_schemas() == (STORED,)
    destination.fails = False
    assert copier(store, destination).make_room(STORED.id, ORDERS, plan) == STORED
    assert destination.targets == [TableTarget(STORED, TableMode.UPSERT, BILLS)] * 2
    assert destination.checked == [TableTarget(replace(STORED, name=ORDERS), TableMode.UPSERT, ORDERS)] * 2
    assert store.get_table_schemas() == ()


def test_a_table_that_is_replaced_is_not_dropped(store: MemoryStore) -> None:
    """The store keeps the last schema as that of the copy, by which a destination without the table drops the rest."""
    destination = Dropping(store)
    assert copier(store, destination).make_room(STORED.id, ORDERS, ReplaceInPlace(WANTED, WANTED)) == STORED
    assert destination.targets == []
    assert store.get_table_schemas() == (replace(STORED, snapshot_id=COPY_VERSION),)


def test_nothing_is_dropped_before_the_first_copy() -> None:
    """Without a stored schema, the place is checked once the schema is read."""
    store = MemoryStore("shop")
    store.next_epoch()
    destination = Dropping(store)
    assert copier(store, destination).make_room(STORED.id, ORDERS, Recreate(WANTED)) is None
    assert destination.targets == destination.checked == []
