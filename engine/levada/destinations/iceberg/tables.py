"""The tables of the catalog: found, made, dropped, and recognised as this pipeline's own."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from levada.destinations.collisions import Target
from levada.destinations.iceberg.catalog import CatalogConfig, TableName
from levada.destinations.iceberg.claim import Claim
from levada.destinations.iceberg.java import JavaObject, Jvm, Missing, each, java_errors
from levada.destinations.iceberg.jdbc_check import UNCHANGED, has_tables
from levada.destinations.iceberg.layout import Layout, initial_layout, resync_hint
from levada.destinations.iceberg.metadata import DATA_PATH, Property, TableMetadata
from levada.destinations.iceberg.ownership import Owner, table_id_of
from levada.destinations.iceberg.table import DEFAULTS, IcebergTable
from levada.destinations.iceberg.table_folder import TableFolder
from levada.destinations.interface import DestinationContext, TableMode, TableSettings
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, StaleEpoch
from levada.locations import folded_name
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Tables:
    """A catalog of Iceberg tables under its name in a Spark session; it is opened when it is first needed."""

    def __init__(self, spark: SparkSession, config: CatalogConfig, context: DestinationContext) -> None:
        self._config = config
        self.owner = Owner(context)
        # Tables are made side by side; not every catalog says of a namespace made twice that it is there.
        self._making_namespace = threading.Lock()
        self.jvm = Jvm(spark)
        for key, value in config.spark_conf().items():
            spark.conf.set(key, value)
        self._opening = threading.Lock()
        self._opened: JavaObject | None = None
        # A JDBC catalog creates its tables when it is opened.
        self._unchanged = context.only_checks and config.properties["type"] == "jdbc"

    def open(self) -> JavaObject:
        """Return the catalog; raise Transient ``destination_unavailable`` while it does not answer."""
        with self._opening:
            if self._opened is None:
                with java_errors("open the catalog"):
                    properties = {**self._config.properties, **(UNCHANGED if self._unchanged else {})}
                    self._opened = self.jvm.open_catalog(self._config.name, properties)
            return self._opened

    def close(self) -> None:
        """Close the catalog, with its connections; it is opened again if it is needed."""
        with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                with java_errors("close the catalog"):
                    self.jvm.close(opened)

    def check(self) -> None:
        """List the catalog's namespaces, and write and remove a file in the warehouse of a Hadoop catalog."""
        if not self._unchanged or has_tables(self.jvm, self._config.properties):
            self._inside(())
        warehouse = self._config.properties.get("warehouse")
        if self._config.properties["type"] == "hadoop" and warehouse is not None:
            with java_errors(f"write to {warehouse}"):
                self._probe(self.jvm.path(warehouse))

    def _probe(self, folder: JavaObject) -> None:
        files, made, missing = folder.getFileSystem(self.jvm.hadoop_conf), [], folder
        while missing is not None and not files.exists(missing):
            made.append(missing)
            missing = missing.getParent()
        probe = self.jvm.path(folder, f".levada-check-{uuid.uuid4().hex}")
        try:
            files.create(probe).close()
            files.delete(probe, False)
        finally:
            for path in made:
                if files.exists(path):
                    files.delete(path, False)

    def exists(self, name: TableName) -> bool:
        """Tell whether there is such a table, whoever made it."""
        with java_errors(f"look for {name}"):
            return bool(self.open().tableExists(self._identifier(name)))

    def load(self, name: TableName, source: TableId) -> IcebergTable | None:
        """Return the table of a source table, None if there is none; raise NeedsOperator if it is another's."""
        table = self._load_any(name)
        if table is not None:
            self.owner.require(name, table.metadata.properties, source)
        return table

    def _load_any(self, name: TableName) -> IcebergTable | None:
        # To ask first whether it exists would read its metadata twice.
        try:
            with java_errors(f"load {name}"):
                return IcebergTable(self.jvm, name, self.open().loadTable(self._identifier(name)))
        except Missing:
            return None

    def put_own_name(self, table: IcebergTable) -> None:
        """Write the pipeline's full name to an own table that has a former owner's.

        From then on it is not the table of a new Pipeline with the former owner's name.
        """
        if renamed := self.owner.renamed(table.metadata.properties):
            table.set_properties(renamed)
            _log.info("%s is a former owner's table, and has the name of this pipeline now", table.name)

    def create(self, name: TableName, schema: ReplicatedTableSchema, mode: TableMode) -> IcebergTable:
        """Make the table, and its namespace if it is not there."""
        layout = initial_layout(schema, mode)
        properties = {
            **DEFAULTS,
            **self.owner.properties(name, schema),
            Property.MODE.value: mode.value,
            Property.KEY.value: key_property(schema),
            Property.COLUMNS.value: layout.columns_json(),
        }
        with java_errors(f"create {name}"):
            with self._making_namespace:
                self._make_namespace(name.namespace)
            java_schema = self.jvm.iceberg.SchemaParser.fromJson(layout.to_json())
            builder = self.open().buildTable(self._identifier(name), java_schema)
            table = IcebergTable(self.jvm, name, builder.withProperties(self.jvm.map(properties)).create())
        made = table.metadata.layout
        # A location can be that of a table that was renamed in the catalog, and has files there.
        found: dict[str, str | None] = {DATA_PATH: f"{table.java.location().rstrip('/')}/data/{table.metadata.uuid}"}
        if made.fields != layout.fields:
            ids = {c.attnum: f.id for c, f in zip(schema.columns, made.fields, strict=False)}
            found[Property.COLUMNS.value] = Layout(made.fields, ids).columns_json()
        table.set_properties(found)
        _log.info("made %s for %s", name, schema.name)
        return table

    def check_free(self, name: TableName, schema: ReplicatedTableSchema) -> None:
        """Raise NeedsOperator if the place holds a table that a copy of ``schema`` must not replace."""
        if self._own_remains(name, schema.id) is not None:
            return
        kept = self._properties(name)
        if kept is None:
            self._check_nesting(name)
        else:
            self.owner.require_replaceable(name, kept, schema)

    def _properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the properties of the table in a place, as far as they can be read, None if there is no table."""
        try:
            table = self._load_any(name)
        except DestinationChanged as error:
            if error.code != "table_damaged":
                raise
            return self._own_metadata(name, error).properties
        return None if table is None else table.metadata.properties

    def _check_nesting(self, name: TableName) -> None:
        """Raise NeedsOperator if the table's folder in a Hadoop catalog is within another table's, or around it."""
        if self._config.properties["type"] != "hadoop":
            return
        levels = name.namespace
        with java_errors(f"look for {name}"):
            around = [TableName(levels[:i], levels[i]) for i in range(1, len(levels))]
            within = self.open().listTables(self._namespace((*levels, name.name))) if self._is_namespace(name) else ()
            clash = next((t for t in around if self.exists(t)), None) or next(
                (TableName((*levels, name.name), t.name()) for t in within), None
            )
        if clash is not None:
            raise NeedsOperator(
                "table_not_ours",
                f"{name} and the table {clash} would share a folder",
                hint="set destinationTable in the table's TableSync, or another spec.destination.iceberg.namespace",
            )

    def _is_namespace(self, name: TableName) -> bool:
        return bool(self.open().namespaceExists(self._namespace((*name.namespace, name.name))))

    def drop(self, name: TableName, schema: ReplicatedTableSchema, epoch: int | None = None) -> None:
        """Remove the table with its files; not an error if there is none, NeedsOperator if it is another's.

        Raise StaleEpoch if a driver newer than ``epoch`` has it.
        """
        self.check_free(name, schema)
        if (remains := self._own_remains(name, schema.id)) is not None:
            remains.remove()
            _log.warning("removed what was left of %s by a drop that did not end", name)
            return
        try:
            table = self._load_any(name)
        except DestinationChanged as error:
            if error.code != "table_damaged":
                raise
            self._drop_damaged(name, schema, error, epoch)
            return
        if table is not None:
            require_not_newer(table.metadata, epoch)
            claim = Claim.of(table)
            if claim is not None:
                claim.remove_files(table)
            folder = self._table_folder(name)
            if folder is not None:
                folder.mark_dropped(self.owner.properties(name, schema))
            self._drop_readable(name, table)

    def _drop_readable(self, name: TableName, table: IcebergTable) -> None:
        own = table.own_folder
        try:
            with java_errors(f"drop {name}"):
                self.open().dropTable(self._identifier(name), True)
        except DestinationChanged as error:
            # A purge reads the lists of files, and one of them is gone. Some catalogs have dropped the entry by now.
            _log.warning("%s is dropped without reading its files: %s", name, error.message)
            with java_errors(f"drop {name}"):
                self.open().dropTable(self._identifier(name), False)
        if own is not None:
            try:
                with java_errors(f"remove {own}"):
                    table.java.io().deletePrefix(own)
            except LevadaError as error:
                _log.warning("%s stays behind as garbage: %s", own, error.message)

    def _drop_damaged(
        self, name: TableName, schema: ReplicatedTableSchema, error: DestinationChanged, epoch: int | None
    ) -> None:
        """Remove a table that cannot be loaded, if an earlier version of its metadata shows that it is ours.

        Only a Hadoop catalog has one folder for each table. Elsewhere the data files stay as garbage: the metadata that
        was found may be that of a table that was renamed.
        """
        kept = self._own_metadata(name, error)
        self.owner.require_replaceable(name, kept.properties, schema)
        require_not_newer(kept, epoch)
        _log.warning("%s is dropped without its newest metadata: %s", name, error.message)
        with java_errors(f"drop {name}"):
            if self._config.properties["type"] == "hadoop":
                path = self.jvm.path(self._folder(name))
                path.getFileSystem(self.jvm.hadoop_conf).delete(path, True)
            else:
                self.open().dropTable(self._identifier(name), False)
                _log.warning("%s: its files stay behind as garbage in %s", name, self._folder(name))

    def _own_metadata(self, name: TableName, error: DestinationChanged) -> TableMetadata:
        """Return the newest metadata of a damaged table that can be read; raise if that does not show it to be ours."""
        kept = self._last_metadata(name)
        if kept is None or not (self.owner.owns(kept.properties) or self.owner.owned(kept.properties)):
            raise DestinationChanged(
                "table_damaged",
                f"{error.message}. No metadata file that can be read shows that {name} belongs to this pipeline",
                hint=f"remove {name} from the catalog, then: levada resync MANIFEST TABLE",
            )
        return kept

    def _last_metadata(self, name: TableName) -> TableMetadata | None:
        """Return the newest metadata of the table that can be read, wherever the catalog points to."""
        folder = self._folder(name)
        if folder is None:
            return None
        parser = self.jvm.iceberg.TableMetadataParser
        try:
            with java_errors(f"list the metadata of {name}"):
                io = self.jvm.file_io(self._config.properties)
                listed = [(f.createdAtMillis(), f.location()) for f in each(io.listPrefix(f"{folder}/metadata/"))]
        except DestinationChanged:
            return None
        for _, location in sorted(listed, reverse=True):
            if location.endswith(".metadata.json"):
                with suppress(DestinationChanged), java_errors(f"read {location}"):
                    return TableMetadata.parse(parser.toJson(parser.read(io, location)))
        return None

    def _folder(self, name: TableName) -> str | None:
        """Return where the catalog puts a table of this name, None if it is for the catalog's server to know."""
        warehouse = self._config.properties.get("warehouse")
        if self._config.properties["type"] not in ("hadoop", "jdbc") or warehouse is None:
            return None
        return "/".join((warehouse.rstrip("/"), *name.namespace, name.name))

    def _own_remains(self, name: TableName, source: TableId) -> TableFolder | None:
        """Return the folder that an own drop has left; raise NeedsOperator if it is not known to be an own one's."""
        folder = self._table_folder(name)
        if folder is None or not folder.has_lost_its_metadata():
            return None
        self.owner.require(name, folder.dropped() or {}, source)
        return folder

    def _table_folder(self, name: TableName) -> TableFolder | None:
        warehouse = self._config.properties.get("warehouse")
        if self._config.properties["type"] != "hadoop" or warehouse is None:
            return None
        return TableFolder(self.jvm, warehouse, name)

    @property
    def repeats_versions(self) -> bool:
        """True if another table in this one's place may have metadata files of the same names.

        Refreshing would not notice it: Iceberg compares the names.
        """
        return self._config.properties["type"] == "hadoop"

    def place(self, source: QualifiedTable, settings: TableSettings) -> TableName:
        """Return the place of a source table under these settings."""
        return self._config.table(source, settings)

    def target(self, source: QualifiedTable, settings: TableSettings) -> Target:
        """Return the place as other layers compare it."""
        return self._config.target(source, settings)

    def ours(self, unread: list[LevadaError]) -> Iterator[tuple[TableId, TableName, IcebergTable | None]]:
        """Yield this pipeline's tables, wherever they are in the namespaces that the configuration makes.

        The table itself is None where its newest metadata cannot be read. A table that another tool copied, with its
        properties, to another name is left out. ``unread`` receives the errors of tables whose owner cannot be read.
        """
        for namespace in self._namespaces():
            with java_errors(f"list the tables of {'.'.join(namespace)}"):
                found = list(self.open().listTables(self._namespace(namespace)))
            for identifier in found:
                name, table, metadata = TableName(namespace, identifier.name()), None, None
                try:
                    with java_errors(f"load {name}"):
                        table = IcebergTable(self.jvm, name, self.open().loadTable(identifier))
                        metadata = table.metadata
                except (Missing, NeedsOperator) as error:
                    _log.warning("%s cannot be loaded: %s", name, error.message)
                    if error.code == "table_damaged":
                        metadata = self._last_metadata(name)
                    elif not isinstance(error, Missing):
                        unread.append(error)
                if metadata is None:
                    continue
                kept = metadata.properties
                made_as = folded_name(kept.get(Property.NAME, ""))
                source = table_id_of(kept)
                if source is not None and self.owner.owns(kept) and made_as == folded_name(str(name)):
                    yield source, name, table

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        level: list[tuple[str, ...]] = [()]
        for _ in self._config.namespace:
            level = [tuple(found.levels()) for parent in level for found in self._inside(parent)]
        return (n for n in level if self._config.may_hold(n))

    def _inside(self, parent: tuple[str, ...]) -> list[JavaObject]:
        try:
            with java_errors("list the catalog's namespaces"):
                listed = self.open().listNamespaces
                return list(listed(self._namespace(parent)) if parent else listed())
        except Missing:
            # A warehouse that nobody wrote to yet.
            return []

    def _make_namespace(self, levels: tuple[str, ...]) -> None:
        for depth in range(1, len(levels) + 1):
            namespace = self._namespace(levels[:depth])
            if not self.open().namespaceExists(namespace):
                self._create_namespace(namespace)

    def _create_namespace(self, namespace: JavaObject) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            self.open().createNamespace(namespace, self.jvm.map({}))
        except Py4JJavaError as error:
            # Another process was faster.
            if "AlreadyExists" not in error.java_exception.getClass().getName():
                raise

    def _namespace(self, levels: tuple[str, ...]) -> JavaObject:
        return self.jvm.iceberg.catalog.Namespace.of(self.jvm.strings(levels))

    def _identifier(self, name: TableName) -> JavaObject:
        return self.jvm.iceberg.catalog.TableIdentifier.of(self._namespace(name.namespace), name.name)


def key_property(schema: ReplicatedTableSchema) -> str:
    """Return the key as a table property: which columns, whatever their order."""
    return json.dumps(sorted(schema.key))


def require_not_newer(metadata: TableMetadata, epoch: int | None) -> None:
    """Raise StaleEpoch if a driver newer than ``epoch`` has written the table, or makes a copy of it.

    With None nothing is compared.
    """
    claim = Claim.parse(metadata.properties)
    epochs = [m.epoch for m in (metadata.mark, claim) if m is not None]
    if epoch is not None and epochs and max(epochs) > epoch:
        raise StaleEpoch(epoch, max(epochs))


def is_newer(table: IcebergTable, other: IcebergTable) -> bool:
    """Return True if the table has the later mark: of two places of one table, where a move did not end."""
    ours, theirs = table.metadata.mark, other.metadata.mark
    return ours is not None and (theirs is None or (ours.epoch, ours.lsn) > (theirs.epoch, theirs.lsn))


def check_same_table(table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode) -> None:
    """Raise NeedsOperator if the Iceberg table was made for another mode or key than this."""
    kept = table.metadata.properties
    if kept.get(Property.MODE) != mode.value:
        raise NeedsOperator(
            "mode_changed",
            f"{table.name} was made as {kept.get(Property.MODE)}, and {schema.name} is now written as {mode.value}",
            hint=resync_hint(schema),
        )
    if mode is TableMode.UPSERT and kept.get(Property.KEY) != key_property(schema):
        raise NeedsOperator(
            "key_changed",
            f"the key of {schema.name} is now ({', '.join(c.name for c in schema.key_columns)}), "
            f"and {table.name} was written under another",
            hint=resync_hint(schema),
        )
