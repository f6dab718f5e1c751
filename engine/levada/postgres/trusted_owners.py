"""The owners of tables that a superuser reads, for a warning.

PostgreSQL evaluates immutable functions in a table's indexes, statistics and generated columns while it plans or runs
a query, with the rights of the session. ``SET ROLE`` does not limit such a function, because it can go back to the role
of the login by ``set_config``. So only a login without a superuser's rights does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import psycopg

from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.printable import listed
from levada.values import QualifiedTable

# A partition may have another owner than its root.
_OWNERS: Final = """
WITH RECURSIVE tree(relid, relkind) AS (
    SELECT c.oid, c.relkind FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
    UNION ALL
    SELECT c.oid, c.relkind FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid AND tree.relkind = 'p'
    JOIN pg_class c ON c.oid = i.inhrelid
)
SELECT DISTINCT owner.rolname::text
FROM tree JOIN pg_class c ON c.oid = tree.relid JOIN pg_roles owner ON owner.oid = c.relowner AND NOT owner.rolsuper
WHERE (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) ORDER BY 1
"""


@source_errors("reading the owners of tables")
def superuser_problems(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable], role: str
) -> Iterator[Problem]:
    """Yield a warning if the role is a superuser and reads tables of roles that are none."""
    names = [[t.schema for t in tables], [t.name for t in tables]]
    owners = [owner for (owner,) in conn.execute(_OWNERS, names).fetchall()] if tables else []
    if owners:
        yield Problem(
            Severity.WARNING,
            "role_superuser",
            f"role {role} is a superuser, and reads tables of roles that are none ({listed(owners)}): PostgreSQL runs"
            " functions of a table's indexes, statistics and generated columns with the rights of who reads it",
            "if these roles are not trusted, log in as a role that is no superuser, as in docs/security.md: CREATE ROLE"
            " levada LOGIN REPLICATION; GRANT pg_read_all_data TO levada; and set spec.source.publication.management to"
            " External, and spec.source.ddlTrigger to None",
        )
