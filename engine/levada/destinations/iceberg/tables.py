"""The tables of the catalog: found, made, dropped, and recognised as this pipeline's own."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from levada.destinations.iceberg.catalog import CatalogConfig, TableName
from levada.destinations.iceberg.claim import Claim
from levada.destinations.iceberg.java import JavaObject, Jvm, Missing, each, java_errors
from levada.destinations.iceberg.layout import Layout, initial_layout, resync_hint
from levada.destinations.iceberg.metadata import DATA_PATH, Property, TableMetadata
from levada.destinations.iceberg.table import DEFAULTS, IcebergTable
from levada.destinations.interface import DestinationContext, TableMode
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Tables:
    """A catalog of Iceberg tables under its name in a Spark session; it is opened when it is first needed."""

    def __init__(self, spark: SparkSession, config: CatalogConfig, context: DestinationContext) -> None:
        self._config = config
        self._context = context
        # Tables are made side by side; not every catalog says of a namespace made twice that it is there.
        self._making_namespace = threading.Lock()
        self.jvm = Jvm(spark)
        for key, value in config.spark_conf().items():
            spark.conf.set(key, value)
        self._opening = threading.Lock()
        self._opened: JavaObject | None = None

    def open(self) -> JavaObject:
        """Return the catalog; raise Transient ``destination_unavailable`` while it does not answer."""
        with self._opening:
            if self._opened is None:
                with java_errors("open the catalog"):
                    self._opened = self.jvm.open_catalog(self._config.name, self._config.properties)
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

    def load(self, name: TableName) -> IcebergTable | None:
        """Return the table, None if there is none; raise NeedsOperator if it is not this pipeline's."""
        with java_errors(f"load {name}"):
            identifier = self._identifier(name)
            if not self.open().tableExists(identifier):
                return None
            table = IcebergTable(self.jvm, name, self.open().loadTable(identifier))
        owner = table.metadata.properties.get(Property.PIPELINE)
        if owner != self._context.pipeline:
            raise DestinationChanged(
                "table_not_ours",
                f"{name} is there already and "
                + (f"belongs to pipeline {owner}" if owner else "was not made by Levada"),
                hint="set destinationTable in the table's TableSync, or move the table that is there away",
            )
        return table

    def create(self, name: TableName, schema: ReplicatedTableSchema, mode: TableMode) -> IcebergTable:
        """Make the table, and its namespace if it is not there."""
        layout = initial_layout(schema, mode)
        properties = {
            **DEFAULTS,
            Property.PIPELINE.value: self._context.pipeline,
            Property.TABLE_ID.value: str(int(schema.id)),
            Property.SOURCE.value: json.dumps([schema.name.schema, schema.name.name]),
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

    def drop(self, name: TableName) -> None:
        """Remove the table with its files; not an error if there is none, NeedsOperator if it is not ours."""
        if self._remove_remains(name):
            _log.warning("removed what was left of %s by a drop that did not end", name)
            return
        try:
            table = self.load(name)
        except DestinationChanged as error:
            if error.code != "table_damaged":
                raise
            self._drop_damaged(name, error)
            return
        if table is not None:
            claim = Claim.of(table)
            if claim is not None:
                claim.remove_files(table)
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

    def _drop_damaged(self, name: TableName, error: DestinationChanged) -> None:
        """Remove a table that cannot be loaded, if an earlier version of its metadata shows that it is ours.

        Only a Hadoop catalog has one folder for each table. Elsewhere the data files stay as garbage: the metadata that
        was found may be that of a table that was renamed.
        """
        kept = self._last_metadata(name)
        if kept is None or kept.properties.get(Property.PIPELINE) != self._context.pipeline:
            raise NeedsOperator(
                "table_damaged",
                f"{error.message}. No metadata file that can be read shows that {name} belongs to this pipeline",
                hint=f"remove {name} from the catalog, then: levada resync MANIFEST TABLE",
            )
        _log.warning("%s is dropped without its newest metadata: %s", name, error.message)
        with java_errors(f"drop {name}"):
            if self._config.properties["type"] == "hadoop":
                path = self.jvm.path(self._folder(name))
                path.getFileSystem(self.jvm.hadoop_conf).delete(path, True)
            else:
                self.open().dropTable(self._identifier(name), False)
                _log.warning("%s: its files stay behind as garbage in %s", name, self._folder(name))

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

    def _remove_remains(self, name: TableName) -> bool:
        """Remove the folder of a Hadoop catalog's table whose metadata files are gone; tell whether there was one.

        A drop removes them before it removes the folder, and from then on the catalog can neither load nor drop it.
        """
        folder = self._folder(name)
        if self._config.properties["type"] != "hadoop" or folder is None:
            return False
        with java_errors(f"look for {name}"):
            path = self.jvm.path(folder)
            files, metadata = path.getFileSystem(self.jvm.hadoop_conf), self.jvm.path(path, "metadata")
            if not files.exists(metadata):
                return False
            left = [entry.getPath().getName() for entry in files.listStatus(metadata)]
            if "version-hint.text" not in left or any(name.endswith(".metadata.json") for name in left):
                return False
            return bool(files.delete(path, True))

    def place(self, source: QualifiedTable) -> TableName:
        """Return where the source's table goes, as configured."""
        return self._config.table(source, self._context.settings(source))

    def ours(self) -> Iterator[tuple[TableId, TableName, IcebergTable | None]]:
        """Yield this pipeline's tables that are where the configuration says; any others are left-overs of another.

        The table itself is None where its newest metadata cannot be read.
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
                if metadata is None or metadata.properties.get(Property.PIPELINE) != self._context.pipeline:
                    continue
                kept = metadata.properties
                if self.place(QualifiedTable(*json.loads(kept[Property.SOURCE]))) == name:
                    yield TableId(int(kept[Property.TABLE_ID])), name, table

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


def check_same_table(table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode) -> None:
    """Raise NeedsOperator if the Iceberg table was made for another table, mode or key than this."""
    kept = table.metadata.properties
    if kept.get(Property.TABLE_ID) != str(int(schema.id)):
        raise NeedsOperator(
            "table_replaced",
            f"{table.name} holds a former table {schema.name}, which was dropped and made again",
            hint=resync_hint(schema),
        )
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
