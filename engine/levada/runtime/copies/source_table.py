"""The state of a table in the snapshot of a copy: its publication, its columns and its storage."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from levada.copy.kept import Basis
from levada.errors import Transient
from levada.postgres.catalog import read_column_names, read_table_description
from levada.postgres.copy_conditions import condition_error
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.mask_comments import read_table_comments
from levada.postgres.slots import ExportedSnapshot
from levada.postgres.storage import are_heaps, read_identity_indexes
from levada.postgres.table_checks import require_copyable
from levada.runtime.config_ref import ConfigRef
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.publication_gaps import published_table, read_membership, record_membership
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.table_names import table_renamed
from levada.schema import ReplicatedTableSchema
from levada.schema.exclusion import require_excluded
from levada.schema.flaws import flaw_error
from levada.schema.mask_comments import MaskComments
from levada.schema.masking import masked_column_missing, missing_masks, with_masks
from levada.schema.masks import TableMasks
from levada.schema.storage import TableStorage
from levada.schema.table import NEWEST_VERSION
from levada.stores.interface import PipelineStore
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable
    from levada.postgres.description import TableDescription
    from levada.runtime.config import PipelineConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in the snapshot of its copy. ``basis`` is that of `KeptCopy`.

    ``rows_stay`` is True if a row that does not change keeps its place. ``membership`` is that in the publication.
    """

    published: PublishedTable
    description: TableDescription
    schema: ReplicatedTableSchema
    basis: str
    rows_stay: bool
    membership: str


@dataclass(frozen=True, slots=True)
class SnapshotTables:
    """Reads tables of the source. ``sessions`` are its connections for that."""

    config_ref: ConfigRef
    store: PipelineStore
    sessions: IdleReaders

    def read(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, settings: CopySettings
    ) -> SourceTable:
        """Return the table's state in a snapshot, and record its membership in the publication for the copy."""
        found = self.look(snapshot, table, name, settings)
        record_membership(self.store, table, found.membership)
        return found

    def look(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, settings: CopySettings
    ) -> SourceTable:
        """Return the table's state in a snapshot. Raise the errors of a copy that may not be made."""
        config = self.config_ref.current
        with self.sessions.session() as connection, connection.transaction():
            begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT {}"
            connection.execute(sql.SQL(begin).format(snapshot.name), prepare=False)
            started_at = SourceRecord(self.store).require_verified(connection)
            names = publication_names(config, self.store)
            published = published_table(connection, names, table, name)
            if published.name != name and not config.is_selected(published.name):
                raise table_renamed(name, published.name)
            _require_filter(config, published)
            require_copyable(connection, config.publication.name, name, settings.excluded_columns)
            if settings.copy_where and (refused := condition_error(connection, name, settings.copy_where)) is not None:
                raise refused
            membership = read_membership(connection, names, table, name)
            description = read_table_description(connection, table)
            if missing := self.require_excluded(connection, table, name, settings.excluded_columns):
                _log.warning("columns.exclude of %s has %s, which is no column", name, ", ".join(sorted(missing)))
            if (flaw := flaw_error(name, description.storage.flaws)) is not None:
                raise flaw
            description.require_streamed_key(published.column_attnums)
            schema = description.schema(
                columns=published.column_attnums,
                exclude=settings.excluded_columns,
                policy=config.on_unrepresentable,
                types=settings.stored_types,
            )
            self._require_comments(read_table_comments(connection, table), name, settings)
            schema = self._masked(connection, schema, settings.masks)
            basis = Basis(
                server=(started_at, config.slot.name),
                settings=(settings.to_text(), config.on_unrepresentable.value),
                publication=(membership, published.row_filter),
                table=(
                    schema.to_json(),
                    _versions(description.storage),
                    read_identity_indexes(connection, {table, *description.storage.leaves}),
                ),
            ).to_text()
            rows_stay = are_heaps(connection, description.storage.leaves.keys())
            return SourceTable(published, description, schema, basis, rows_stay, membership)

    def _masked(
        self, connection: psycopg.Connection[Any], schema: ReplicatedTableSchema, masks: TableMasks
    ) -> ReplicatedTableSchema:
        """Return the schema of a copy with its columns masked, also those that were renamed since the last copy.

        Raise NeedsOperator ``masked_column_missing`` if a name is no column's: the column would be copied in clear.
        """
        if not masks:
            return schema
        former = self.store.get_table_schema(schema.id, NEWEST_VERSION)
        names = read_column_names(connection, schema.id).values()
        if missing := missing_masks(masks, names, former):
            raise masked_column_missing(schema.name, missing)
        return with_masks(schema, masks, former, self.config_ref.current.mask_keys)

    def _require_comments(self, comments: MaskComments, name: QualifiedTable, settings: CopySettings) -> None:
        """Raise NeedsOperator ``mask_comment_refused`` if a comment says no mask, and Transient
        ``mask_comments_changed`` if the copy would not have the masks of the comments in its snapshot.
        """
        config = self.config_ref.current
        if (problem := config.comment_problem(settings.named or name, comments)) is not None:
            raise problem
        if comments.over(settings.masks, config.mask_keys.newest) != settings.masks:
            raise Transient(
                "mask_comments_changed",
                f"comments that mask columns of {name} have changed since the copy was planned, so it begins again",
                hint="if it lasts, levada check MANIFEST says why",
            )

    def require_excluded(
        self, connection: psycopg.Connection[Any], table: TableId, name: QualifiedTable, excluded: frozenset[str]
    ) -> frozenset[str]:
        """Raise NeedsOperator if the copy would have a column that the last version excludes.

        Return the excluded names that no column has. They are no error, because a column may have been dropped, or is
        yet to be added.
        """
        if not excluded:
            return excluded
        names = read_column_names(connection, table)
        former = self.store.get_table_schema(table, NEWEST_VERSION)
        if former is not None:
            require_excluded(replace(former, name=name), excluded, names)
        return excluded.difference(names.values())


def _require_filter(config: PipelineConfig, table: PublishedTable) -> None:
    """Raise Transient ``row_filter_missing`` if the manifest has a row filter and the publication has none."""
    if config.publication.managed and table.row_filter is None and config.row_filter(table.name) is not None:
        raise Transient(
            "row_filter_missing",
            f"spec.tables.include has where for {table.name}, and publication {config.publication.name} has no row"
            " filter of it, so it is not copied",
            hint="if it lasts, levada check MANIFEST says why",
        )


def _versions(storage: TableStorage) -> str:
    """Return the storage with the versions of its catalog rows, without what is no property of the table."""
    leaves = {oid: replace(leaf, empty=False) for oid, leaf in storage.leaves.items()}
    return replace(storage, leaves=leaves).to_text()
