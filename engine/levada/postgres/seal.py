"""Authentication of the DDL trigger's messages.

Every role may call ``pg_logical_emit_message``, so a prefix is no evidence of a message's author. The trigger's
functions run as the role that installed them. They read a random key from a table that only this role can read. They
write a digest of the key, the transaction's ID and the content in front of each message. A message with a wrong digest
is ignored. A digest is not valid in another transaction, so a copied message is ignored as well.

The *absence* of a message is evidence too: it shows that a table was not altered. That is true only for transactions
that committed after the trigger was installed, and only if the trigger was never disabled or replaced since. So the key
is stored with the WAL position of the installation and with the version (``oid`` and ``xmin``) of the trigger's row in
the catalog. `read_seal` returns a seal only if both are unchanged.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.values import Lsn

SEAL_SCHEMA: Final = "levada_ddl"
"""Schema of the trigger's functions and of the key. It is not the store's schema, whose owner could replace the key."""

_DIGEST_BYTES: Final = 32

EMIT: Final = sql.Identifier(SEAL_SCHEMA, "emit")
KEY_TABLE: Final = sql.Identifier(SEAL_SCHEMA, "seal")
# Hashed twice, as in HMAC, so that a message and its digest cannot be extended. One statement, because a fresh session
# plans each. The content is in the encoding of the database, as a name may have a character that UTF-8 lacks. The
# client's statement would fail at the warning about it, which the server cannot convert either.
EMIT_BODY: Final = sql.SQL("""
DECLARE
    message pg_lsn;
BEGIN
    SELECT pg_catalog.pg_logical_emit_message(true, {prefix},
        pg_catalog.sha256(s.key || pg_catalog.sha256(s.key || pg_catalog.convert_to(
            pg_catalog.concat(pg_catalog.pg_current_xact_id()::pg_catalog.xid, ' ', content),
            pg_catalog.getdatabaseencoding())))
        || pg_catalog.convert_to(content, pg_catalog.getdatabaseencoding())) INTO STRICT message FROM {key_table} s;
    RETURN message;
END
""")

# gen_random_uuid() is a strong random number of 122 bits.
_CREATE_KEY: Final = sql.SQL("""
CREATE TABLE {key_table} AS
SELECT pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) || pg_catalog.uuid_send(pg_catalog.gen_random_uuid()) AS key,
    pg_catalog.pg_current_wal_insert_lsn() AS since, t.oid AS trigger_oid, t.xmin::text AS trigger_xmin
FROM pg_catalog.pg_event_trigger t WHERE t.evtname = {trigger}
""")

# The trigger does not read a key table of another owner.
_FIND: Final = sql.SQL("""
SELECT t.oid, t.xmin::text FROM pg_catalog.pg_event_trigger t, pg_catalog.pg_class k, pg_catalog.pg_namespace n
WHERE t.evtname = {trigger} AND t.evtenabled = 'A'
  AND n.nspname = {schema} AND n.oid = k.relnamespace AND k.relname = 'seal'
  AND k.relkind = 'r' AND k.relowner = t.evtowner
  AND (n.nspowner = t.evtowner OR n.nspowner IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper))
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(k.oid, 'SELECT')
""")

_SCHEMA: Final = sql.SQL("SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {}").format(sql.Literal(SEAL_SCHEMA))

_GRANTED: Final = sql.SQL("""
SELECT DISTINCT r.rolname::text FROM (
    SELECT relacl AS acl, relowner AS owner FROM pg_catalog.pg_class
    WHERE relname = 'seal' AND relnamespace IN ({schema})
    UNION ALL SELECT proacl, proowner FROM pg_catalog.pg_proc WHERE pronamespace IN ({schema})
    UNION ALL SELECT nspacl, nspowner FROM pg_catalog.pg_namespace WHERE oid IN ({schema})
) o, pg_catalog.aclexplode(o.acl) a JOIN pg_catalog.pg_roles r ON r.oid = a.grantee WHERE a.grantee <> o.owner
""")


def warning(message: LiteralString) -> sql.Composed:
    """Return the statement of PL/pgSQL that raises a warning with the text of an SQL expression.

    A client whose encoding lacks a character of it gets question marks. Otherwise its statement would fail.
    """
    same = "pg_catalog.current_setting('client_encoding') = pg_catalog.current_setting('server_encoding')"
    plain = sql.SQL("pg_catalog.regexp_replace(({}) COLLATE pg_catalog.\"C\", '[^ -~]', '?', 'g')")
    text = sql.SQL(message)
    return sql.SQL("RAISE WARNING '%', CASE WHEN {} THEN {} ELSE {} END").format(
        sql.SQL(same), text, plain.format(text)
    )


@dataclass(frozen=True, slots=True)
class DdlSeal:
    """The key of the messages of a trigger that is in place without a gap since the LSN ``since``."""

    key: bytes = field(repr=False)
    since: Lsn

    def open(self, message: bytes, xid: int) -> bytes | None:
        """Return the content of a message of transaction ``xid``, or None if the trigger did not write it there."""
        digest, content = message[:_DIGEST_BYTES], message[_DIGEST_BYTES:]
        inner = hashlib.sha256(self.key + b"%d " % xid + content).digest()
        genuine = hmac.compare_digest(digest, hashlib.sha256(self.key + inner).digest())
        return content if genuine else None


@source_errors("reading the key of the DDL trigger")
def read_seal(conn: psycopg.Connection[Any], trigger: str) -> DdlSeal | None:
    """Return the trigger's seal. Return None if it is missing, disabled or changed, or if its key is not readable."""
    found = conn.execute(_FIND.format(trigger=sql.Literal(trigger), schema=sql.Literal(SEAL_SCHEMA))).fetchone()
    if found is None:
        return None
    query = sql.SQL("SELECT key, since::text, trigger_oid, trigger_xmin FROM {}").format(KEY_TABLE)
    row = conn.execute(query).fetchone()
    if row is None or row[2:] != found:
        return None
    return DdlSeal(bytes(row[0]), Lsn.parse(row[1]))


def create_key(conn: psycopg.Connection[Any], trigger: str) -> None:
    """Create a new key for an installed trigger, and revoke all rights on it from other roles.

    Default privileges may have granted some.
    """
    conn.execute(_CREATE_KEY.format(key_table=KEY_TABLE, trigger=sql.Literal(trigger)))
    granted = conn.execute(_GRANTED.format(schema=_SCHEMA)).fetchall()
    for role in (sql.SQL("PUBLIC"), *(sql.Identifier(row[0]) for row in granted)):
        for what in ("ALL TABLES IN SCHEMA", "ALL FUNCTIONS IN SCHEMA", "SCHEMA"):
            revoke = sql.SQL("REVOKE ALL ON {} {} FROM {}")
            conn.execute(revoke.format(sql.SQL(what), sql.Identifier(SEAL_SCHEMA), role))
