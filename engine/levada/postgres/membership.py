"""The membership of tables in a publication, and the check that a table was published without a gap since its copy.

PostgreSQL gives a member of a publication a new OID when it is added, and when its row filter or column list is set.
``ALTER PUBLICATION ... SET TABLE`` keeps the OIDs of members that it does not change. ALTER PUBLICATION rewrites the
publication's own row when its options, name or owner change, which changes the row's ``xmin``. So a past gap is visible
afterwards. VACUUM, VACUUM FULL and freezing keep both values. A restored dump and pg_upgrade do not.

The catalog does not distinguish some harmless changes from ones that lose rows. They count as gaps: a new owner of the
publication, and a rename or a new owner of a table that is published only by its schema.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.catalog import qualified_names
from levada.postgres.failures import source_errors
from levada.postgres.identity_remedies import identity_statements, publish_hint
from levada.postgres.publications import leave_out_unidentified
from levada.postgres.readmissions import read_successors
from levada.postgres.streamed import ROW_FILTER
from levada.values import QualifiedTable, TableId, resync_command


@dataclass(frozen=True, slots=True)
class PublicationIdentity:
    """A publication and its options. ``version`` changes with every ALTER of the publication itself."""

    oid: int
    version: str
    operations: tuple[str, ...]
    via_root: bool


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of one table in a publication.

    ``members`` are the catalog entries that publish the table: the table's own, its schema's, those of a partition's
    ancestors, or the publication itself if it is FOR ALL TABLES. Former entries that these stand for without a gap are
    among them. ``limit`` is the member with a row filter or a column
    list, if it limits the table. ``row_filter`` and ``columns`` describe that limit.
    """

    publication: PublicationIdentity
    members: frozenset[str]
    limit: str = ""
    row_filter: str | None = None
    columns: tuple[int, ...] | None = None

    def to_text(self) -> str:
        """Return the membership as text for the store."""
        return json.dumps(asdict(self) | {"members": sorted(self.members)})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the text that `to_text` returned."""
        data = json.loads(text)
        publication = data["publication"] | {"operations": tuple(data["publication"]["operations"])}
        columns = data["columns"]
        return cls(
            PublicationIdentity(**publication),
            frozenset(data["members"]),
            data["limit"],
            data["row_filter"],
            None if columns is None else tuple(columns),
        )

    def continues(self, earlier: Membership) -> bool:
        """Return True if the table was published in the same way, without a gap, since ``earlier``."""
        return self.limit == earlier.limit and not self.members.isdisjoint(earlier.members)


@dataclass(frozen=True, slots=True)
class PublicationState:
    """The current state of a publication. ``identity`` is None if the publication does not exist.

    ``names`` are the tables that exist at the source, and ``members`` are the published ones. Changes of tables in
    ``unlogged`` are not in the WAL. Those of ``partitions`` are streamed as changes of a published root, and those of
    ``divided`` as changes of their partitions. ``unidentified`` are unpublished tables whose UPDATEs and DELETEs
    PostgreSQL would reject once they are published, with the SQL that gives them a replica identity. ``appended`` are
    members of the second publication, see `levada.postgres.append_publication`.
    """

    name: str
    identity: PublicationIdentity | None
    names: Mapping[TableId, QualifiedTable]
    members: Mapping[TableId, Membership]
    unlogged: frozenset[TableId] = frozenset()
    partitions: frozenset[TableId] = frozenset()
    divided: frozenset[TableId] = frozenset()
    unidentified: Mapping[TableId, str] = field(default_factory=dict)
    appended: frozenset[TableId] = frozenset()

    def left(self, table: TableId) -> bool:
        """Return True if the table exists at the source and its changes are not published."""
        return table in self.names and table not in self.members and table not in self.partitions


_PUBLICATION: Final = sql.SQL("""
SELECT p.oid::bigint, p.xmin::text, array_remove(ARRAY[
        CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
        CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL), pubviaroot
FROM pg_publication p WHERE pubname = %s
""")

# Only catalog tables: functions such as pg_get_publication_tables do not use the transaction's snapshot.
_MEMBERS: Final = sql.SQL("""
WITH RECURSIVE chain(id, relation, path) AS (
    SELECT c.oid, c.oid, '' FROM pg_class c WHERE c.oid = ANY (%(tables)s::oid[]) AND c.relpersistence = 'p'
    UNION ALL
    SELECT chain.id, i.inhparent, chain.path || '/' || i.xmin::text
    FROM chain JOIN pg_class c ON c.oid = chain.relation AND c.relispartition
    JOIN pg_inherits i ON i.inhrelid = chain.relation
), member AS (
    SELECT chain.id, 'all:' || p.oid::text AS name, NULL::text AS row_filter, NULL::int2[] AS columns,
        false AS limited, false AS own
    FROM chain JOIN pg_publication p ON p.oid = %(publication)s AND p.puballtables
    WHERE chain.path = ''
    UNION ALL
    SELECT chain.id, 'table:' || r.oid::text || chain.path, {row_filter}, {columns}, {limited},
        chain.path = ''
    FROM chain JOIN pg_publication_rel r ON r.prpubid = %(publication)s AND r.prrelid = chain.relation
    {schemas}
)
SELECT c.oid::bigint, n.nspname, c.relname,
    coalesce(array_agg(m.name ORDER BY m.name) FILTER (WHERE m.id IS NOT NULL), '{{}}'),
    max(m.name) FILTER (WHERE m.own AND m.limited),
    max(m.row_filter) FILTER (WHERE m.own), max(m.columns) FILTER (WHERE m.own), c.relispartition,
    c.relpersistence <> 'p', c.relkind = 'p'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN member m ON m.id = c.oid
WHERE c.oid = ANY (%(tables)s::oid[])
GROUP BY c.oid, n.nspname, c.relname, c.relispartition, c.relpersistence, c.relkind
""")

# Row filters, column lists and schemas of publications exist since version 15.
_LIMITS: Final = {
    "row_filter": ROW_FILTER,
    "columns": sql.SQL("r.prattrs::int2[]"),
    # Also one that PostgreSQL ignores: it held before the publication got the schema.
    "limited": sql.SQL("r.prqual IS NOT NULL OR r.prattrs IS NOT NULL"),
}
_NO_LIMITS: Final = {
    "row_filter": sql.SQL("NULL::text"),
    "columns": sql.SQL("NULL::int2[]"),
    "limited": sql.SQL("false"),
}
# Moving a table to another schema rewrites the row of its type, and so does moving it back.
_SCHEMAS: Final = sql.SQL("""
    UNION ALL
    SELECT chain.id, 'schema:' || s.oid::text || '@' || y.xmin::text || chain.path, NULL, NULL, false, false
    FROM chain JOIN pg_class c ON c.oid = chain.relation JOIN pg_type y ON y.oid = c.reltype
    JOIN pg_publication_namespace s ON s.pnpubid = %(publication)s AND s.pnnspid = c.relnamespace
""")


@source_errors("reading the tables of the publication")
def read_publication_state(
    conn: psycopg.Connection[Any], publication: str, tables: Collection[TableId]
) -> PublicationState:
    """Return the publication's state and its membership of these tables, as the connection's snapshot sees them."""
    modern = conn.info.server_version >= 150000
    query = _MEMBERS.format(**(_LIMITS if modern else _NO_LIMITS), schemas=_SCHEMAS if modern else sql.SQL(""))
    with qualified_names(conn):
        identity = _read_identity(conn, publication)
        while True:
            parameters = {"publication": 0 if identity is None else identity.oid, "tables": [int(t) for t in tables]}
            rows = conn.execute(query, parameters).fetchall()
            # Each statement has a snapshot of its own, so the publication may be dropped between the two.
            before, identity = identity, _read_identity(conn, publication)
            if identity == before:
                break
    names = {TableId(table): QualifiedTable(schema, name) for table, schema, name, *_ in rows}
    unlogged = frozenset(TableId(row[0]) for row in rows if row[-2])
    via_root = identity is not None and identity.via_root
    partitions = frozenset(
        TableId(row[0]) for row in rows if via_root and row[-3] and any(_publishes_root(m) for m in row[3])
    )
    divided = frozenset(TableId(row[0]) for row in rows if row[-1] and row[3] and identity is not None and not via_root)
    successors = read_successors(conn)
    members = {
        TableId(table): _membership(identity, _with_former(of_table, successors), limit, row_filter, columns)
        for table, _, _, of_table, limit, row_filter, columns, *_ in rows
        if of_table and identity is not None and table not in partitions and table not in divided
    }
    left = {name for table, name in names.items() if table not in members and table not in partitions}
    refused = leave_out_unidentified(conn, publication, left)[1] if left else ()
    remedies = identity_statements(conn, refused)
    unidentified = {table: remedies[name] for table, name in names.items() if name in remedies}
    return PublicationState(publication, identity, names, members, unlogged, partitions, divided, unidentified)


def find_gap(kept: Membership | None, state: PublicationState, table: TableId) -> NeedsOperator | None:
    """Return an error if changes of the table may be missing since its copy, else None.

    ``kept`` is the table's membership at the time of its copy. A table that no longer exists has no gap.
    """
    name = state.names.get(table)
    if name is None:
        return None
    resync = resync_command(name)
    if table in state.partitions:
        return streamed_as_root(name)
    if state.left(table):
        return _left(table, state, resync)
    if kept is None:
        reason = f"there is no record of the membership of table {name} in publication {state.name} at its copy"
        return NeedsOperator("publication_changed", reason, hint=resync)
    now = state.members[table]
    if now.publication.oid != kept.publication.oid:
        reason = f"table {name} was copied with another publication than the current {state.name}"
        return NeedsOperator("publication_changed", reason, hint=resync)
    if now.publication != kept.publication:
        reason = f"publication {state.name} was altered since table {name} was copied{_options(kept, now)}"
        return NeedsOperator("publication_changed", reason, hint=resync)
    if not now.continues(kept):
        if now.row_filter != kept.row_filter and now.columns == kept.columns:
            reason = f"the row filter of table {name} was {kept.row_filter or 'none'}, and is now"
            return NeedsOperator("row_filter_changed", f"{reason} {now.row_filter or 'none'}", hint=resync)
        reason = f"table {name} was added to publication {state.name} again since it was copied{_limits(kept, now)}"
        return NeedsOperator("publication_membership_changed", reason, hint=resync)
    return None


def streamed_as_root(table: QualifiedTable) -> NeedsOperator:
    """Return the error of a replicated table that is, or was, a partition of a published table."""
    return NeedsOperator(
        "table_not_published",
        f"table {table} was attached as a partition, so its changes are streamed as those of its root",
        hint=f"exclude it in spec.tables, or detach it; then {resync_command(table)}",
    )


def set_unlogged(table: QualifiedTable) -> NeedsOperator:
    """Return the error of a replicated table that is, or was, unlogged."""
    statement = sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(table.schema, table.name)).as_string(None)
    return NeedsOperator(
        "table_not_published",
        f"table {table} was set UNLOGGED, so its changes are not in the WAL from then on",
        hint=f"{statement}, if it is not logged again; then {resync_command(table)}",
    )


def lost_identity(table: QualifiedTable, remedy: str) -> NeedsOperator:
    """Return the error of a replicated table that the DDL trigger took out of the publication.

    ``remedy`` is the SQL that gives it a replica identity again.
    """
    return NeedsOperator(
        "table_not_published",
        f"table {table} has lost its replica identity, or a column of its row filter is no longer in it, so it was"
        " taken out of the publication. PostgreSQL would refuse its UPDATEs and DELETEs there",
        hint=f"{remedy}; then {resync_command(table)}",
    )


def _read_identity(conn: psycopg.Connection[Any], publication: str) -> PublicationIdentity | None:
    row = conn.execute(_PUBLICATION, [publication]).fetchone()
    return None if row is None else PublicationIdentity(row[0], row[1], tuple(row[2]), row[3])


def _publishes_root(member: str) -> bool:
    """Return True if this member of a partition publishes its root too: an ancestor, or FOR ALL TABLES."""
    return "/" in member or member.startswith("all:")


def _with_former(members: Sequence[str], successors: Mapping[int, int]) -> list[str]:
    """Return the members, and those that they stand for, see `levada.postgres.readmissions`."""
    found = list(members)
    for member in found:
        kind, _, entry = member.partition(":")
        oid, slash, path = entry.partition("/")
        if kind == "table" and (former := successors.get(int(oid))) is not None:
            found.append(f"table:{former}{slash}{path}")
    return found


def _membership(
    identity: PublicationIdentity,
    members: list[str],
    limit: str | None,
    row_filter: str | None,
    columns: list[int] | None,
) -> Membership:
    if limit is None:
        return Membership(identity, frozenset(members))
    if any(m.startswith(("all:", "schema:")) and "/" not in m for m in members):
        # The table's schema is published without a limit, which overrides the table's own limit.
        return Membership(identity, frozenset(members) - {limit})
    return Membership(identity, frozenset(members), limit, row_filter, None if columns is None else tuple(columns))


def _left(table: TableId, state: PublicationState, resync: str) -> NeedsOperator:
    name = state.names[table]
    if table in state.unlogged:
        return set_unlogged(name)
    if table in state.divided:
        statement = sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(
            sql.Identifier(state.name)
        )
        return NeedsOperator(
            "table_not_published",
            f"publication {state.name} streams the changes of table {name} as those of its partitions",
            hint=f"{statement.as_string(None)}; then {resync}",
        )
    exists = state.identity is not None
    remedies = [state.unidentified[table]] if table in state.unidentified else []
    hint = publish_hint(state.name, [name], remedies, exists=exists)
    if exists:
        reason = f"table {name} is not in publication {state.name}"
        if table in state.unidentified:
            reason += ". It has no replica identity, so PostgreSQL would refuse its UPDATEs and DELETEs there"
        return NeedsOperator("table_not_published", reason, hint=f"{hint} then {resync}")
    reason = f"publication {state.name} does not exist, so changes of table {name} are not streamed"
    return NeedsOperator("publication_missing", reason, hint=f"{hint} then {resync}")


def _options(kept: Membership, now: Membership) -> str:
    before, after = ", ".join(kept.publication.operations), ", ".join(now.publication.operations)
    return f": it published {before or 'nothing'}, and now publishes {after or 'nothing'}" if before != after else ""


def _limits(kept: Membership, now: Membership) -> str:
    changes = []
    if kept.row_filter != now.row_filter:
        changes.append(f"its row filter was {kept.row_filter or 'none'}, and is now {now.row_filter or 'none'}")
    if kept.columns != now.columns:
        changes.append("its column list has changed")
    return f": {', '.join(changes)}" if changes else ""
