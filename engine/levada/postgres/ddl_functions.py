"""The SQL of the DDL trigger's functions.

They run within the statements of applications, under the locks of these. So each ends as soon as it is known that no
publication is concerned, and plans no query before it is needed: in a fresh session, planning is most of the cost.

`levada.postgres.ddl` installs them.
"""

from __future__ import annotations

from typing import Final

from psycopg import sql

from levada.postgres.ddl_description import LONGEST, describe_body, describe_leaves_body, outermost, streamed_body
from levada.postgres.ddl_withdrawal import withdraw_body
from levada.postgres.lent_identities import CREATE_TABLE as CREATE_LENT
from levada.postgres.lent_identities import (
    GIVE_BACK,
    KEEP_CHOSEN,
    LEND,
    give_back_body,
    keep_chosen_body,
    lend_body,
)
from levada.postgres.lent_identities import SETTING as LENDING
from levada.postgres.readmissions import CONTENT, CONTENT_BODY, CREATE_TABLE, SETTING, readmit_body
from levada.postgres.replica_identity import FILTERS
from levada.postgres.seal import EMIT, EMIT_BODY, KEY_TABLE, SEAL_SCHEMA, warning

DDL_PREFIX: Final = "levada_ddl"
SEPARATOR_PREFIX: Final = "levada_ddl_end"
"""Prefix of empty messages that only separate records. Readers skip them."""
TRIGGER: Final = "levada_ddl"
DROP_TRIGGER: Final = "levada_ddl_drop"

_TAGS: Final = ("ALTER TABLE", "ALTER TYPE", "CREATE TABLE", "CREATE SCHEMA")
# Statements other than ALTER TABLE that can drop a column, a key or an index of a table that stays.
_DROP_TAGS: Final = tuple(
    f"DROP {kind}"
    for kind in (
        "ACCESS METHOD", "AGGREGATE", "COLLATION", "DOMAIN", "EXTENSION", "FOREIGN TABLE", "FUNCTION", "INDEX",
        "LANGUAGE", "MATERIALIZED VIEW", "OPERATOR", "OPERATOR CLASS", "OPERATOR FAMILY", "OWNED", "PROCEDURE",
        "ROUTINE", "SCHEMA", "TABLE", "TYPE", "VIEW",
    )
)  # fmt: skip

_ON_COMMAND: Final = sql.Identifier(SEAL_SCHEMA, "emit_table_change")
_ON_DROP: Final = sql.Identifier(SEAL_SCHEMA, "emit_drop")
_ANNOUNCE_TYPES: Final = sql.Identifier(SEAL_SCHEMA, "announce_types")
_RELATED: Final = sql.Identifier(SEAL_SCHEMA, "related")
_PUBLISHED: Final = sql.Identifier(SEAL_SCHEMA, "published")
_STREAMED: Final = sql.Identifier(SEAL_SCHEMA, "streamed")
_ANNOUNCE: Final = sql.Identifier(SEAL_SCHEMA, "announce")
_DESCRIBE: Final = sql.Identifier(SEAL_SCHEMA, "describe")
_DESCRIBE_LEAVES: Final = sql.Identifier(SEAL_SCHEMA, "describe_leaves")
_WITHDRAW: Final = sql.Identifier(SEAL_SCHEMA, "withdraw")
_READMIT: Final = sql.Identifier(SEAL_SCHEMA, "readmit")

# Most statements concern temporary tables, which are known without a look at the catalog. A table that is created is of
# interest only as a partition. Every other one is found by the engine's discovery.
#
# In a fresh session each function, operator and catalog costs a look-up at its first use, and each step a plan. So an
# ordinary ALTER TABLE has as few as possible: that of a published table with a primary key, which is described and
# needs nothing else. If describing fails, the table may have to be withdrawn all the same. The catalog pg_class has the
# OID 1259 in each database.
#
# The first ALTER TABLE of a session costs about 6 ms of CPU more: 3 for the first call of the description, which looks
# up and plans everything once, 2 for the language and this function, 1 for the digest. Half of it is the kernel's work
# for memory that the session touches first. The settings of functions cost nothing that can be measured. A later one
# in the session takes less than 1 ms in all.
_COMMAND_BODY: Final = sql.SQL("""
DECLARE
    altered oid[];
    content jsonb;
    stack text;
    canceled boolean;
BEGIN
LOOP BEGIN
    IF tg_tag = 'ALTER TYPE' THEN
        PERFORM {announce_types}();
        RETURN;
    END IF;
    altered := ARRAY(SELECT d.objid FROM pg_catalog.pg_event_trigger_ddl_commands() d
        WHERE d.classid = 1259 AND d.schema_name <> 'pg_temp');
    IF altered[1] IS NULL THEN
        RETURN;
    END IF;
    IF tg_tag = 'ALTER TABLE' AND (pg_catalog.octet_length(pg_catalog.current_query()) > {longest}
        OR pg_catalog.strpos(pg_catalog.lower(pg_catalog.current_query()), 'replica') > 0
            AND pg_catalog.current_query() ~* 'replica[[:space:]]+identity')
    THEN
        PERFORM {keep_chosen}(altered);
    END IF;
    IF tg_tag = 'ALTER TABLE' AND altered[2] IS NULL THEN
        IF (SELECT bool_and({unfiltered}) FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = altered[1]) THEN
            BEGIN
                content := {describe}(altered[1], true, true);
            EXCEPTION WHEN OTHERS THEN
                NULL;
            END;
        END IF;
    END IF;
    IF content IS NULL OR canceled THEN
        PERFORM {announce}(altered, true, tg_tag <> 'ALTER TABLE');
    ELSE
        PERFORM {emit}(content::text), pg_catalog.pg_logical_emit_message(true, {separator}, '');
    END IF;
    RETURN;
EXCEPTION {canceled}{failure}    RETURN;
END; END LOOP;
END
""")
# ALTER TYPE changes every table that has a column of the type, also within an array, a domain or another type. With
# CASCADE it also adds, drops and renames columns of typed tables (CREATE TABLE ... OF).
_TYPES_BODY: Final = sql.SQL("""
DECLARE
    altered oid[];
BEGIN
    WITH RECURSIVE used(type) AS (
        SELECT CASE d.classid WHEN 'pg_catalog.pg_type'::regclass THEN d.objid
            ELSE (SELECT c.reltype FROM pg_catalog.pg_class c WHERE c.oid = d.objid) END
        FROM pg_catalog.pg_event_trigger_ddl_commands() d
        WHERE d.classid IN ('pg_catalog.pg_type'::regclass, 'pg_catalog.pg_class'::regclass)
        UNION
        SELECT CASE d.classid WHEN 'pg_catalog.pg_type'::regclass THEN d.objid
            ELSE (SELECT c.reltype FROM pg_catalog.pg_class c WHERE c.oid = d.objid) END
        FROM used JOIN pg_catalog.pg_depend d
            ON d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid = used.type
        WHERE d.classid IN ('pg_catalog.pg_type'::regclass, 'pg_catalog.pg_class'::regclass)
    )
    SELECT array_agg(d.objid) INTO altered
    FROM used JOIN pg_catalog.pg_depend d
        ON d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid = used.type
        AND d.classid = 'pg_catalog.pg_class'::regclass;
    IF altered IS NOT NULL THEN
        PERFORM {announce}(altered, false, false);
    END IF;
END
""")

# A table that was dropped may have been a partition, which the catalog does not show any more.
#
# The table of an index that was dropped alone is in the same schema, and has lost the index of its replica identity.
_DROP_BODY: Final = sql.SQL("""
DECLARE
    altered oid[];
    indexed text[];
    dropped jsonb;
    parts boolean;
    stack text;
    canceled boolean;
BEGIN
LOOP BEGIN
    SELECT jsonb_agg(d.objid::bigint) FILTER (WHERE d.object_type = 'table'
            AND EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.pubviaroot)),
        bool_or(d.object_type = 'table column'
            OR tg_tag <> 'DROP TABLE' AND d.object_type IN ('table constraint', 'index'))
    INTO dropped, parts FROM pg_catalog.pg_event_trigger_dropped_objects() d WHERE NOT d.is_temporary;
    IF dropped IS NOT NULL THEN
        PERFORM {emit}(pg_catalog.jsonb_build_object('dropped', dropped)::text),
            pg_catalog.pg_logical_emit_message(true, {separator}, '');
    END IF;
    IF parts IS NOT TRUE THEN
        RETURN;
    END IF;
    SELECT array_agg(c.oid),
        array_agg(DISTINCT d.schema_name) FILTER (WHERE d.object_type = 'index' AND tg_tag <> 'DROP TABLE')
    INTO altered, indexed
    FROM pg_catalog.pg_event_trigger_dropped_objects() d LEFT JOIN pg_catalog.pg_class c
        ON c.oid = CASE d.object_type WHEN 'table column' THEN d.objid WHEN 'table constraint' THEN
            pg_catalog.to_regclass(pg_catalog.format('%I.%I', d.address_names[1], d.address_names[2])) END
        AND c.relkind IN ('r', 'p')
    WHERE NOT d.is_temporary AND d.object_type IN ('table column', 'table constraint', 'index');
    IF indexed IS NOT NULL THEN
        SELECT array_agg(c.oid) INTO altered FROM pg_catalog.pg_class c
        WHERE c.oid = ANY (altered) OR c.relreplident = 'i' AND c.relkind = 'r'
            AND c.relnamespace IN (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = ANY (indexed))
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident);
    END IF;
    altered := array_remove(altered, NULL);
    IF altered <> '{{}}' THEN
        PERFORM {announce}(altered, true, false);
    END IF;
    RETURN;
EXCEPTION {canceled}{failure}    RETURN;
END; END LOOP;
END
""")

# The statement may have a time limit that it keeps without Levada. PostgreSQL cancels it once, so the trigger begins
# again without a limit, and takes milliseconds. It is as if a client's request had come too late. A function of the
# application goes on after its statement, and would have no limit any more.
_CANCELED: Final = sql.SQL("""WHEN query_canceled THEN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF canceled OR stack !~ {outermost} THEN
        RAISE;
    END IF;
    canceled := true;
""")

# No user's statement may fail because of Levada. An announced but unknown change makes it compare the catalog.
_FAILURE: Final = sql.SQL("""WHEN OTHERS THEN
    {unknown};
    BEGIN
        PERFORM {emit}('null');
    EXCEPTION WHEN OTHERS THEN
        {nothing};
    END;
""")

# If no publication has a table, directly or by its schema, nothing of it is streamed. Only a transaction of the level
# READ COMMITTED knows that: others read an older catalog. CREATE TABLE and ALTER TABLE of partitions that store rows
# change nothing of a table above but these, so they are announced alone: a root may have thousands.
#
# Most tables have a primary key, which one query shows. Only others, and those with a row filter, may have to be
# withdrawn.
#
# A block of its own describes, so that a failure there leaves the withdrawal as it is.
#
# An ALTER TABLE of the withdrawal itself calls the trigger again, for each of perhaps thousands of partitions. That of
# the application's statement describes all of them afterwards, so the inner one ends. Anybody may set the parameter,
# but only these functions have the context, in any language of the server: the one that called the statement that
# called the trigger.
_ANNOUNCE_BODY: Final = sql.SQL("""
DECLARE
    concerned oid[];
    relations oid[];
    altered oid[];
    related boolean;
    keyed boolean;
    alone boolean;
    withdrawn jsonb;
    readmitted jsonb;
    relation oid;
    content jsonb;
    message pg_lsn;
    newest boolean := pg_catalog.current_setting('transaction_isolation') = 'read committed';
    stack text;
BEGIN
    IF pg_catalog.current_setting({lending}, true) <> '' THEN
        GET DIAGNOSTICS stack = PG_CONTEXT;
        IF stack ~ {own} THEN
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(c.oid ORDER BY c.oid), bool_or(c.relhassubclass OR c.relkind = 'p' OR c.relispartition),
        bool_and(c.relreplident = 'd'), created OR bool_and(c.relispartition AND c.relkind = 'r')
    INTO altered, related, keyed, alone FROM pg_catalog.pg_class c
    WHERE c.oid = ANY (named) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
        AND (NOT created OR c.relispartition);
    IF altered IS NULL THEN
        RETURN;
    END IF;
    concerned := altered;
    IF related THEN
        concerned := {related}(altered);
    END IF;
    IF pg_catalog.current_setting({setting}, true) <> '' THEN
        readmitted := {readmit}(concerned);
    END IF;
    SELECT array_agg(DISTINCT r.prrelid) INTO relations
    FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = ANY (concerned);
    IF related OR relations IS DISTINCT FROM altered THEN
        relations := {published}(concerned);
        IF relations IS NULL AND newest THEN
            RETURN;
        END IF;
        IF related THEN
            relations := {streamed}(concerned);
        END IF;
    END IF;
    IF NOT keyed OR related {filtered} OR (
        SELECT pg_catalog.count(*) FROM pg_catalog.pg_index i
        WHERE i.indrelid = ANY (altered) AND i.indisprimary AND i.indisvalid AND i.indimmediate
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = i.indrelid AND a.attgenerated <> '' AND a.attnum = ANY (i.indkey))
    ) <> pg_catalog.cardinality(altered) THEN
        withdrawn := {withdraw}(concerned);
    END IF;
    IF withdrawn IS NOT NULL THEN
        SELECT array_agg(u.relid ORDER BY u.relid) INTO relations
        FROM (SELECT unnest(relations) UNION SELECT k::oid FROM pg_catalog.jsonb_object_keys(withdrawn) k) AS u(relid);
    END IF;
    IF relations IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        FOREACH relation IN ARRAY relations LOOP
            IF alone AND relation <> ALL (altered) AND coalesce(withdrawn, readmitted) IS NULL AND newest THEN
                content := {describe_leaves}(relation, altered, created);
            ELSE
                content := {describe}(relation, sure AND relation = ANY (altered), false)
                    || pg_catalog.jsonb_build_object(
                        'withdrawn', withdrawn->relation::text, 'readmitted', readmitted->relation::text);
            END IF;
            IF content IS NOT NULL THEN
                message := {emit}(content::text);
            END IF;
        END LOOP;
    EXCEPTION {failure}    END;
    -- Decoding places a message at the end of its record, which is where the next row begins. In a subtransaction,
    -- such as this block, both have equal rank and the row might come first. The separator moves the next row.
    message := pg_catalog.pg_logical_emit_message(true, {separator}, '');
END
""")
_OWN: Final = (
    rf"^[^\n]*\n[^\n]*\n[^\n]*\y{SEAL_SCHEMA}\.emit_table_change\(\)[^\n]*"
    rf"\n[^\n]* REPLICA IDENTITY [A-Z]+[^\n]*\n[^\n]*\y{SEAL_SCHEMA}\.(lend|withdraw)\("
)
_FILTERED: Final = sql.SQL("""OR NOT newest OR EXISTS (
        SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = ANY (altered) AND r.prqual IS NOT NULL)""")
# Also the children of the altered tables, which an ALTER of the parent changes too, and the ancestors of partitions.
_RELATED_BODY: Final = sql.SQL("""
BEGIN
    RETURN (WITH RECURSIVE below(relid) AS (
        SELECT unnest(altered)
        UNION
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits i ON i.inhparent = below.relid
    ), above(relid) AS (
        SELECT unnest(altered)
        UNION
        SELECT i.inhparent FROM above JOIN pg_catalog.pg_class c ON c.oid = above.relid AND c.relispartition
        JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.relid
    )
    SELECT array_agg(u.relid) FROM (SELECT relid FROM below UNION SELECT relid FROM above) AS u(relid));
END
""")

_OR_SCHEMA: Final = sql.SQL("""
            OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnnspid = c.relnamespace)""")

_PUBLISHED_BODY: Final = sql.SQL("""
BEGIN
    RETURN (SELECT array_agg(c.oid ORDER BY c.oid) FROM pg_catalog.pg_class c
        WHERE c.oid = ANY (concerned) AND (EXISTS (SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prrelid = c.oid)
            OR EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.puballtables) {or_schema}));
END
""")

# An inner function is called by one of the triggers alone, and inherits its role and search_path.
_CREATE: Final = sql.SQL("""
CREATE FUNCTION {name}({arguments}) RETURNS {returns} LANGUAGE plpgsql {settings} AS {body}
""")
_OUTER: Final = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"

# Whatever the server's statistics and settings are, each query reads few rows by an index. A plan is kept for the
# session. The trigger waits for no lock, but for that of a publication.
_CHEAP: Final = (
    "SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off"
    " SET plan_cache_mode = force_generic_plan SET lock_timeout = '100ms'"
)
# The text of constants and types is independent of the session that runs the ALTER.
_EXACT: Final = (
    "SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'postgres'"
    " SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C'"
    " SET quote_all_identifiers = off"
)

FUNCTIONS: Final = (
    "emit_table_change", "emit_drop", "announce_types", "related", "published", "streamed", "announce", "describe",
    "describe_leaves", "withdraw", "content", "readmit", "lend", "give_back", "keep_chosen", "emit",
    "describe_created", "announce_tables",
)  # fmt: skip
"""The names of the functions in `SEAL_SCHEMA`. The last two are of an earlier version."""


def create_statements(version: int) -> tuple[sql.Composed, ...]:
    """Return the statements that create the functions and the triggers on a server of this version.

    The triggers fire in every replication role, because a change that they miss is a lost change.
    """
    failure = _FAILURE.format(
        emit=EMIT,
        unknown=warning("'levada could not announce a changed table: ' || SQLERRM"),
        nothing=warning("'levada could not announce that a table has changed: ' || SQLERRM"),
    )
    separator = sql.Literal(SEPARATOR_PREFIX)
    command = _COMMAND_BODY.format(
        unfiltered=sql.SQL("r.prqual IS NULL" if version >= FILTERS else "true"),
        announce=_ANNOUNCE,
        announce_types=_ANNOUNCE_TYPES,
        keep_chosen=KEEP_CHOSEN,
        longest=sql.Literal(LONGEST),
        describe=_DESCRIBE,
        emit=EMIT,
        separator=separator,
        canceled=_CANCELED.format(outermost=sql.Literal(outermost("emit_table_change"))),
        failure=failure,
    )
    drop = _DROP_BODY.format(
        announce=_ANNOUNCE,
        canceled=_CANCELED.format(outermost=sql.Literal(outermost("emit_drop"))),
        failure=failure,
        emit=EMIT,
        separator=separator,
    )
    schema = _OR_SCHEMA if version >= 150000 else sql.SQL("")
    emit_body = EMIT_BODY.format(key_table=KEY_TABLE, prefix=sql.Literal(DDL_PREFIX))
    return (
        _function(EMIT, "content text", "pg_lsn", "", emit_body),
        CREATE_TABLE,
        CREATE_LENT,
        _function(LEND, "concerned oid[], patience text", "boolean", "", lend_body(version)),
        _function(KEEP_CHOSEN, "altered oid[]", "void", "", keep_chosen_body()),
        _function(GIVE_BACK, "", "bigint", f"{_OUTER} {_CHEAP}", give_back_body()),
        _function(CONTENT, "relation oid", "text", "", CONTENT_BODY.format()),
        _function(_READMIT, "concerned oid[]", "jsonb", "", readmit_body(version)),
        _function(_WITHDRAW, "concerned oid[]", "jsonb", "", withdraw_body(version)),
        _function(_RELATED, "altered oid[]", "oid[]", "", _RELATED_BODY.format()),
        _function(_PUBLISHED, "concerned oid[]", "oid[]", "", _PUBLISHED_BODY.format(or_schema=schema)),
        _function(_STREAMED, "concerned oid[]", "oid[]", "", streamed_body(version)),
        _function(_DESCRIBE, "relation oid, locked boolean, ordinary boolean", "jsonb", _EXACT,
                  describe_body(version)),
        _function(_DESCRIBE_LEAVES, "relation oid, leaves oid[], created boolean", "jsonb", "",
                  describe_leaves_body()),
        _function(_ANNOUNCE, "named oid[], sure boolean, created boolean", "void", "",
                  _announce_body(version, failure)),
        _function(_ANNOUNCE_TYPES, "", "void", "", _TYPES_BODY.format(announce=_ANNOUNCE)),
        _function(_ON_COMMAND, "", "event_trigger", f"{_OUTER} {_CHEAP}", command),
        _function(_ON_DROP, "", "event_trigger", f"{_OUTER} {_CHEAP}", drop),
        *_trigger(TRIGGER, "ddl_command_end", _TAGS, _ON_COMMAND),
        *_trigger(DROP_TRIGGER, "sql_drop", _DROP_TAGS, _ON_DROP),
    )  # fmt: skip


def _function(name: sql.Identifier, arguments: str, returns: str, settings: str, body: sql.Composed) -> sql.Composed:
    text = sql.Literal(body.as_string(None))
    parts = {"arguments": arguments, "returns": returns, "settings": settings}
    return _CREATE.format(name=name, body=text, **{k: sql.SQL(v) for k, v in parts.items()})


def _trigger(name: str, event: str, tags: tuple[str, ...], function: sql.Identifier) -> tuple[sql.Composed, ...]:
    trigger, listed = sql.Identifier(name), sql.SQL(", ").join(map(sql.Literal, tags))
    create = sql.SQL("CREATE EVENT TRIGGER {} ON {} WHEN TAG IN ({}) EXECUTE FUNCTION {}()")
    return (
        create.format(trigger, sql.SQL(event), listed, function),
        sql.SQL("ALTER EVENT TRIGGER {} ENABLE ALWAYS").format(trigger),
    )


def _announce_body(version: int, failure: sql.Composed) -> sql.Composed:
    return _ANNOUNCE_BODY.format(
        lending=sql.Literal(LENDING),
        own=sql.Literal(_OWN),
        filtered=_FILTERED if version >= FILTERS else sql.SQL(""),
        related=_RELATED,
        published=_PUBLISHED,
        streamed=_STREAMED,
        withdraw=_WITHDRAW,
        readmit=_READMIT,
        setting=sql.Literal(SETTING),
        describe=_DESCRIBE,
        describe_leaves=_DESCRIBE_LEAVES,
        emit=EMIT,
        failure=failure,
        separator=sql.Literal(SEPARATOR_PREFIX),
    )
