"""The catalog: what is published, how large it is, and what a table's schema is."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import sql
from tests.rigs.database import Database

from levada.destinations import DestinationContext
from levada.destinations.ducklake.format import create_catalog
from levada.destinations.ducklake.state import State as LakeState
from levada.destinations.ownership import Owner
from levada.destinations.postgres.state import State
from levada.errors import NeedsOperator
from levada.postgres.catalog import (
    describe_without_waiting,
    list_tables,
    published_tables,
    read_table_schema,
    read_type_infos,
)
from levada.postgres.storage import read_storage
from levada.postgres.written_tables import list_written_tables
from levada.schema import IdentityKind, Kind, ReplicatedTableSchema
from levada.schema.storage import LeafStorage
from levada.values import OnUnrepresentable, QualifiedTable, SnapshotId, TableId


def table_id(db: Database, name: str) -> TableId:
    """The table's OID."""
    return TableId(db.query("SELECT %s::regclass::oid", name)[0][0])


def schema_of(db: Database, name: str, **options: object) -> ReplicatedTableSchema:
    """The table's schema as a fresh connection reads it."""
    with db.connection.connect() as c:
        return read_table_schema(c, table_id(db, name), **options)  # type: ignore[arg-type]  # named by the tests


@pytest.mark.since(15)
def test_published_tables_are_told_with_limits_and_sizes(versions: Database) -> None:
    """Row filter and column list are as the stream applies them, sizes are those of the table's own storage."""
    versions.execute(
        "CREATE TABLE b (id int PRIMARY KEY, v text, w text)",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE unpublished (id int)",
        "INSERT INTO b SELECT g, repeat('x', 1000), '' FROM generate_series(1, 100) g",
        "ANALYZE b",
        "CREATE PUBLICATION p FOR TABLE a, b (id, w) WHERE (id > 5)",
    )
    with versions.connection.connect() as c:
        a, b = published_tables(c, "p")
        with pytest.raises(NeedsOperator) as raised:
            published_tables(c, "nowhere")
        # An open snapshot is read as it is.
        with c.transaction():
            assert [t.name for t in published_tables(c, "p")] == [a.name, b.name]
    assert raised.value.code == "publication_missing"
    assert (a.name, a.row_filter, a.column_attnums, a.blocks) == (QualifiedTable("public", "a"), None, None, 0)
    assert a.estimated_rows is None
    assert (b.row_filter, b.column_attnums, b.estimated_rows) == ("(id > 5)", (1, 3), 100)
    assert (b.kind, [leaf.id for leaf in b.leaves]) == ("r", [b.id])
    assert b.blocks == 15
    assert b.bytes >= b.blocks * 8192


def test_partitions_follow_the_publication(db: Database) -> None:
    """Published through its root, a partitioned table is one table with its leaves. Otherwise each leaf is a table."""
    db.execute(
        "CREATE TABLE r (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE r_a PARTITION OF r FOR VALUES IN ('a')",
        "CREATE TABLE r_b PARTITION OF r FOR VALUES IN ('b') PARTITION BY RANGE (id)",
        "CREATE TABLE r_b1 PARTITION OF r_b FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION whole FOR TABLE r WITH (publish_via_partition_root)",
        "CREATE PUBLICATION parts FOR TABLE r",
        "INSERT INTO r VALUES (1, 'a'), (2, 'b')",
    )
    with db.connection.connect() as c:
        (root,) = published_tables(c, "whole")
        leaves = published_tables(c, "parts")
        assert list_tables(c) == (QualifiedTable("public", "r"),)
    assert (root.name.name, root.kind) == ("r", "p")
    assert [leaf.name.name for leaf in root.leaves] == ["r_a", "r_b1"]
    assert root.blocks == 2
    assert [(t.name.name, t.kind) for t in leaves] == [("r_a", "r"), ("r_b1", "r")]


def test_no_role_hides_the_tables_of_another(db: Database, role: str) -> None:
    """A table that is called as the ledger of a store is hides no table of another owner."""
    db.execute(
        f"GRANT CREATE ON SCHEMA public TO {role}",
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"SET ROLE {role}; CREATE TABLE store_migrations (id int); CREATE TABLE mine (id int); RESET ROLE",
        "CREATE SCHEMA store; CREATE TABLE store.store_migrations (id int); CREATE TABLE store.pipelines (id int)",
    )
    with db.connection.connect() as c:
        assert list_tables(c) == (QualifiedTable("public", "t"),)


def test_the_state_of_a_destination_is_no_table_of_the_user(db: Database) -> None:
    """A destination in the source database writes its state with each batch, which would be replicated without end."""
    state = State("elsewhere", Owner(DestinationContext("shop", Path(), None)))
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with db.connection.connect() as c:
        state.create(c)
        assert list_tables(c) == (QualifiedTable("public", "t"),)


ICEBERG_CATALOG = (
    "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,"
    " table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),"
    " iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name))",
    "CREATE TABLE iceberg_namespace_properties (catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,"
    " property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))",
)
"""The tables of an Iceberg JDBC catalog, as Iceberg creates them."""


@pytest.mark.parametrize("schema", ["public", "lake"])
def test_the_catalogs_of_lakes_are_no_tables_of_the_user(db: Database, schema: str) -> None:
    """A catalog in the source database is written by each commit. The user's tables in its schema stay."""
    mine = ["iceberg_cones", "t", "ducklake"]
    db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}", f"ALTER DATABASE {db.name} SET search_path = {schema}")
    db.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in mine))
    with db.connection.connect() as c:
        before = list_tables(c)
        with c.transaction():
            c.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
            create_catalog(c, schema, "here", "/lake")
            LakeState(Owner(DestinationContext("shop", Path(), None))).create(c)
        db.execute(*ICEBERG_CATALOG)
        assert list_tables(c) == before == tuple(QualifiedTable(schema, name) for name in sorted(mine))
        written = list_written_tables(c)
    assert {t.name for t in written} > {"iceberg_tables", "levada_tables", "ducklake_snapshot", "ducklake_table"}
    assert not {t.name for t in written} & set(mine)


def test_a_table_that_is_only_called_as_a_catalog_is_the_users(db: Database) -> None:
    """Without the columns of a catalog, or without Levada's state in its schema, such tables are replicated."""
    names = ("ducklake_snapshot", "iceberg_namespace_properties", "iceberg_tables")
    db.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    with db.connection.connect() as c:
        assert [t.name for t in list_tables(c)] == list(names)
        assert not list_written_tables(c)


def test_columns_are_those_that_are_replicated(versions: Database) -> None:
    """Dropped and generated columns are left out, types of the user's own are resolved, attnums stay."""
    versions.execute(
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE DOMAIN amount AS numeric(10, 2)",
        "CREATE DOMAIN price AS amount NOT NULL",
        "CREATE TABLE t (id bigint PRIMARY KEY, gone int, double int GENERATED ALWAYS AS (id * 2) STORED,"
        " m mood, ms mood[], p price, ps amount[], n numeric, iv int2vector, bs box[], v varchar(10) DEFAULT 'x')",
        "ALTER TABLE t DROP gone",
    )
    schema = schema_of(versions, "t")
    kinds = {c.name: c.type.kind for c in schema.columns}
    assert kinds == {
        "id": Kind.INT8, "m": Kind.TEXT, "ms": Kind.ARRAY, "p": Kind.DECIMAL, "ps": Kind.ARRAY, "n": Kind.TEXT,
        "iv": Kind.TEXT, "bs": Kind.TEXT, "v": Kind.TEXT,
    }  # fmt: skip
    assert [c.attnum for c in schema.columns] == [1, 4, 5, 6, 7, 8, 9, 10, 11]
    by_name = {c.name: c for c in schema.columns}
    assert (by_name["p"].type.precision, by_name["p"].type.scale) == (10, 2)
    assert by_name["ps"].type.element == by_name["p"].type
    assert (by_name["m"].type_name, by_name["v"].type_name) == ("public.mood", "character varying(10)")
    assert (by_name["v"].rewritten, by_name["v"].nullable, by_name["id"].nullable) == (True, True, False)
    as_text = schema_of(versions, "t", policy=OnUnrepresentable.TEXT)
    assert as_text.by_attnum[6].type.kind is Kind.TEXT
    assert ReplicatedTableSchema.from_json(schema.to_json()) == schema
    with versions.connection.connect() as c:
        infos = read_type_infos(c, [by_name["ms"].type_oid, by_name["p"].type_oid, 23])
    assert sorted(i.name for i in infos.values()) == ["_mood", "amount", "mood", "price"]


def test_column_list_and_exclusions_narrow_the_schema(db: Database) -> None:
    """A column that is not replicated is not in the schema. A table without a part of its key has none."""
    db.execute("CREATE TABLE t (a int, b int, c int, d int, PRIMARY KEY (c, a))")
    schema = schema_of(db, "t", columns=(1, 2, 3), exclude={"b"}, snapshot_id=SnapshotId(7))
    assert [c.name for c in schema.columns] == ["a", "c"]
    assert (schema.key, schema.identity_attnums, schema.snapshot_id) == ((1, 3), (1, 3), 7)
    partial = schema_of(db, "t", exclude={"a"})
    assert (partial.key, partial.identity) == ((), IdentityKind.PRIMARY_KEY)


@pytest.mark.parametrize(
    ("statement", "identity", "attnums", "key"),
    [
        ("SELECT 1", IdentityKind.PRIMARY_KEY, (1, 2), (1, 2)),
        ("ALTER TABLE t REPLICA IDENTITY FULL", IdentityKind.FULL, (1, 2, 3), (1, 2)),
        ("ALTER TABLE t REPLICA IDENTITY NOTHING", IdentityKind.MISSING, (), ()),
        ("ALTER TABLE t REPLICA IDENTITY USING INDEX other", IdentityKind.INDEX, (3,), (3,)),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", IdentityKind.MISSING, (), ()),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, REPLICA IDENTITY FULL", IdentityKind.FULL, (1, 2, 3), ()),
        (
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a) DEFERRABLE",
            IdentityKind.MISSING, (), (),
        ),
    ],
)  # fmt: skip
def test_identity_and_key(
    versions: Database, statement: str, identity: IdentityKind, attnums: tuple[int, ...], key: tuple[int, ...]
) -> None:
    """The key is the identity's in ascending order, under FULL the primary key's. Without an identity there is none."""
    versions.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, c int NOT NULL, PRIMARY KEY (b, a) INCLUDE (c))",
        "CREATE UNIQUE INDEX other ON t (c) INCLUDE (a)",
    )
    with versions.connect() as c:
        c.execute(statement)
    schema = schema_of(versions, "t")
    assert (schema.identity, schema.identity_attnums, schema.key) == (identity, attnums, key)


@pytest.mark.parametrize(
    ("column", "missing", "rewritten"),
    [
        ("int", None, False),
        ("int DEFAULT 5", "5", False),
        ("""text DEFAULT 'it''s "{a,b}" \\'""", """it's "{a,b}" \\""", False),
        ("text DEFAULT ''", "", False),
        ("int[] DEFAULT '{1,NULL,2}'", "{1,NULL,2}", False),
        ("box DEFAULT '((1,1),(0,0))'", "(1,1),(0,0)", False),
        ("timestamptz DEFAULT '2020-01-02 03:04:05+01'", "2020-01-02 02:04:05+00", False),
        ("bytea DEFAULT '\\x00ff'", "\\x00ff", False),
        ("double precision DEFAULT random()", None, True),
        ("int GENERATED BY DEFAULT AS IDENTITY", None, True),
        ("serial", None, True),
    ],
)
def test_added_columns_tell_what_older_rows_have(
    db: Database, column: str, missing: str | None, rewritten: bool
) -> None:
    """A constant default is returned as text, and one that was computed for each row is marked as such."""
    db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    with db.connect() as c:
        c.execute("SET timezone = 'Asia/Tokyo'")
        c.execute(f"ALTER TABLE t ADD v {column}")
    added = schema_of(db, "t").columns[-1]
    assert (added.missing_value, added.rewritten) == (missing, rewritten)


def test_partitioned_table_knows_what_its_partitions_lack(db: Database) -> None:
    """A root has no rows of its own, so a constant of its older rows is found at a partition."""
    db.execute(
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (1)",
        "ALTER TABLE r ADD v int DEFAULT 7",
    )
    assert schema_of(db, "r").columns[-1].missing_value == "7"


def test_partitions_with_constants_of_their_own(db: Database) -> None:
    """A default that PostgreSQL evaluates for each partition has no constant, so existing rows are unknown."""
    db.execute(
        "CREATE SEQUENCE s",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql STABLE AS 'SELECT nextval(''s'')::int'",
        "CREATE TABLE r (id int) PARTITION BY LIST (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES IN (1)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES IN (2)",
        "INSERT INTO r VALUES (1), (2)",
        "ALTER TABLE r ADD n int DEFAULT f()",
    )
    assert len(db.query("SELECT DISTINCT n FROM r")) == 2
    added = schema_of(db, "r").columns[-1]
    assert (added.missing_value, added.rewritten) == (None, True)


def test_missing_table_is_told(db: Database) -> None:
    """A table that was dropped meanwhile needs a person."""
    with db.connection.connect() as c, pytest.raises(NeedsOperator) as raised:
        read_table_schema(c, TableId(4_000_000_000))
    assert raised.value.code == "table_missing"


def leaf(db: Database, root: str, name: str) -> LeafStorage:
    """Return a partition's storage, as a look at its root has it."""
    with db.connection.connect() as c:
        look = read_storage(c, [table_id(db, root)])
    return look.tables[table_id(db, root)].leaves[table_id(db, name)]


def test_partitions_below_an_attached_one_may_have_had_rows(db: Database) -> None:
    """A partition is born into the root only if each level between the two was."""
    db.execute(
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE r_1_1 PARTITION OF r_1 FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (1)",
        "CREATE TABLE aside (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE aside_1 PARTITION OF aside FOR VALUES FROM (10) TO (15)",
        "CREATE TABLE aside_2 PARTITION OF aside FOR VALUES FROM (15) TO (20)",
        "INSERT INTO aside VALUES (11)",
        "ALTER TABLE r ATTACH PARTITION aside FOR VALUES FROM (10) TO (20)",
    )
    assert leaf(db, "r", "r_1_1").born
    attached = [leaf(db, "r", name) for name in ("aside_1", "aside_2")]
    assert [(one.born, one.empty) for one in attached] == [(False, False), (False, True)]


def test_a_description_does_not_wait_for_a_locked_table(db: Database) -> None:
    """The columns and the key of a locked table are described as those of a free one."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text DEFAULT 'none')",
        "CREATE TABLE r (id int DEFAULT 1) PARTITION BY RANGE (id)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_2 (id int)",
        "ALTER TABLE r ATTACH PARTITION r_2 FOR VALUES FROM (10) TO (20)",
    )
    with db.connection.connect() as c:
        free = {name: describe_without_waiting(c, table_id(db, name)) for name in ("t", "r")}
        with db.connect() as holder, holder.transaction():
            holder.execute("LOCK TABLE t, r, r_1, r_2")
            c.execute("SET lock_timeout = '3s'")
            for name, description in free.items():
                locked = describe_without_waiting(c, table_id(db, name))
                assert locked.columns == description.columns
                assert locked.primary_key == description.primary_key


def test_a_look_does_not_wait_for_a_locked_table(db: Database) -> None:
    """VACUUM FULL of a large table, or any role with a table of its own, would keep all tables from being looked at."""
    db.execute(
        "CREATE TABLE t (id int)",
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_2 (id int)",
        "ALTER TABLE r ATTACH PARTITION r_2 FOR VALUES FROM (10) TO (20)",
    )
    with db.connect() as holder, holder.transaction(), db.connection.connect() as c:
        holder.execute("LOCK TABLE t, r_1, r_2")
        c.execute("SET lock_timeout = '3s'")
        look = read_storage(c, [table_id(db, "t"), table_id(db, "r")])
    assert look.tables.keys() == {table_id(db, "t"), table_id(db, "r")}
    assert not look.tables[table_id(db, "r")].leaves[table_id(db, "r_2")].empty
    assert leaf(db, "r", "r_2").empty


def test_a_key_that_is_not_streamed_as_a_whole(versions: Database) -> None:
    """A generated column, or one that the publication's list lacks, makes it no key of what is streamed."""
    versions.execute("CREATE TABLE keyed (id int, v int, g int GENERATED ALWAYS AS (v) STORED, PRIMARY KEY (id, g))")
    versions.execute("CREATE TABLE plain (id int, v int, PRIMARY KEY (id, v))")
    with versions.connection.connect() as c:
        keyed, plain = (describe_without_waiting(c, table_id(versions, name)) for name in ("keyed", "plain"))
    plain.require_streamed_key(None)
    for description, columns in ((keyed, None), (plain, [1])):
        with pytest.raises(NeedsOperator) as raised:
            description.require_streamed_key(columns)
        assert raised.value.code == "identity_missing"


@pytest.mark.since(18)
def test_an_identity_that_may_be_null_is_none_until_it_is_validated(db: Database) -> None:
    """NOT NULL that is not validated lets an index be the replica identity, and rows from before have NULL there."""
    db.execute(
        'CREATE TABLE "T" (id int, v int)',
        'INSERT INTO "T" VALUES (NULL, 1)',
        'ALTER TABLE "T" ADD CONSTRAINT nn NOT NULL id NOT VALID',
        'CREATE UNIQUE INDEX i ON "T" (id)',
        'ALTER TABLE "T" REPLICA IDENTITY USING INDEX i',
    )
    with db.connection.connect() as c:
        with pytest.raises(NeedsOperator) as raised:
            describe_without_waiting(c, table_id(db, '"T"')).require_streamed_key(None)
        assert raised.value.code == "identity_missing"
        statement, _, _ = (raised.value.hint or "").partition(";")
        c.execute('UPDATE public."T" SET id = 1')
        c.execute(statement.encode())
        describe_without_waiting(c, table_id(db, '"T"')).require_streamed_key(None)
