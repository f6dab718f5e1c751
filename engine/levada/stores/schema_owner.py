"""The check that a PostgreSQL store's schema and tables have a trusted owner.

Any role may create the schema before Levada does. Triggers on that role's tables would run with Levada's privileges,
and the role would control the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import StatementRefused

# A superuser and the database's owner can change everything in it anyway. Membership in a role does not count: until
# PostgreSQL 15, every role can grant its own membership to other roles.
_SCHEMA: Final = """
SELECT current_user::text, r.rolname::text,
    r.rolname = current_user OR r.rolsuper OR d.datdba = n.nspowner OR r.rolname = 'pg_database_owner',
    EXISTS (SELECT FROM aclexplode(n.nspacl) a WHERE a.grantee = 0 AND a.privilege_type = 'CREATE')
FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner, pg_database d
WHERE n.nspname = %s AND d.datname = current_database()
"""

# If not every role may create tables, the schema's owner has chosen the roles that may.
_TABLES: Final = """
SELECT c.relname, r.rolname::text FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE n.nspname = %s AND c.relname = ANY (%s) AND NOT has_schema_privilege(c.relowner, n.oid, 'CREATE')
ORDER BY 1 LIMIT 1
"""


def require_own_schema(connection: psycopg.Connection[Any], schema: str, tables: Sequence[str]) -> bool:
    """Return True if the schema exists, and False if it does not.

    ``tables`` are the names of the store's tables. Raise StatementRefused ``store_schema_foreign`` if the schema or one
    of the tables belongs to a role without the privilege to create it, or if every role may create tables in it.
    """
    row = connection.execute(_SCHEMA, [schema]).fetchone()
    if row is None:
        return False
    role, owner, trusted, anyone_creates = row
    name = sql.Identifier(schema)
    if not trusted:
        adopt = sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(name, sql.Identifier(role)).as_string(None)
        raise _foreign(f"schema {schema} of the store belongs to role {owner}", f"if {owner} is trusted: {adopt}")
    if anyone_creates:
        revoke = sql.SQL("REVOKE CREATE ON SCHEMA {} FROM PUBLIC").format(name).as_string(None)
        raise _foreign(f"every role may create tables in schema {schema} of the store", revoke)
    if (table := connection.execute(_TABLES, [schema, list(tables)]).fetchone()) is not None:
        drop = sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, table[0])).as_string(None)
        message = f"{table[0]} in schema {schema} of the store belongs to role {table[1]}, which cannot create it there"
        raise _foreign(message, f"if nothing needs it: {drop}")
    return True


def _foreign(message: str, hint: str) -> StatementRefused:
    hint = f"{hint}; or set spec.store.postgres.schema to a new name"
    return StatementRefused("store_schema_foreign", message, hint=hint)
