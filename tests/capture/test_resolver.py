"""The versions that the resolver gives to rows of the stream, with a catalog that is made up."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tests.rigs.capture import hosting

from levada.capture import TableResolver, announcements, source_catalog
from levada.errors import LevadaError
from levada.pgoutput.messages import Relation, RelationColumn
from levada.postgres.connection import PostgresConnection
from levada.postgres.description import TableDescription
from levada.postgres.membership import PublicationState
from levada.postgres.seal import DdlSeal
from levada.schema import Column, ExcludedColumn, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.schema.storage import TableStorage
from levada.schema.stored_types import ColumnChoice
from levada.stores.memory import MemoryStore
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, SnapshotId, TableId

TABLE = TableId(16400)
NAME = QualifiedTable("public", "orders")
BIGINT, TEXT, NUMERIC = 20, 25, 1700
COPY, COMMIT, XID = SnapshotId(5), SnapshotId(100), 700


def column(attnum: int, name: str, type_oid: int = TEXT, typmod: int = -1) -> Column:
    """Return a column of a built-in type."""
    shape = resolve_type(type_oid, typmod, {}, OnUnrepresentable.ERROR)
    return Column(attnum, name, shape, str(type_oid), type_oid, typmod)


ID, NOTE = column(1, "id", BIGINT), column(2, "note")


def version(*columns: Column, at: int = COPY, excluded: tuple[ExcludedColumn, ...] = ()) -> ReplicatedTableSchema:
    """Return a version of the table, whose key is its first column."""
    return ReplicatedTableSchema(
        TABLE,
        NAME,
        columns,
        IdentityKind.PRIMARY_KEY,
        (1,),
        (1,),
        SnapshotId(at),
        frozenset(c.name for c in excluded),
        excluded,
    )


def relation(*columns: Column | ExcludedColumn) -> Relation:
    """Return the RELATION message of these columns, whose key is the first one."""
    sent = tuple(RelationColumn(c.name, c.type_oid, c.typmod, i == 0) for i, c in enumerate(columns))
    return Relation(TABLE, NAME.schema, NAME.name, "d", sent)


@dataclass
class Catalog:
    """The catalog as the resolver reads it, and the store of its versions."""

    columns: tuple[Column, ...] = ()
    seal: DdlSeal | None = None
    store: MemoryStore = field(default_factory=lambda: MemoryStore("shop"))
    failed: list[LevadaError] = field(default_factory=list)

    def connect(self, application: str) -> AbstractContextManager[Catalog]:
        """Return a connection, which only this catalog's functions get."""
        return nullcontext(self)

    def describe(self, connection: Any, table: TableId) -> TableDescription:
        """Return the catalog's entry of the table."""
        storage = TableStorage.from_json({"leaves": {}, "columns": {}, "types": {}})
        return TableDescription(TABLE, NAME, self.columns, IdentityKind.PRIMARY_KEY, (1,), (1,), {}, storage)

    def resolver(self, **more: Any) -> TableResolver:
        """Return the resolver of a new process."""
        connection = cast(PostgresConnection, self)
        host = hosting(table_failed=lambda table, error: self.failed.append(error), **more)
        return TableResolver(connection, self.store, "levada", host)

    def keep(self, *versions: ReplicatedTableSchema) -> None:
        """Store versions."""
        for each in versions:
            self.store.store_table_schema(each)

    @property
    def kept(self) -> list[int]:
        """The numbers of the stored versions."""
        return [int(v.snapshot_id) for v in self.store.get_table_schemas()]


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog without a server."""
    made = Catalog()
    made.store.next_epoch()
    monkeypatch.setattr(announcements, "read_ddl_seal", lambda connection: made.seal)
    monkeypatch.setattr(source_catalog, "describe_without_waiting", made.describe)
    monkeypatch.setattr(source_catalog, "read_newer_columns", lambda *_: frozenset())
    monkeypatch.setattr(source_catalog, "read_state", lambda *_: PublicationState("levada", None, {}, {}))
    return made


def names(found: ReplicatedTableSchema | None) -> list[str]:
    """Return the names of a version's columns."""
    assert found is not None
    return [c.name for c in found.columns]


def test_a_replay_begins_with_the_version_before_the_transaction(catalog: Catalog) -> None:
    """Rows before an ALTER TABLE have the former columns, also if the later version is stored already."""
    catalog.columns, catalog.seal = (ID, NOTE), DdlSeal(b"", Lsn(0))
    catalog.keep(version(ID), version(ID, NOTE, at=COMMIT))
    resolver = catalog.resolver()
    assert resolver.relation(relation(ID), COMMIT, XID) == version(ID)
    assert resolver.relation(relation(ID, NOTE), COMMIT, XID) == version(ID, NOTE, at=COMMIT)
    assert catalog.kept == [COPY, COMMIT]


def test_another_precision_is_another_version(catalog: Catalog) -> None:
    """Values of the former precision must not be read as those of the new one."""
    before, after = column(2, "price", NUMERIC, (5 << 16 | 2) + 4), column(2, "price", NUMERIC, (9 << 16 | 4) + 4)
    catalog.columns = ID, after
    catalog.keep(version(ID, before))
    found = catalog.resolver().relation(relation(ID, after), COMMIT, XID)
    assert found is not None
    assert (found.by_attnum[2].type.precision, found.by_attnum[2].type.scale) == (9, 4)
    assert catalog.kept == [COPY, COMMIT]


def test_versions_of_one_transaction_have_different_numbers(catalog: Catalog) -> None:
    """Each one is stored, because rows of the transaction have each of them."""
    catalog.columns = ID, NOTE, column(3, "extra")
    catalog.keep(version(ID))
    resolver = catalog.resolver()
    assert names(resolver.relation(relation(ID, NOTE), COMMIT, XID)) == ["id", "note"]
    assert names(resolver.relation(relation(*catalog.columns), COMMIT, XID)) == ["id", "note", "extra"]
    assert catalog.kept == [COPY, COMMIT, COMMIT + 1]


def test_a_relation_from_before_the_trigger_is_compared_with_the_catalog(catalog: Catalog) -> None:
    """A column that was dropped and added again looks the same, and has another attnum."""
    catalog.columns, catalog.seal = (ID, column(3, "note")), DdlSeal(b"", Lsn(COMMIT + 1))
    catalog.keep(version(ID, NOTE))
    found = catalog.resolver().relation(relation(ID, NOTE), COMMIT, XID)
    assert found is None
    assert [e.code for e in catalog.failed] == ["schema_change_ambiguous"]


def test_a_relation_after_the_trigger_is_trusted(catalog: Catalog) -> None:
    """Every ALTER TABLE would have been announced, so the catalog may be ahead."""
    catalog.columns, catalog.seal = (ID, column(3, "note")), DdlSeal(b"", Lsn(COMMIT))
    catalog.keep(version(ID, NOTE))
    assert catalog.resolver().relation(relation(ID, NOTE), COMMIT, XID) == version(ID, NOTE)


def test_a_table_keeps_its_excluded_columns_until_others_are_set(catalog: Catalog) -> None:
    """The manifest's columns apply to a table without a version. Others need a copy, which sets them."""
    secret = ExcludedColumn(3, "secret", TEXT, -1)
    catalog.columns = ID, NOTE, column(3, "secret")
    catalog.keep(version(ID, NOTE, excluded=(secret,)))
    resolver = catalog.resolver(column_choice=lambda table: ColumnChoice(frozenset({"note"})))
    assert names(resolver.relation(relation(*catalog.columns), COMMIT, XID)) == ["id", "note"]
    resolver.begin_session()
    resolver.choose_columns(TABLE, ColumnChoice(frozenset({"note"})))
    assert names(resolver.relation(relation(*catalog.columns), SnapshotId(200), XID)) == ["id", "secret"]
