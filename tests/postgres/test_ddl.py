"""The DDL trigger: its messages, the statements that it never disturbs, and the databases without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.postgres.streams import kinds, open_stream, prepare, receive_until
from tests.rigs.database import Database

from levada.errors import DecodeError
from levada.postgres.catalog import read_table_description, read_table_schema
from levada.postgres.ddl import (
    AlteredPartitions,
    CreatedPartitions,
    DdlMessage,
    foreign_trigger_owner,
    install_ddl_trigger,
    parse_ddl_message,
    read_ddl_seal,
    remove_ddl_trigger,
)
from levada.postgres.ddl_functions import DDL_PREFIX
from levada.postgres.publication_owners import mark_publication
from levada.postgres.stream import ReplicationStream
from levada.schema import IdentityKind
from levada.schema.retypes import Cast
from levada.stores import PostgresStore
from levada.values import PipelineOwner, QualifiedTable, SnapshotId, TableId


def is_ddl(message: bytes) -> bool:
    """Whether it is a transactional logical message of the trigger (docs, "Logical Replication Message Formats")."""
    return message[25:27] == b"M\x01" and message[35:].startswith(DDL_PREFIX.encode() + b"\x00")


def parsed(message: bytes) -> DdlMessage:
    """Return what the message says, without its digest."""
    found = content(message)
    assert isinstance(found, DdlMessage)
    return found


def content(message: bytes) -> DdlMessage | CreatedPartitions:
    """Return what a message says, also one of new partitions."""
    return parse_ddl_message(message[35:].partition(b"\x00")[2][4 + 32 :])


def told(stream: ReplicationStream, count: int) -> list[DdlMessage]:
    """The next messages of the trigger."""
    messages = receive_until(stream, lambda m: sum(map(is_ddl, m)) == count)
    return [parsed(m) for m in messages if is_ddl(m)]


def shape(messages: list[bytes]) -> str:
    """Return the kinds of messages without relations, types and separators. D is the trigger's own."""
    return "".join(
        "D" if is_ddl(m) else chr(m[25]) for m in messages if is_ddl(m) or m[25:26] not in (b"R", b"Y", b"M")
    )


@pytest.fixture
def stream(versions: Database) -> Iterator[ReplicationStream]:
    """A stream of a database with the trigger."""
    with versions.connection.connect() as c:
        assert install_ddl_trigger(c)
    prepare(versions)
    with open_stream(versions) as s:
        yield s


def test_change_lies_between_old_rows_and_new_ones(versions: Database, stream: ReplicationStream) -> None:
    """The message is in its transaction's order, and equals what the catalog says afterwards, whatever the settings."""
    with versions.connect() as c, c.transaction():
        c.execute("SET datestyle = 'German'; SET bytea_output = 'escape'; SET search_path = pg_catalog")
        c.execute("SET quote_all_identifiers = on; SET standard_conforming_strings = off; SET array_nulls = off")
        c.execute("SET plpgsql.variable_conflict = use_column; SET transform_null_equals = on")
        c.execute("INSERT INTO public.t VALUES (1, 'a')")
        c.execute("CREATE TYPE public.mood AS ENUM ('good', 'bad')")
        c.execute("ALTER TABLE public.t RENAME v TO w")
        c.execute(
            "ALTER TABLE public.t ADD d date DEFAULT '2020-02-01', ADD m public.mood,"
            " ADD b bytea DEFAULT decode('00ff', 'hex')"
        )
        c.execute("INSERT INTO public.t (id) VALUES (2)")
    messages = receive_until(stream, lambda m: "C" in kinds(m))
    assert shape(messages) == "BIDDIC"
    last = [parsed(m) for m in messages if is_ddl(m)][-1]
    assert last.name == QualifiedTable("public", "t")
    assert [c.name for c in last.columns] == ["id", "w", "d", "m", "b"]
    assert [c.missing_value for c in last.columns] == [None, None, "2020-02-01", None, "\\x00ff"]
    with versions.connection.connect() as c:
        assert last.description.schema(snapshot_id=SnapshotId(9)) == read_table_schema(
            c, last.table_id, snapshot_id=SnapshotId(9)
        )


def test_a_query_is_announced_where_it_shows_the_statement(versions: Database, stream: ReplicationStream) -> None:
    """Not a long script, which each ALTER in it would announce, nor a query that hides the statement.

    Nor if a cast function of an enum could change texts.
    """
    query = "INSERT INTO t SELECT count(*) FROM t; ALTER TABLE t ALTER id TYPE bigint /* ; */; SELECT 1"
    nested = "DO $$ BEGIN ALTER TABLE t ALTER id TYPE bigint; END $$; ALTER TABLE t ALTER id TYPE bigint"
    versions.execute(
        query,
        "ALTER TABLE t ALTER id TYPE int;" + " " * 33_000,
        nested,
        "SET standard_conforming_strings = off",
        query,
        "RESET standard_conforming_strings",
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE FUNCTION label(mood) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'none' $$",
        "CREATE CAST (mood AS text) WITH FUNCTION label(mood) AS ASSIGNMENT",
        query,
    )
    messages = told(stream, 6)
    assert [m.query for m in messages] == [query, "", "", nested, "", ""]
    assert [dict(m.casts) for m in messages] == [{1: Cast.OWN}, {}, {}, {1: Cast.OWN}, {}, {}]


def test_only_a_short_query_is_announced_with_partitions(versions: Database, stream: ReplicationStream) -> None:
    """Each of them would announce it, and there may be thousands."""
    short, long = "ALTER TABLE r ALTER v TYPE bigint", "ALTER TABLE r ALTER v TYPE int;" + " " * 3000
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "ALTER PUBLICATION p ADD TABLE r",
        short,
        long,
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        long,
    )
    assert [(m.name.name, m.query) for m in told(stream, 3)] == [("r1", short), ("r1", ""), ("r", long)]


def test_order_holds_in_subtransactions(versions: Database, stream: ReplicationStream) -> None:
    """A row right after an ALTER comes after its message, whichever subtransaction each of the two is in."""
    with versions.connect() as c, c.transaction():
        for n in range(10):
            c.execute("SAVEPOINT s")
            c.execute(f"INSERT INTO t VALUES ({2 * n})")
            c.execute(f"ALTER TABLE t ADD c{n} int")
            if n % 2:
                c.execute("RELEASE s")
            c.execute(f"INSERT INTO t VALUES ({2 * n + 1})")
    assert shape(receive_until(stream, lambda m: "C" in kinds(m))) == "B" + "IDI" * 10 + "C"


def test_every_kind_of_change_is_told(versions: Database, stream: ReplicationStream) -> None:
    """Drops, types, defaults, nullability, identity and the table's own name all arrive."""
    versions.execute(
        "ALTER TABLE t ALTER id TYPE bigint",
        "ALTER TABLE t ALTER v SET DEFAULT 'x', ALTER v SET NOT NULL",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t DROP v",
        "ALTER TABLE t RENAME TO u",
    )
    retyped, default, full, dropped, renamed = told(stream, 5)
    assert retyped.columns[0].type_name == "bigint"
    assert (default.columns[1].rewritten, default.columns[1].nullable) == (True, False)
    assert full.description.identity is IdentityKind.FULL
    assert [c.attnum for c in dropped.columns] == [1]
    assert renamed.name == QualifiedTable("public", "u")
    assert renamed.table_id == retyped.table_id


def test_rolled_back_and_unpublished_changes_are_not_told(versions: Database, stream: ReplicationStream) -> None:
    """Only what was committed, of tables that are streamed, arrives."""
    with versions.connect() as c:
        with c.transaction(force_rollback=True):
            c.execute("ALTER TABLE t ADD gone int")
        c.execute("CREATE TABLE unpublished (id int)")
        c.execute("ALTER TABLE unpublished ADD v int")
        c.execute("CREATE TEMP TABLE t2 (id int)")
        c.execute("ALTER TABLE t2 ADD v int")
        c.execute("ALTER TABLE t ADD kept int")
    (message,) = told(stream, 1)
    assert message.columns[-1].name == "kept"


def test_a_partition_that_does_not_fit_for_a_while_is_told(versions: Database, stream: ReplicationStream) -> None:
    """Each change of a partition's identity or persistence is announced as one of the root, in their order."""
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE UNIQUE INDEX other ON r1 (v)",
        "ALTER PUBLICATION p ADD TABLE r",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
    )
    with versions.connect() as c, c.transaction():
        c.execute("ALTER TABLE r1 REPLICA IDENTITY USING INDEX other")
        c.execute("ALTER TABLE r1 REPLICA IDENTITY DEFAULT")
        c.execute("ALTER TABLE r1 SET UNLOGGED")
        c.execute("ALTER TABLE r1 SET LOGGED")
        c.execute("ALTER TABLE r REPLICA IDENTITY FULL")
    messages = [content(m) for m in receive_until(stream, lambda m: sum(map(is_ddl, m)) == 5) if is_ddl(m)]
    assert len({m.table_id for m in messages}) == 1
    leaves = [m.description.storage.leaves if isinstance(m, DdlMessage) else m.leaves for m in messages]
    flaws = [[leaf.flaw.kind for leaf in those.values() if leaf.flaw is not None] for those in leaves]
    assert flaws == [["identity"], [], ["unlogged"], [], ["identity"]]


def test_partitions_change_with_their_root(versions: Database, stream: ReplicationStream) -> None:
    """An ALTER of a root is reported for the tables that the publication streams, its partitions or the root."""
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "ALTER PUBLICATION p ADD TABLE r",
        "ALTER TABLE r ADD v int DEFAULT 3",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "ALTER TABLE r ADD w int",
    )
    first, second, root = told(stream, 3)
    assert [first.name.name, second.name.name, root.name.name] == ["r1", "r2", "r"]
    assert first.columns[-1].missing_value == "3"


def test_a_new_partition_is_announced_alone(versions: Database, stream: ReplicationStream) -> None:
    """Not with all others, of which there may be thousands, unless the transaction sees an earlier catalog."""
    versions.execute(
        "CREATE TABLE r (id int, v int) PARTITION BY RANGE (id)",
        "ALTER TABLE r REPLICA IDENTITY FULL",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "ALTER PUBLICATION p ADD TABLE r",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "CREATE TABLE mid PARTITION OF r FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE r2 PARTITION OF mid FOR VALUES FROM (10) TO (15)",
        "CREATE SCHEMA s CREATE TABLE r3 PARTITION OF public.r FOR VALUES FROM (20) TO (30)"
        " CREATE TABLE r4 PARTITION OF public.mid FOR VALUES FROM (15) TO (20)",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "CREATE TABLE r5 PARTITION OF r FOR VALUES FROM (30) TO (40)",
        "COMMIT",
    )
    names = {TableId(oid): name for name, oid in versions.query("SELECT relname, oid FROM pg_class")}
    messages = [content(m) for m in receive_until(stream, lambda m: sum(map(is_ddl, m)) == 3) if is_ddl(m)]
    assert {names[m.table_id] for m in messages} == {"r"}
    *first, last = messages
    assert isinstance(last, DdlMessage)
    created = [m.leaves for m in first if isinstance(m, CreatedPartitions)]
    assert [{names[leaf] for leaf in leaves} for leaves in created] == [{"r2"}, {"r3", "r4"}]
    stored = last.description.storage.leaves
    assert {oid: (stored[oid].filenode, stored[oid].flaw) for leaves in created for oid in leaves} == {
        oid: (leaf.filenode, leaf.flaw) for leaves in created for oid, leaf in leaves.items()
    }


def test_what_a_savepoint_has_rolled_back_does_not_outdate_a_catalog(
    versions: Database, stream: ReplicationStream
) -> None:
    """A transaction that reads an older catalog is not taken for one that lacks the change of another transaction."""
    versions.execute("CREATE TABLE r (id int PRIMARY KEY, v int)", "ALTER PUBLICATION p ADD TABLE r")
    with versions.connect() as c, versions.connect() as other:
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM r")
        c.execute("SAVEPOINT a; ALTER TABLE r ADD w int; ROLLBACK TO a; ALTER TABLE r ADD x int; COMMIT")
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class")
        c.execute("DO $$ BEGIN ALTER TABLE r DROP x; RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN NULL; END $$")
        c.execute("ALTER TABLE r ADD y int; COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class")
        other.execute("ALTER TABLE r ADD z int")
        c.execute("ALTER TABLE r ALTER v SET NOT NULL; COMMIT")
    assert [m.outdated for m in told(stream, 4)] == [False, False, False, True]


@pytest.mark.since(15)
def test_the_identities_that_the_trigger_gives_are_announced_once(
    versions: Database, stream: ReplicationStream
) -> None:
    """Their root says what they are, and not each of perhaps thousands. Nothing else is hidden by that."""
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE r{n} PARTITION OF r FOR VALUES FROM ({n}) TO ({n + 1})" for n in range(3)),  # type: ignore[list-item]
        "CREATE TABLE q (id int PRIMARY KEY)",
        "CREATE TABLE other (id int)",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "ALTER PUBLICATION p ADD TABLE r, q",
        "CREATE FUNCTION meddle() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_query() ~ 'r_pkey' AND NOT EXISTS (SELECT FROM information_schema.columns WHERE column_name = 'x')"
        " AND EXISTS (SELECT FROM pg_class WHERE relname ~ '^r[0-9]' AND relreplident = 'f')"
        " THEN ALTER TABLE public.q ADD x int; END IF; END $$",
        "CREATE EVENT TRIGGER meddle ON ddl_command_end EXECUTE FUNCTION meddle()",
        "ALTER EVENT TRIGGER meddle ENABLE ALWAYS",
    )
    with versions.connection.connect() as c:
        mark_publication(c, "p", PipelineOwner("local-1", "shop"))
    with versions.connect() as holder, versions.connect() as c:
        holder.execute("BEGIN; ALTER PUBLICATION p ADD TABLE other")
        c.execute("ALTER TABLE r DROP CONSTRAINT r_pkey")
        c.execute("SET levada_ddl.lending = 'yes'; ALTER TABLE q ADD y int")
        holder.execute("ROLLBACK")
    found = told(stream, 3)
    assert [m.name.name for m in found] == ["q", "r", "q"]
    assert len(found[1].description.storage.leaves) == 3
    oids = [int(leaf) for leaf in found[1].description.storage.leaves]
    assert set(versions.query("SELECT relreplident::text FROM pg_class WHERE oid = ANY (%s)", oids)) == {("f",)}


def test_an_altered_partition_is_announced_alone(versions: Database, stream: ReplicationStream) -> None:
    """The message says of the partition what the catalog has, whether it was created or attached, at each level."""
    versions.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 (id int PRIMARY KEY, v int)",
        "INSERT INTO r2 VALUES (10)",
        "ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE mid PARTITION OF r FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)",
        "CREATE TABLE r3 PARTITION OF mid FOR VALUES FROM (20) TO (25)",
        "ALTER PUBLICATION p ADD TABLE r",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "ALTER TABLE r1 ALTER v SET NOT NULL",
        "ALTER TABLE r2 SET (fillfactor = 50)",
        "ALTER TABLE r3 REPLICA IDENTITY NOTHING",
    )
    names = {TableId(oid): name for name, oid in versions.query("SELECT relname, oid FROM pg_class")}
    found = [content(m) for m in receive_until(stream, lambda m: sum(map(is_ddl, m)) == 3) if is_ddl(m)]
    altered = [m for m in found if isinstance(m, AlteredPartitions)]
    assert [(names[m.table_id], {names[o] for o in m.leaves}) for m in altered] == [
        ("r", {"r1"}), ("r", {"r2"}), ("r", {"r3"}),
    ]  # fmt: skip
    with versions.connect() as c:
        root = next(oid for oid, name in names.items() if name == "r")
        assert {o: leaf for m in altered for o, leaf in m.leaves.items()} == read_table_description(
            c, root
        ).storage.leaves


def test_typed_tables_change_with_their_type(versions: Database, stream: ReplicationStream) -> None:
    """ALTER TYPE ... CASCADE alters typed tables. A column that is dropped and added again by it is another one."""
    versions.execute(
        "CREATE TYPE row_of AS (id int, v text)",
        "CREATE TABLE typed OF row_of (PRIMARY KEY (id))",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (typed)",
        "ALTER PUBLICATION p ADD TABLE typed",
        "ALTER TYPE row_of DROP ATTRIBUTE v CASCADE",
        "ALTER TYPE row_of ADD ATTRIBUTE v text CASCADE",
    )
    messages = told(stream, 4)
    assert [m.name.name for m in messages] == ["typed", "child", "typed", "child"]
    assert all(m.locked for m in messages)
    assert [[c.attnum for c in m.columns] for m in messages] == [[1], [1], [1, 3], [1, 3]]


def test_an_announcement_is_what_the_catalog_has(versions: Database, stream: ReplicationStream) -> None:
    """The trigger plans only the queries that a table needs, and describes each kind of table as a copy does."""
    versions.execute(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE DOMAIN amount AS numeric(10, 2) CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (a int, m mood)",
        "CREATE TABLE plain (id int PRIMARY KEY, v text DEFAULT 'x', n numeric(5, 1))",
        "CREATE TABLE arrays (id int PRIMARY KEY, t text[], m mood[], p pair, d amount, r int4range)",
        "CREATE TABLE made (a int NOT NULL UNIQUE, b int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE made REPLICA IDENTITY USING INDEX made_a_key",
        "CREATE TABLE root (id int, at date, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
        "CREATE TABLE root_1 PARTITION OF root DEFAULT",
        # Only an announcement knows that a file is empty.
        *(f"INSERT INTO {name} VALUES (1)" for name in ("plain", "arrays", "made")),
        "ALTER PUBLICATION p SET TABLE plain, arrays, made, root",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        *(f"ALTER TABLE {name} ADD added int DEFAULT 7" for name in ("plain", "arrays", "made", "root")),
        "ALTER TYPE mood ADD VALUE 'fine'",
    )
    messages = told(stream, 5)
    assert [m.name.name for m in messages] == ["plain", "arrays", "made", "root", "arrays"]
    with versions.connection.connect() as c:
        for message in (*messages[:1], *messages[2:]):
            found = read_table_description(c, message.table_id)
            # Announcements show each change of a key, so that they need not identify it.
            assert message.description == replace(found, storage=replace(found.storage, primary=None))


def test_an_unlogged_table_is_announced(versions: Database, stream: ReplicationStream) -> None:
    """No catalog row shows afterwards that FOR ALL TABLES left a table out while it was unlogged."""
    versions.execute(
        "DROP PUBLICATION p",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "ALTER TABLE t SET UNLOGGED",
        "ALTER TABLE t SET LOGGED",
    )
    assert [(m.name.name, m.logged) for m in told(stream, 2)] == [("t", False), ("t", True)]


def test_tables_below_a_root_are_announced(versions: Database, stream: ReplicationStream) -> None:
    """Each publication that streams them as the root is named with them, also tables between root and leaf."""
    versions.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE mid (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF mid DEFAULT",
        "ALTER PUBLICATION p ADD TABLE root",
        "CREATE PUBLICATION as_root FOR TABLE root, mid WITH (publish_via_partition_root = true)",
        "ALTER TABLE root ATTACH PARTITION mid DEFAULT",
        "ALTER TABLE root DETACH PARTITION mid",
    )
    oids = {name: TableId(oid) for name, oid in versions.query("SELECT relname, oid FROM pg_class")}
    of_root = [m.partitions for m in told(stream, 3) if m.name.name == "root"]
    assert of_root == [{"as_root": frozenset({oids["mid"], oids["leaf"]})}, {"as_root": frozenset()}]


def test_an_attach_waits_for_no_other_partition(versions: Database, stream: ReplicationStream) -> None:
    """The trigger locks no table: another session may hold one for hours, as VACUUM FULL does."""
    versions.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE two (id int)",
        "ALTER PUBLICATION p ADD TABLE root",
    )
    with versions.connect() as c, c.transaction():
        c.execute("LOCK TABLE one")
        versions.execute("SET lock_timeout = '5s'; ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20)")
    assert {m.name.name for m in told(stream, 2)} == {"one", "two"}


def test_nobody_elses_alter_fails(db: Database, role: str) -> None:
    """A plain owner of a table alters it, with any search path, even where the trigger cannot write its message."""
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
    db.execute(f"CREATE SCHEMA mine AUTHORIZATION {role}", "CREATE PUBLICATION p FOR ALL TABLES")
    with replace(db.connection, user=role).connect() as c:
        c.execute("CREATE TABLE mine.t (id int PRIMARY KEY)")
        c.execute("CREATE FUNCTION mine.format_type(oid, int) RETURNS text LANGUAGE sql AS 'SELECT 1 / 0; SELECT null'")
        c.execute("SET search_path = mine, pg_catalog")
        c.execute("ALTER TABLE t ADD a int DEFAULT 1")
    with db.connect() as admin:
        flush = ", boolean" if admin.info.server_version >= 170000 else ""
        admin.execute(
            f"REVOKE ALL ON FUNCTION pg_logical_emit_message(boolean, text, text{flush}) FROM PUBLIC, postgres"
        )
    db.execute("ALTER FUNCTION levada_ddl.emit_table_change() SECURITY INVOKER")
    notices: list[str] = []
    with replace(db.connection, user=role).connect() as c:
        c.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
        c.execute("ALTER TABLE mine.t ADD b int")
    assert any("levada" in n for n in notices)
    assert len(db.query("SELECT 1 FROM pg_attribute WHERE attrelid = 'mine.t'::regclass AND attnum > 0")) == 3


def test_installing_twice_changes_nothing_and_removal_is_whole(db: Database) -> None:
    """The trigger is made once, renewed when it was disabled, and leaves nothing behind."""
    look = "SELECT oid, evtenabled FROM pg_event_trigger ORDER BY evtname"
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
        first = db.query(look)
        assert install_ddl_trigger(c)
        assert db.query(look) == first
        db.execute("ALTER EVENT TRIGGER levada_ddl DISABLE")
        assert install_ddl_trigger(c)
        assert [row[1] for row in db.query(look)] == ["A", "A"]
        assert remove_ddl_trigger(c)
        assert not remove_ddl_trigger(c)
        assert db.query(look) == []
        assert db.query("SELECT 1 FROM pg_namespace WHERE nspname = 'levada_ddl'") == []
        install_ddl_trigger(c)
        db.execute("CREATE TABLE levada_ddl.other (id int)")
        assert remove_ddl_trigger(c)
        assert db.query("SELECT count(*) FROM levada_ddl.other") == [(0,)]


def test_trigger_of_another_owner_stays(db: Database, role: str) -> None:
    """A role that does not own the trigger learns who does, and removes nothing. Its owner has no such note."""
    with db.connection.connect() as owner, replace(db.connection, user=role).connect() as other:
        assert foreign_trigger_owner(other) is None
        install_ddl_trigger(owner)
        assert (foreign_trigger_owner(owner), foreign_trigger_owner(other)) == (None, "postgres")
        assert not remove_ddl_trigger(other)
        assert db.query("SELECT evtname FROM pg_event_trigger ORDER BY 1") == [("levada_ddl",), ("levada_ddl_drop",)]
        assert remove_ddl_trigger(owner)


def test_role_without_the_right_goes_without(db: Database, role: str) -> None:
    """If the role may not create an event trigger, none is created. An existing one is used."""
    db.execute(f"GRANT CREATE ON DATABASE {db.name} TO {role}")
    with replace(db.connection, user=role).connect() as c:
        assert not install_ddl_trigger(c)
        assert db.query("SELECT 1 FROM pg_namespace WHERE nspname = 'levada_ddl'") == []
        with db.connection.connect() as admin:
            assert install_ddl_trigger(admin)
        assert install_ddl_trigger(c)


def test_a_source_whose_own_triggers_refuse_it_goes_without(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A guard against new objects keeps no pipeline from starting. The log has its message."""
    db.execute(
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'nobody makes a schema here'; END $$",
        "CREATE EVENT TRIGGER guard ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA') EXECUTE FUNCTION guard()",
    )
    with db.connection.connect() as c:
        assert not install_ddl_trigger(c)
    assert "nobody makes a schema here" in caplog.text


def test_key_is_the_installers_alone(db: Database, role: str) -> None:
    """No other role reads the key or calls the functions, even where default privileges grant both."""
    db.execute(
        f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role}",
        f"ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {role}",
        f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {role}",
    )
    with db.connection.connect() as c, replace(db.connection, user=role).connect() as other:
        assert install_ddl_trigger(c)
        assert read_ddl_seal(c) is not None
        assert read_ddl_seal(other) is None
        assert db.query(
            "SELECT has_schema_privilege(%s, 'levada_ddl', 'USAGE'),"
            " has_table_privilege(%s, 'levada_ddl.seal', 'SELECT')",
            role,
            role,
        ) == [(False, False)]
        functions = (
            "SELECT has_function_privilege(%s, oid, 'EXECUTE') FROM pg_proc WHERE pronamespace = %s::regnamespace"
        )
        assert set(db.query(functions, role, "levada_ddl")) == {(False,)}


def test_squatted_schema_is_not_used(db: Database, role: str) -> None:
    """A schema of the trigger's name that an ordinary role owns gets no trigger: its owner could replace the key."""
    db.execute(f"CREATE SCHEMA levada_ddl AUTHORIZATION {role}")
    with db.connection.connect() as c:
        assert not install_ddl_trigger(c)
        assert db.query("SELECT 1 FROM pg_event_trigger") == []


def test_seal_needs_an_unbroken_trigger(db: Database) -> None:
    """A trigger that was disabled for a moment is not relied on before it is installed again, with another key."""
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
        first = read_ddl_seal(c)
        db.execute("ALTER EVENT TRIGGER levada_ddl DISABLE", "ALTER EVENT TRIGGER levada_ddl ENABLE ALWAYS")
        assert read_ddl_seal(c) is None
        assert install_ddl_trigger(c)
        second = read_ddl_seal(c)
    assert first is not None
    assert second is not None
    assert second.key != first.key
    assert second.since > first.since


def test_held_advisory_locks_stop_nothing(db: Database, role: str) -> None:
    """A role that holds the locks that Levada takes keeps neither the trigger nor a store from being made."""
    with replace(db.connection, user=role).connect() as holder:
        for key in ("levada_ddl", "levada store levada"):
            holder.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        with db.connection.connect() as c:
            assert install_ddl_trigger(c)
        assert PostgresStore(db.connection, "shop").next_epoch() == 1


@pytest.mark.usefixtures("stream")
def test_no_setting_of_a_session_makes_the_trigger_warn(versions: Database) -> None:
    """A client that takes warnings for errors, or shows them, gets none from DDL, whatever its settings are."""
    settings = "standard_conforming_strings = off", "backslash_quote = off", "plpgsql.extra_warnings = 'all'"
    for setting in settings:
        with versions.connect() as c:
            warnings: list[str] = []
            c.add_notice_handler(lambda d, w=warnings: w.append(f"{d.severity_nonlocalized}: {d.message_primary}"))
            c.execute(f"SET {setting}".encode())
            c.execute("ALTER TABLE t ADD n int DEFAULT 1")
            c.execute("ALTER TABLE t ALTER n TYPE bigint")
            c.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
            c.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
            c.execute("ALTER TABLE t DROP n")
            c.execute("CREATE TABLE other (id int PRIMARY KEY)")
            c.execute("DROP TABLE other")
        assert warnings == [], setting


@pytest.mark.parametrize("bad", [b"", b"\xff", b"[]", b"{}", b'{"id": 1}', b"null"])
def test_foreign_content_is_a_decode_error(bad: bytes) -> None:
    """Whatever else is written with the prefix is refused, not guessed at."""
    with pytest.raises(DecodeError) as raised:
        parse_ddl_message(bad)
    assert raised.value.code == "bad_ddl_message"
