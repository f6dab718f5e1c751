"""The properties of a table that its copy and its stream need, and the errors of a table that lacks one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.replica_identity import accepted, identified
from levada.postgres.streamed import leaves_of
from levada.printable import listed
from levada.schema.changes import RESERVED_PREFIX
from levada.values import QualifiedTable, resync_command


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties of one selected table that are checked.

    ``generated_identity`` is True if the replica identity has a generated column, with which it is not streamed.
    ``has_generated`` is True if it has any generated column. ``usable`` is True if the role may use its schema.
    ``unreadable`` has the columns that the role may not read, of the table and of each partition, with those of the
    system that copies read.
    """

    name: QualifiedTable
    usable: bool
    unreadable: Mapping[str, frozenset[QualifiedTable]]
    hides_rows: bool
    has_identity: bool
    generated_identity: bool
    has_key: bool
    reserved: tuple[str, ...]
    has_generated: bool

    def unreadable_but(self, excluded: AbstractSet[str]) -> tuple[list[str], list[QualifiedTable]]:
        """Return the columns that the role may not read, without the excluded ones, and where it may not."""
        columns = sorted(self.unreadable.keys() - excluded)
        return columns, sorted({part for column in columns for part in self.unreadable[column]})


# Partitions are read one by one, and each streams old rows by its own replica identity. The functions of privileges
# return NULL for a table that has been dropped since the snapshot of the query.
_TABLES: Final = sql.SQL("""
SELECT n.nspname, c.relname,
    bool_and(coalesce(has_schema_privilege(l.relnamespace, 'USAGE'), true)),
    CASE WHEN NOT bool_and(coalesce(has_table_privilege(l.oid, 'SELECT'), true)) THEN ARRAY(
        SELECT ARRAY[a.attname::text, s.nspname::text, k.relname::text] FROM unnest(array_agg(l.oid)) AS part(oid)
        JOIN pg_class k ON k.oid = part.oid JOIN pg_namespace s ON s.oid = k.relnamespace
        JOIN pg_attribute a ON a.attrelid = part.oid AND NOT a.attisdropped
            AND (a.attnum > 0 OR a.attname IN ('ctid', 'tableoid', 'xmin'))
        WHERE NOT coalesce(has_column_privilege(part.oid, a.attnum, 'SELECT'), true)) END,
    bool_or(row_security_active(l.oid)),
    bool_and({has_identity}), bool_or({has_identity} AND NOT {identified}),
    c.relreplident <> 'f' OR EXISTS (SELECT FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indisprimary),
    ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND starts_with(a.attname::text, %(reserved)s) ORDER BY a.attnum),
    EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '')
FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS t(schema, name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT p.relid FROM {leaves} p) AS part(oid)
-- OFFSET makes PostgreSQL look up each relation. It would read all of pg_class for each table.
CROSS JOIN LATERAL (
    SELECT k.oid, k.relkind, k.relnamespace, k.relreplident FROM pg_class k WHERE k.oid = part.oid OFFSET 0) l
GROUP BY n.nspname, c.relname, c.oid, c.relreplident
ORDER BY 1, 2
""")

# A query of a table has the rows of its inheritance children too. Their own children are among theirs.
_CHILDREN: Final = """
SELECT n.nspname, c.relname, array_agg(s.nspname::text ORDER BY s.nspname, k.relname),
    array_agg(k.relname::text ORDER BY s.nspname, k.relname)
FROM unnest(%s::text[], %s::text[]) AS t(schema, name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name AND c.relkind = 'r' AND c.relhassubclass
JOIN pg_inherits i ON i.inhparent = c.oid
JOIN pg_class k ON k.oid = i.inhrelid JOIN pg_namespace s ON s.oid = k.relnamespace
GROUP BY 1, 2 ORDER BY 1, 2
"""


def read_table_properties(
    conn: psycopg.Connection[Any], tables: AbstractSet[QualifiedTable]
) -> Iterable[TableProperties]:
    """Yield the properties of those tables that exist, ordered by name."""
    parameters = {
        "schemas": [t.schema for t in tables],
        "names": [t.name for t in tables],
        "reserved": RESERVED_PREFIX,
    }
    # Any identity, as before version 18.
    query = _TABLES.format(
        leaves=leaves_of("c.oid"), has_identity=accepted(0), identified=identified(conn.info.server_version)
    )
    for schema, name, usable, unreadable, hides, identity, generated, key, reserved, has_generated in conn.execute(
        query, parameters
    ).fetchall():
        its, columns = QualifiedTable(schema, name), _unreadable(unreadable or ())
        yield TableProperties(its, usable, columns, hides, identity, generated, key, tuple(reserved), has_generated)


def _unreadable(rows: Iterable[Sequence[str]]) -> Mapping[str, frozenset[QualifiedTable]]:
    found: dict[str, frozenset[QualifiedTable]] = {}
    for column, schema, name in rows:
        found[column] = found.get(column, frozenset()) | {QualifiedTable(schema, name)}
    return found


@source_errors("checking whether a table can be copied")
def require_copyable(
    conn: psycopg.Connection[Any], publication: str, table: QualifiedTable, excluded: AbstractSet[str]
) -> None:
    """Raise NeedsOperator if a copy could not read every row, or could not be followed by the stream.

    The codes are ``select_privilege_missing``, ``row_security`` and ``reserved_column_name``.
    """
    for error in copy_errors(conn, publication, {table: excluded}).values():
        raise error


@source_errors("checking whether tables can be copied")
def copy_errors(
    conn: psycopg.Connection[Any], publication: str, tables: Mapping[QualifiedTable, AbstractSet[str]]
) -> Mapping[QualifiedTable, NeedsOperator]:
    """Return the errors that `require_copyable` raises, by table. ``tables`` has the excluded columns of each."""
    errors: dict[QualifiedTable, NeedsOperator] = {}
    role = _role(conn)
    for found in read_table_properties(conn, tables.keys()):
        for problem in reading_problems(found, tables[found.name], role):
            hint = f"{problem.hint}; then levada retry MANIFEST TABLE"
            errors.setdefault(found.name, NeedsOperator(problem.code, problem.message, hint=hint))
        for error in column_errors(found, tables[found.name]):
            errors.setdefault(found.name, error)
    return errors


def _role(conn: psycopg.Connection[Any]) -> str:
    role: str = conn.execute("SELECT current_user::text").fetchall()[0][0]
    return role


def reading_problems(table: TableProperties, excluded: AbstractSet[str], role: str) -> Iterator[Problem]:
    """Yield the reasons why a copy by this role could not read every row, without the excluded columns."""
    usage, (lacks, where) = "", table.unreadable_but(excluded)
    if not table.usable:
        usage = _sql("GRANT USAGE ON SCHEMA {} TO {}; ", table.name.schema, role)
    if lacks or usage:
        # Where columns are kept from the role, the statement gives it none of those.
        some = f" ({', '.join(_sql('{}', column) for column in lacks)})" if excluded and lacks else ""
        what = f"columns {', '.join(lacks)} of table {table.name}" if some else f"table {table.name}"
        on = ", ".join(_sql("{}.{}", part.schema, part.name) for part in where or [table.name])
        yield Problem(
            Severity.ERROR,
            "select_privilege_missing",
            f"role {role} has no SELECT privilege on {what}",
            f"{usage}GRANT SELECT{some} ON {on} TO {_sql('{}', role)}",
            spares_others=True,
        )
    if table.hides_rows:
        yield Problem(
            Severity.ERROR,
            "row_security",
            f"row-level security may hide rows of table {table.name} from role {role}",
            _sql("ALTER ROLE {} BYPASSRLS", role),
            spares_others=True,
        )


def column_errors(table: TableProperties, excluded: AbstractSet[str]) -> Iterator[NeedsOperator]:
    """Yield an error for each column whose name is reserved, without the excluded ones."""
    for column in table.reserved:
        if column not in excluded:
            rename = _sql("ALTER TABLE {}.{} RENAME COLUMN {} TO …", table.name.schema, table.name.name, column)
            yield NeedsOperator(
                "reserved_column_name",
                f"column {column} of table {table.name} begins with {RESERVED_PREFIX}, which Levada reserves, so the"
                " table is not copied",
                hint=f"{rename}, or exclude it in the table's TableSync; then {resync_command(table.name)}",
            )


@source_errors("looking for the children of tables")
def unselected_children(conn: psycopg.Connection[Any], tables: AbstractSet[QualifiedTable]) -> Iterator[Problem]:
    """Yield a warning for each table with inheritance children that are not among the tables."""
    rows = conn.execute(_CHILDREN, [[t.schema for t in tables], [t.name for t in tables]]).fetchall()
    for schema, name, schemas, names in rows:
        table = QualifiedTable(schema, name)
        if children := sorted(set(map(QualifiedTable, schemas, names)) - tables):
            yield Problem(
                Severity.WARNING,
                "children_unselected",
                f"{listed(children)} inherit from table {table}, and spec.tables does not select them. A query of"
                f" {table} at the source shows their rows, and its table at the destination has none of them",
                "select them in spec.tables. Each is a table of its own at the destination",
            )


def _sql(template: str, *names: str) -> str:
    return sql.SQL(template).format(*map(sql.Identifier, names)).as_string(None)
