"""Tables that a managed publication must not have: those without a replica identity, and inheritance children."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.managed_publication import manage, published
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import Transient
from levada.postgres.ddl import DdlMessage, install_ddl_trigger, parse_ddl_message, remove_ddl_trigger
from levada.postgres.ddl_functions import create_statements
from levada.postgres.lent_identities import give_back, lent_for_long
from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import ensure_coverage
from levada.postgres.withdrawals import inherited_members, unidentified_members, withdraw, withdrawal_problems
from levada.values import PipelineOwner, QualifiedTable


@pytest.fixture
def managed(versions: Database) -> Database:
    """A database with the trigger, and the managed publication of a table with a key."""
    return with_media(versions)


def with_media(db: Database) -> Database:
    """Make the trigger, and the managed publication of a table with a key."""
    db.execute(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE media (id int PRIMARY KEY, kind mood NOT NULL, v text)",
        "INSERT INTO media VALUES (1, 'good', 'a')",
    )
    manage(db, "media")
    with db.connection.connect() as c:
        assert install_ddl_trigger(c)
    return db


@pytest.mark.parametrize(
    ("before", "statement"),
    [
        ("", "ALTER TABLE media DROP CONSTRAINT media_pkey"),
        ("", "ALTER TABLE media DROP id"),
        ("", "ALTER TABLE media REPLICA IDENTITY NOTHING"),
        ("", "ALTER TABLE media DROP CONSTRAINT media_pkey, ADD PRIMARY KEY (id) DEFERRABLE"),
        ("", "DO $$ BEGIN ALTER TABLE media ADD w int; ALTER TABLE media DROP CONSTRAINT media_pkey; END $$"),
        ("CREATE UNIQUE INDEX other ON media (id); ALTER TABLE media REPLICA IDENTITY USING INDEX other",
         "DROP INDEX other"),
        ("CREATE UNIQUE INDEX other ON media (kind, id); ALTER TABLE media REPLICA IDENTITY USING INDEX other",
         "DROP TYPE mood CASCADE"),
        ("ALTER TABLE media DROP CONSTRAINT media_pkey, ADD PRIMARY KEY (kind, id)", "DROP TYPE mood CASCADE"),
        ("ALTER TABLE media DROP CONSTRAINT media_pkey, ADD PRIMARY KEY (kind, id);"
         "CREATE SCHEMA side; ALTER TYPE mood SET SCHEMA side", "DROP SCHEMA side CASCADE"),
    ],
)  # fmt: skip
def test_a_table_that_loses_its_identity_is_taken_out(
    managed: Database, before: LiteralString, statement: LiteralString
) -> None:
    """Its UPDATEs and DELETEs work in the same transaction and afterwards, whichever statement removed the identity."""
    if before:
        managed.execute(before)
    with managed.connect() as c, c.transaction():
        c.execute(statement)
        c.execute("UPDATE media SET v = 'b'")
    managed.execute("UPDATE media SET v = 'c'", "DELETE FROM media")
    assert published(managed) == set()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE bare (id int); ALTER TABLE bare REPLICA IDENTITY NOTHING;"
        " ALTER TABLE root ATTACH PARTITION bare DEFAULT",
        "ALTER TABLE kept REPLICA IDENTITY NOTHING",
    ],
)
def test_a_root_with_a_partition_without_identity_is_taken_out(managed: Database, statement: LiteralString) -> None:
    """PostgreSQL would refuse the UPDATEs of that partition alone."""
    managed.execute(
        "CREATE TABLE root (id int) PARTITION BY LIST (id)",
        "CREATE TABLE kept PARTITION OF root FOR VALUES IN (1)",
        "ALTER TABLE root REPLICA IDENTITY FULL",
        "ALTER TABLE kept REPLICA IDENTITY FULL",
    )
    manage(managed, "root")
    assert published(managed) == {"media", "root"}
    managed.execute(statement, "INSERT INTO root VALUES (1), (2)" if "kept" not in statement else "SELECT 1")
    managed.execute("UPDATE root SET id = id", "DELETE FROM root")
    assert published(managed) == {"media"}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE bare PARTITION OF root DEFAULT",
        "CREATE SCHEMA side CREATE TABLE bare PARTITION OF public.root DEFAULT",
        "CREATE TABLE bare (id int); ALTER TABLE root ATTACH PARTITION bare DEFAULT",
        "CREATE TABLE part PARTITION OF root DEFAULT PARTITION BY LIST (id);"
        ' CREATE TABLE "a ""b" PARTITION OF part DEFAULT',
    ],
)
def test_a_new_partition_gets_the_full_identity_of_its_root(managed: Database, statement: LiteralString) -> None:
    """PostgreSQL gives it DEFAULT, with which it would refuse the partition's UPDATEs. The root stays published."""
    managed.execute(
        "CREATE TABLE root (id int) PARTITION BY LIST (id)",
        "CREATE TABLE kept PARTITION OF root FOR VALUES IN (1)",
        "ALTER TABLE root REPLICA IDENTITY FULL",
        "ALTER TABLE kept REPLICA IDENTITY FULL",
        "CREATE TABLE other (id int) PARTITION BY LIST (id)",
        "ALTER TABLE other REPLICA IDENTITY FULL",
        "ALTER TABLE root OWNER TO pg_monitor",
        "GRANT ALL ON SCHEMA public TO pg_monitor",
        f"GRANT CREATE ON DATABASE {managed.name} TO pg_monitor",  # type: ignore[arg-type]  # a name of the test
    )
    manage(managed, "root")
    with managed.connect() as c, c.transaction():
        c.execute("SET LOCAL ROLE pg_monitor")
        c.execute(statement)
        c.execute("INSERT INTO root VALUES (2)")
        c.execute("UPDATE root SET id = 3")
    managed.execute("CREATE TABLE unpublished PARTITION OF other DEFAULT")
    assert published(managed) == {"media", "root"}
    assert managed.query(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relispartition AND relreplident <> 'f'"
    ) == [("unpublished",)]


def test_a_partition_without_a_key_has_the_identity_of_its_root_until_it_has_one(managed: Database) -> None:
    """Its own identity comes back with a key, or once no publication needs another one. The trigger may go before."""
    managed.execute(
        "CREATE TABLE root (id int NOT NULL) PARTITION BY LIST (id)",
        "ALTER TABLE root REPLICA IDENTITY FULL",
        "CREATE TABLE a PARTITION OF root FOR VALUES IN (1)",
        "CREATE TABLE b PARTITION OF root FOR VALUES IN (2)",
        "ALTER TABLE a ADD PRIMARY KEY (id)",
        "ALTER TABLE b ADD PRIMARY KEY (id)",
        "ALTER TABLE a REPLICA IDENTITY DEFAULT",
        "ALTER TABLE b REPLICA IDENTITY DEFAULT",
    )
    manage(managed, "root")
    managed.execute(
        "INSERT INTO root VALUES (1), (2)",
        "ALTER TABLE a DROP CONSTRAINT a_pkey",
        "ALTER TABLE b DROP CONSTRAINT b_pkey",
        "UPDATE root SET id = id",
    )
    identities = "SELECT relreplident::text FROM pg_class WHERE relname IN ('a', 'b') ORDER BY relname"
    with managed.connection.connect() as c:
        assert give_back(c)
        assert managed.query(identities) == [("f",), ("f",)]
        managed.execute("ALTER TABLE a ADD PRIMARY KEY (id)", "UPDATE root SET id = id")
        assert give_back(c)
        assert managed.query(identities) == [("d",), ("f",)]
        managed.execute("UPDATE root SET id = id", "ALTER TABLE root DETACH PARTITION b")
        assert give_back(c)
        assert managed.query(identities) == [("d",), ("d",)]
        assert remove_ddl_trigger(c)


def test_only_managed_publications_lose_tables_and_only_for_good(db: Database, role: str) -> None:
    """A publication without an owner stays as it is, and so does a managed one after a rollback, or with FULL."""
    with_media(db)
    db.execute(
        "CREATE PUBLICATION mine FOR TABLE media WITH (publish = 'insert')",
        f"ALTER TABLE media OWNER TO {role}",
        "ALTER TABLE media REPLICA IDENTITY FULL",
        "ALTER TABLE media DROP CONSTRAINT media_pkey",
    )
    with replace(db.connection, user=role).connect() as c, c.transaction():
        c.execute("SET search_path = pg_temp, public, pg_catalog")
        with c.transaction(force_rollback=True):
            c.execute("ALTER TABLE media REPLICA IDENTITY DEFAULT")
            assert c.execute("SELECT count(*) FROM pg_publication_rel").fetchone() == (1,)
    assert db.query("SELECT count(*) FROM pg_publication_rel") == [(2,)]
    with replace(db.connection, user=role).connect() as c:
        c.execute("ALTER TABLE public.media REPLICA IDENTITY DEFAULT")
        c.execute("UPDATE public.media SET v = 'b'")
    assert db.query("SELECT pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid") == [
        ("mine",)
    ]


_PARTED: LiteralString = (
    "CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY LIST (id);"
    "CREATE TABLE leaf PARTITION OF root DEFAULT; INSERT INTO root VALUES (1, 'a');"
)
_LOCKED: LiteralString = "ALTER PUBLICATION p ADD TABLE other"


@pytest.mark.parametrize(
    ("made", "lock", "statement", "former"),
    [
        ("", _LOCKED, "ALTER TABLE media DROP CONSTRAINT media_pkey", "d"),
        ("", _LOCKED, "ALTER TABLE media REPLICA IDENTITY NOTHING", "n"),
        ("CREATE UNIQUE INDEX i ON media (id); ALTER TABLE media REPLICA IDENTITY USING INDEX i",
         _LOCKED, "DROP INDEX i", "n"),
        (_PARTED, "LOCK TABLE ONLY root IN SHARE UPDATE EXCLUSIVE MODE", "ALTER TABLE leaf REPLICA IDENTITY NOTHING",
         "n"),
        (_PARTED + "ALTER TABLE leaf REPLICA IDENTITY FULL", _LOCKED,
         "ALTER TABLE root ADD g int GENERATED ALWAYS AS (id + 1) STORED", "f"),
    ],
)  # fmt: skip
@pytest.mark.since(15)
def test_no_statement_fails_while_a_table_cannot_leave(
    db: Database, made: LiteralString, lock: LiteralString, statement: LiteralString, former: str
) -> None:
    """Another session has the publication or the root. The table has another identity for that time."""
    with_media(db)
    db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    if made:
        db.execute(made)
    roots, changed = (["media", "root"], "leaf") if "root" in made else (["media"], "media")
    manage(db, *roots)
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(lock)
        c.execute(statement)
        for table in (roots[-1], changed):
            c.execute(f"UPDATE {table} SET v = 'b'")  # type: ignore[arg-type]  # names of the test
        with db.connection.connect() as engine:
            assert give_back(engine) is (db.query("SELECT FROM levada_ddl.lent") == [])
        holder.execute("ROLLBACK")
    with db.connection.connect() as engine:
        # The trigger is in place, so that a look each second leaves it to that one.
        assert unidentified_members(engine, "p", always=False) == ()
        assert give_back(engine)
    db.execute(f"UPDATE {roots[-1]} SET v = 'c'")  # type: ignore[arg-type]  # names of the test
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = %s", changed) == [(former,)]
    assert published(db) == set(roots[:-1])


def test_a_lent_identity_that_was_changed_since_stays(db: Database) -> None:
    """A table that was dropped, or has got another identity from its owner, is left alone."""
    with_media(db)
    db.execute("CREATE TABLE gone (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    manage(db, "media", "gone")
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media REPLICA IDENTITY NOTHING; ALTER TABLE gone REPLICA IDENTITY NOTHING")
        holder.execute("ROLLBACK")
        c.execute("ALTER TABLE media REPLICA IDENTITY DEFAULT; DROP TABLE gone")
    with db.connection.connect() as engine:
        assert give_back(engine)
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'media'") == [("d",)]
    assert published(db) == {"media"}


@pytest.mark.since(15)
def test_an_owner_may_choose_what_was_lent(db: Database) -> None:
    """The identity that the table has for the moment is its own when a statement of the owner names it."""
    with_media(db)
    db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        with c.transaction():
            c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
            c.execute("ALTER TABLE media REPLICA IDENTITY\n FULL")
        holder.execute("ROLLBACK")
    with db.connection.connect() as engine:
        assert give_back(engine)
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'media'") == [("f",)]
    assert published(db) == {"media"}


@pytest.mark.parametrize(
    "hidden",
    [
        "CREATE RULE kept AS ON DELETE TO media DO INSTEAD NOTHING",
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS ("
        " SELECT FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid WHERE c.relreplident = 'f')"
        " THEN RAISE 'no' USING ERRCODE = '55006'; END IF; END $$;"
        " CREATE EVENT TRIGGER guard ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION guard()",
    ],
)
@pytest.mark.since(15)
def test_neither_a_rule_nor_a_guard_keeps_an_identity_from_being_lent(db: Database, hidden: LiteralString) -> None:
    """A rule hides from EXPLAIN what PostgreSQL refuses, and a guard refuses the ALTER TABLE. Both ways are open."""
    with_media(db)
    db.execute("CREATE TABLE other (id int PRIMARY KEY)", hidden)
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
        c.execute("UPDATE media SET v = 'b'")
        assert c.execute("SHOW session_replication_role").fetchone() == ("origin",)
        holder.execute("ROLLBACK")
    with db.connection.connect() as engine:
        assert give_back(engine)
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'media'") == [("d",)]
    db.execute("DROP EVENT TRIGGER IF EXISTS guard")


@pytest.mark.since(15)
def test_a_warning_names_a_table_that_gets_no_other_identity(db: Database) -> None:
    """An event trigger that always fires refuses the ALTER TABLE as well. The statement succeeds, with a warning."""
    with_media(db)
    db.execute(
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS ("
        " SELECT FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid WHERE c.relreplident = 'f')"
        " THEN RAISE 'no'; END IF; END $$",
        "CREATE EVENT TRIGGER guard ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION guard()",
        "ALTER EVENT TRIGGER guard ENABLE ALWAYS",
    )
    notices: list[str] = []
    with db.connect() as holder, db.connect() as c:
        c.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
        holder.execute("ROLLBACK")
    assert [n.partition(":")[0] for n in notices] == [
        "levada could not take table public.media without a replica identity out of publication p"
    ]
    db.execute("DROP EVENT TRIGGER guard")


@pytest.mark.since(15)
def test_a_warning_fails_no_statement_of_a_client_that_cannot_show_it(db: Database) -> None:
    """A name with a character that the client's encoding lacks is in the warning without it."""
    db.execute("CREATE TABLE other (id int PRIMARY KEY)", 'CREATE TABLE "日本" (id int PRIMARY KEY)')
    manage(db, "日本")
    with db.connection.connect() as installing:
        install_ddl_trigger(installing)
    notices: list[str] = []
    with db.connect() as holder, db.connect(client_encoding="LATIN1") as c:
        c.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute('ALTER TABLE U&"\\65E5\\672C" DROP CONSTRAINT U&"\\65E5\\672C_pkey"')
        c.execute('DELETE FROM U&"\\65E5\\672C"')
        holder.execute("ROLLBACK")
    assert [n.partition(" REPLICA")[0] for n in notices] == ["levada gave table public.??"]


@pytest.mark.since(15)
def test_a_statement_over_many_tables_waits_for_one_lock(db: Database) -> None:
    """It ends in time, and so does the return of the identities: a reader of some tables keeps only these."""
    with_media(db)
    names = [f"m{n}" for n in range(60)]
    db.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE TYPE kind AS ENUM ('a')")
    db.execute("; ".join(f"CREATE TABLE {n} (kind kind PRIMARY KEY, v int)" for n in names))  # type: ignore[arg-type]  # names of the test
    manage(db, "media", *names)
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("SET statement_timeout = '5s'")
        c.execute("DO $$ BEGIN DROP TYPE kind CASCADE; END $$")
        c.execute("UPDATE m7 SET v = 1")
        holder.execute("ROLLBACK")
        holder.execute("BEGIN")
        holder.execute("SELECT FROM m7, m8")
        with db.connection.connect() as engine:
            until(lambda: not give_back(engine) and len(db.query("SELECT FROM levada_ddl.lent")) == 2)
            holder.execute("ROLLBACK")
            until(lambda: give_back(engine))
    assert published(db) == {"media"}


@pytest.mark.since(15)
def test_a_partition_keeps_the_identity_of_its_root_for_a_row_filter(db: Database) -> None:
    """It has a key, which lacks the column of the filter. So nothing is given back, as it would be lent again."""
    with_media(db)
    db.execute(
        "CREATE TABLE root (id int NOT NULL, v int) PARTITION BY LIST (id)",
        "ALTER TABLE root REPLICA IDENTITY FULL",
    )
    manage(db, "root")
    db.execute(
        "ALTER PUBLICATION p SET TABLE media, root WHERE (v > 0)",
        "CREATE TABLE a PARTITION OF root DEFAULT",
        "ALTER TABLE a ADD PRIMARY KEY (id)",
        "INSERT INTO root VALUES (1, 1)",
        "UPDATE root SET v = 2",
    )
    with db.connection.connect() as c:
        assert give_back(c)
    db.execute("UPDATE root SET v = 3")
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'a'") == [("f",)]


@pytest.mark.since(15)
def test_a_trigger_goes_only_when_nothing_is_lent(db: Database) -> None:
    """Another version of it keeps the record of what was lent. The SQL of the error gives it back, and then it goes."""
    with_media(db)
    db.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with db.connect() as holder, db.connect() as c, db.connection.connect() as engine:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media REPLICA IDENTITY NOTHING")
        c.execute("COMMENT ON EVENT TRIGGER levada_ddl IS 'another version'")
        assert install_ddl_trigger(engine)
        with pytest.raises(Transient) as raised:
            remove_ddl_trigger(engine, wait_s=0)
        assert raised.value.code == "identity_lent"
        assert raised.value.hint is not None
        warned = lent_for_long(engine)
        assert warned is not None
        assert str(warned.hint).endswith(raised.value.hint.partition("run: ")[2])
        holder.execute("ROLLBACK")
        c.execute(raised.value.hint.partition("run: ")[2])
        assert published(db) == set()
        assert remove_ddl_trigger(engine)
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'media'") == [("n",)]
    assert db.query("SELECT FROM pg_namespace WHERE nspname = 'levada_ddl'") == []


@pytest.mark.since(15)
def test_a_table_that_leaves_one_of_two_publications(db: Database) -> None:
    """Its message says so to the pipelines of both, so that one of them gives its identity back."""
    with_media(db)
    db.execute("CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION q FOR TABLE media")
    with db.connection.connect() as engine:
        mark_publication(engine, "q", PipelineOwner("local-2", "second"))
    slot = f"slot_{db.name}"
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    with db.connect() as holder, db.connect() as c:
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
        holder.execute("ROLLBACK")
    changes = db.query(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'p,q', 'messages', 'true')",
        slot,
    )
    db.query("SELECT pg_drop_replication_slot(%s)", slot)
    # The prefix, the length and the digest are before the content.
    [message] = [
        parse_ddl_message(data[data.index(b"levada_ddl\0") + 11 + 4 + 32 :])
        for (data,) in changes
        if b'"withdrawn": [' in data
    ]
    assert isinstance(message, DdlMessage)
    assert message.withdrawn == {"q"}
    assert message.kept


@pytest.mark.since(18)
def test_a_look_takes_out_what_has_no_identity_to_be_given(db: Database) -> None:
    """A table with a generated column and no key has none that PostgreSQL accepts, so a warning names it."""
    with_media(db)
    db.execute(
        "ALTER TABLE media REPLICA IDENTITY FULL",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "ALTER TABLE media DROP CONSTRAINT media_pkey",
    )
    notices: list[str] = []
    with db.connect() as holder, db.connect() as c:
        c.add_notice_handler(lambda d: notices.append(d.message_primary or ""))
        holder.execute("BEGIN")
        holder.execute(_LOCKED)
        c.execute("ALTER TABLE media ADD g int GENERATED ALWAYS AS (id + 1) STORED")
        holder.execute("ROLLBACK")
    assert any("levada could not take table" in n for n in notices)
    with db.connection.connect() as engine:
        assert unidentified_members(engine, "p", always=False) == ()
        found = unidentified_members(engine, "p")
        assert found == (QualifiedTable("public", "media"),)
        withdraw(engine, "p", found)
    db.execute("UPDATE media SET v = 'b'")


GUARD: LiteralString = (
    "CREATE EVENT TRIGGER guard ON ddl_command_end WHEN TAG IN ('ALTER PUBLICATION') EXECUTE FUNCTION guard()"
)


def test_a_guard_that_is_always_enabled_keeps_its_table_published(db: Database) -> None:
    """No statement fails but the UPDATEs, and the error of the withdrawal has the message and the name of the guard."""
    with_media(db)
    db.execute(
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ask the owner'; END $$",
        GUARD,
        "ALTER EVENT TRIGGER guard ENABLE ALWAYS",
        "ALTER TABLE media DROP CONSTRAINT media_pkey",
    )
    with db.connection.connect() as c:
        [error] = withdraw(c, "p", unidentified_members(c, "p"))
    assert "ask the owner" in error.message
    assert "in function public.guard() of the server" in error.message
    assert not isinstance(error, Transient)
    assert published(db) == {"media"}


@pytest.mark.parametrize(
    "body",
    ["RAISE 'ask the owner'", "RAISE undefined_object", "LOCK TABLE locked"],
)
def test_another_event_trigger_that_fails_keeps_no_table_published(managed: Database, body: LiteralString) -> None:
    """Neither in the statement that removes the identity nor later: the UPDATEs would fail for a statement of ours."""
    managed.execute(
        "CREATE TABLE locked (id int)",
        f"CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$",
        GUARD,
    )
    with managed.connect() as holder, managed.connect() as c, c.transaction():
        holder.execute("BEGIN; LOCK TABLE locked")
        c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
        c.execute("UPDATE media SET v = 'b'")
        assert c.execute("SHOW session_replication_role").fetchone() == ("origin",)
    assert published(managed) == set()


def test_a_refused_withdrawal_by_the_engine(db: Database) -> None:
    """It takes the table out all the same where it may. Without that right, the error is the first one."""
    with_media(db)
    db.execute(
        "DROP EVENT TRIGGER levada_ddl; DROP EVENT TRIGGER levada_ddl_drop",
        "CREATE FUNCTION guard() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ask the owner'; END $$",
        "CREATE ROLE plain_owner LOGIN; ALTER TABLE media OWNER TO plain_owner",
        "ALTER PUBLICATION p OWNER TO plain_owner",
        GUARD,
        "ALTER TABLE media DROP CONSTRAINT media_pkey",
    )
    try:
        with replace(db.connection, user="plain_owner").connect() as c:
            [error] = withdraw(c, "p", unidentified_members(c, "p"))
        assert "ask the owner" in error.message
        with db.connection.connect() as c:
            assert withdraw(c, "p", unidentified_members(c, "p")) == ()
    finally:
        db.execute("DROP EVENT TRIGGER guard", "DROP OWNED BY plain_owner CASCADE", "DROP ROLE plain_owner")
    assert published(db) == set()


def test_a_failure_to_describe_keeps_the_table_out(managed: Database) -> None:
    """The statement succeeds, and its UPDATEs do, whatever the trigger cannot read."""
    with managed.connect() as c:
        c.execute("ALTER FUNCTION levada_ddl.describe RENAME TO elsewhere")
        c.execute("ALTER TABLE media DROP CONSTRAINT media_pkey")
    assert "media" not in published(managed)
    managed.execute("UPDATE media SET v = 'b'")


def test_many_tables_in_one_block(managed: Database) -> None:
    """Each table that loses its key within one statement of a client leaves, whatever the others do."""
    managed.execute(*[f"CREATE TABLE m{n} (id int PRIMARY KEY)" for n in range(80)])  # type: ignore[arg-type]  # numbers
    manage(managed, *[f"m{n}" for n in range(80)])
    managed.execute(
        "DO $$ BEGIN FOR n IN 0..79 LOOP EXECUTE format('ALTER TABLE m%s ADD v int', n);"
        " IF n % 2 = 0 THEN EXECUTE format('ALTER TABLE m%1$s DROP CONSTRAINT m%1$s_pkey', n); END IF; END LOOP; END $$"
    )
    assert published(managed) == {"media", *[f"m{n}" for n in range(1, 80, 2)]}


def test_children_are_not_published_with_their_parent(versions: Database) -> None:
    """Neither when the publication is created nor when a table is added, so their UPDATEs need no identity."""
    versions.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (v int) INHERITS (parent)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE child2 () INHERITS (other)",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE leaf PARTITION OF root DEFAULT",
    )
    manage(versions, "parent", "root")
    manage(versions, "parent", "root", "other")
    versions.execute("INSERT INTO child VALUES (1, 1)", "UPDATE child SET v = 2", "DELETE FROM child2")
    assert published(versions) == {"parent", "other", "root"}


def test_children_that_were_published_by_surprise_are_taken_back(versions: Database) -> None:
    """Those that the pipeline selects stay. The check names the others, with the SQL that takes them out."""
    versions.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE grandchild () INHERITS (child)",
        "CREATE TABLE chosen (PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE TABLE apart (id int PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE parent, apart",
    )
    assert published(versions) == {"parent", "child", "grandchild", "chosen", "apart"}
    with versions.connection.connect() as c:
        other, problem = withdrawal_problems(c, "p", lambda t: t.name in ("parent", "chosen"))
        assert (other.code, problem.code) == ("unselected_published", "children_published")
        assert 'DROP TABLE ONLY "public"."apart"' in other.hint
        assert "public.child, public.grandchild" in problem.message
        for statement in problem.hint.split("; "):
            c.execute(statement.encode())
        assert published(versions) == {"parent", "chosen", "apart"}
        assert inherited_members(c, "p", lambda t: t.name in ("parent", "chosen")) == ()


def test_a_key_dropped_by_a_transaction_that_reads_an_older_catalog(managed: Database) -> None:
    """Its table was published since its first statement, and leaves the publication all the same."""
    managed.execute("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    with managed.connect() as c:
        c.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM media")
        manage(managed, "late")
        c.execute("CREATE TABLE aside (id int); ALTER TABLE aside ADD v int")
        c.execute("ALTER TABLE late DROP CONSTRAINT late_pkey")
        c.execute("UPDATE late SET id = 2")
        c.execute("COMMIT")
    assert published(managed) == {"media"}


def test_two_serializable_transactions_do_not_conflict_over_a_record(versions: Database) -> None:
    """Each takes a table of its own out of the publication, and neither fails when it ends."""
    versions.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    db = with_media(versions)
    manage(db, "a", "b")
    with db.connect() as one, db.connect() as two:
        for c, table in ((one, "a"), (two, "b")):
            c.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
            c.execute(f"SELECT FROM {table}")  # type: ignore[arg-type]  # names of the test
        for c, table in ((one, "a"), (two, "b")):
            c.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")  # type: ignore[arg-type]  # names of the test
            c.execute(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING")  # type: ignore[arg-type]  # names of the test
            c.execute(f"UPDATE {table} SET id = id")  # type: ignore[arg-type]  # names of the test
        one.execute("COMMIT")
        two.execute("COMMIT")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_statement_locks_no_table_that_it_does_not_name(managed: Database, level: LiteralString) -> None:
    """The trigger looks at the partitions and the children of a table, and keeps no lock of them."""
    managed.execute(
        _PARTED,
        "CREATE TABLE child () INHERITS (media)",
        "ALTER TABLE child REPLICA IDENTITY NOTHING",
    )
    manage(managed, "root", "media")
    with managed.connect() as c:
        c.execute(f"BEGIN ISOLATION LEVEL {level}")
        c.execute("SELECT 1")
        c.execute("ALTER TABLE ONLY root REPLICA IDENTITY FULL; ALTER TABLE ONLY media REPLICA IDENTITY FULL")
        locked = c.execute(
            "SELECT DISTINCT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND relation IN ('root'::regclass, 'leaf'::regclass, 'media'::regclass, 'child'::regclass) ORDER BY 1"
        ).fetchall()
        c.execute("COMMIT")
    assert locked == [("media",), ("root",)]


_TABLES: LiteralString = """
CREATE TABLE late (id int PRIMARY KEY, v int);
CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY LIST (id);
CREATE TABLE mid PARTITION OF root FOR VALUES IN (1, 2, 3) PARTITION BY LIST (id);
CREATE TABLE leaf PARTITION OF mid FOR VALUES IN (1);
CREATE TABLE root2 (id int PRIMARY KEY, v int) PARTITION BY LIST (id);
CREATE TABLE mid2 PARTITION OF root2 FOR VALUES IN (1, 2, 3) PARTITION BY LIST (id);
CREATE TABLE bare (LIKE root INCLUDING ALL); ALTER TABLE bare REPLICA IDENTITY NOTHING;
INSERT INTO late VALUES (1, 1); INSERT INTO root VALUES (1, 1); INSERT INTO bare VALUES (1, 1)
"""
_LOSSES: tuple[LiteralString, ...] = (
    "ALTER TABLE late DROP CONSTRAINT late_pkey",
    "ALTER TABLE leaf REPLICA IDENTITY NOTHING",
    "ALTER TABLE mid2 ATTACH PARTITION bare FOR VALUES IN (1)",
)


@pytest.mark.parametrize("way", ["before", "open", "meanwhile"])
def test_an_identity_lost_while_the_table_is_published(managed: Database, way: str) -> None:
    """The table is not published, or taken out: no UPDATE fails, in whatever order the statements begin and end."""
    managed.execute(_TABLES)
    wanted = {QualifiedTable("public", t) for t in ("late", "root", "root2")}
    begun: list[bool] = []
    with managed.connect() as application, managed.connection.connect() as c:

        def lose() -> None:
            if not begun:
                begun.append(True)
                application.execute("SELECT 1" if way == "before" else "BEGIN")
                for statement in _LOSSES:
                    application.execute(statement)

        if way == "meanwhile":
            with c.transaction():
                ensure_coverage(c, "p", wanted, manage=True)
                application.execute("SET lock_timeout = '50ms'")
                for statement in _LOSSES:
                    with pytest.raises(psycopg.errors.LockNotAvailable):
                        application.execute(statement)
            application.execute("SET lock_timeout = 0")
            for statement in _LOSSES:
                application.execute(statement)
        elif way == "open":
            with pytest.raises(Transient):
                ensure_coverage(c, "p", wanted, manage=True, check=lose, lock_timeout_s=0.05)
            application.execute("COMMIT")
        ensure_coverage(c, "p", wanted, manage=True, check=lose)
        for table in ("root", "root2", "late"):
            application.execute(f"UPDATE {table} SET v = 2; DELETE FROM {table}")  # type: ignore[arg-type]  # names
    assert published(managed) == {"media"}


@pytest.mark.since(15)
def test_a_publication_that_waits_for_a_table_is_not_locked(managed: Database) -> None:
    """Another table that loses its key meanwhile leaves it at once."""
    managed.execute("CREATE TABLE late (id int PRIMARY KEY)")
    with managed.connect() as holder, managed.connection.connect() as c, ThreadPoolExecutor(1) as pool:
        holder.execute("BEGIN; LOCK TABLE late")
        adding = pool.submit(ensure_coverage, c, "p", {QualifiedTable("public", "late")}, manage=True)
        until(lambda: managed.query("SELECT FROM pg_locks WHERE NOT granted AND relation = 'late'::regclass"))
        managed.execute("ALTER TABLE media DROP CONSTRAINT media_pkey", "UPDATE media SET v = 'b'")
        holder.execute("COMMIT")
        adding.result(LIMIT_S)
    assert published(managed) == {"late"}


@pytest.mark.sampled
@pytest.mark.parametrize("statement", ["ALTER TABLE media DROP CONSTRAINT media_pkey", "DROP INDEX other"])
def test_a_time_limit_that_ends_within_the_trigger(managed: Database, statement: LiteralString) -> None:
    """The statement succeeds, and its UPDATEs do. In a function, which may go on, it fails as a whole."""
    managed.execute(
        "CREATE UNIQUE INDEX other ON media (id)",
        "ALTER TABLE media REPLICA IDENTITY USING INDEX other" if "INDEX" in statement else "SELECT",
        "CREATE SEQUENCE calls",
        "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF nextval('public.calls') % 2 = 1 THEN PERFORM pg_sleep(600); END IF; END $$",
        "CREATE EVENT TRIGGER slow ON ddl_command_end WHEN TAG IN ('ALTER PUBLICATION') EXECUTE FUNCTION slow()",
    )
    with managed.connect(options="-c statement_timeout=2s") as c:
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute(f"DO $$ BEGIN {statement}; PERFORM pg_sleep(600); END $$")
        assert published(managed) == {"media"}
        managed.execute("UPDATE media SET v = 'b'", "SELECT setval('calls', 2)")
        c.execute(statement)
        c.execute("UPDATE media SET v = 'c'")
        assert published(managed) == set()
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute("SELECT pg_sleep(600)")


_OWNERS: LiteralString = """
CREATE SEQUENCE own.ran;
CREATE FUNCTION own.run() RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''own.ran''); RETURN 1; END';
CREATE FUNCTION own.one(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN IF current_user <> session_user THEN RETURN (SELECT own.run()); END IF; RETURN 1; END';
CREATE TABLE own.t (id int PRIMARY KEY, v int);
CREATE TABLE own.root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE own.leaf PARTITION OF own.root DEFAULT;
"""


@pytest.mark.parametrize("version", [140000, 150000, 180000])
def test_the_trigger_executes_only_what_plans_nothing(version: int) -> None:
    """A plan would evaluate functions of a table's owner with the rights of the trigger's role."""
    bodies = "".join(s.as_string(None) for s in create_statements(version) if "LANGUAGE plpgsql" in s.as_string(None))
    texts = re.findall(r"(?:EXECUTE|statement :=)\s+(?:pg_catalog\.(?:format|concat)\(\s*)?('*\w+ ?\w*)", bodies)
    known = {"ALTER TABLE", "ALTER PUBLICATION", "LOCK TABLE", "statement", "FUNCTION levada_ddl"}
    assert len(texts) > 5
    assert {t.strip("'") for t in texts} <= known


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("locked", [False, True], ids=["", "locked"])
def test_no_function_of_an_owner_runs_with_the_rights_of_the_trigger(
    managed: Database, level: LiteralString, locked: bool
) -> None:
    """PostgreSQL evaluates immutable ones of rules, indexes and keys of partitions when it plans, also for EXPLAIN."""
    role = f"owner_of_{managed.name}"
    with managed.connect() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA own AUTHORIZATION {role}")  # type: ignore[arg-type]
    try:
        with psycopg.connect(managed.server.uri(managed.name, role), autocommit=True) as c, managed.connect() as holder:
            c.execute(_OWNERS)
            with managed.connection.connect() as engine:
                tables = {QualifiedTable("public", "media"), QualifiedTable("own", "t"), QualifiedTable("own", "root")}
                ensure_coverage(engine, "p", tables, manage=True)
            for made in (
                "CREATE RULE r AS ON DELETE TO own.t DO ALSO SELECT own.one(1)",
                "CREATE INDEX ON own.t ((v + own.one(1)))",
                "CREATE INDEX ON own.root ((v + own.one(1)))",
                "CREATE TABLE own.other (id int, v int) PARTITION BY RANGE ((id + own.one(1)))",
                "CREATE TABLE own.other_leaf PARTITION OF own.other DEFAULT",
                "CREATE TABLE own.alone (id int PRIMARY KEY, v int); CREATE INDEX ON own.alone ((v + own.one(1)))",
            ):
                c.execute(made)  # type: ignore[arg-type]
            if locked:
                holder.execute("CREATE TABLE aside (id int); BEGIN; ALTER PUBLICATION p ADD TABLE aside")
            c.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT FROM own.t")
            c.execute("ALTER TABLE own.t DROP CONSTRAINT t_pkey; ALTER TABLE own.root DROP CONSTRAINT root_pkey")
            c.execute("ALTER TABLE own.other ADD x int; ALTER TABLE own.alone DROP CONSTRAINT alone_pkey; COMMIT")
            assert c.execute("SELECT is_called FROM own.ran").fetchone() == (False,)
    finally:
        with managed.connect() as admin:
            admin.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")  # type: ignore[arg-type]
