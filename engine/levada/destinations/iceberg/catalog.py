"""A catalog of Iceberg tables. It finds, creates, loads and drops this pipeline's tables."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.clock import Clock
from levada.destinations.iceberg.copy_lease import CopyLease, require_not_newer
from levada.destinations.iceberg.java import JavaObject, Jvm, Missing, each, java_errors
from levada.destinations.iceberg.jdbc_check import UNCHANGED, has_tables
from levada.destinations.iceberg.metadata import DATA_PATH, Property, TableMetadata
from levada.destinations.iceberg.ownership import RecordedOwner, key_property, owner_of
from levada.destinations.iceberg.schema import IcebergSchema, initial_layout
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.table_folder import LocalFolders, TableFolder, folders_of
from levada.destinations.iceberg.table_properties import DEFAULTS, changes, without_bounds
from levada.destinations.iceberg.warehouse_check import try_warehouse
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.ownership import Owner
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.locations import folded_name
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import QualifiedTable, TableId, Watermark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.destinations.iceberg.fixed_table import IcebergShadow, IcebergSnapshot
    from levada.destinations.iceberg.replacement import Replacement

_log = logging.getLogger(__name__)

_LOADERS: Final = 8
"""The tables that a search loads at the same time."""


class IcebergCatalog:
    """A catalog of Iceberg tables, opened on first use. It has a name in the Spark session."""

    def __init__(
        self,
        config: CatalogConfig,
        context: DestinationContext,
        table_properties: Mapping[str, str] | None = None,
        format_version: int = 2,
    ) -> None:
        self._spark = context.spark
        self._keeps_columns = context.on_schema_change is OnSchemaChange.IGNORE
        self._config = config
        self._table_properties = table_properties or {}
        self._format_version = format_version
        self.owner = RecordedOwner(Owner(context))
        self.clock = Clock(context.source, record=context.work_dir / "clock.json")
        # Several threads create tables. Not every catalog reports a namespace that exists as such.
        self._namespace_lock = threading.Lock()
        self._context = context
        # A check starts the JVM when it needs one.
        self._jvm = None if context.spark is None else Jvm(context.spark, config.spark_conf())
        self._opening = threading.Lock()
        self._opened: JavaObject | None = None
        self._folders: LocalFolders | None = None
        # A JDBC catalog creates its tables when it is opened.
        self._unchanged = context.only_checks and config.properties["type"] == "jdbc"

    @property
    def jvm(self) -> Jvm:
        """The JVM of the session, or that of a check. Raise NeedsOperator ``spark_start_failed``."""
        if self._jvm is None:
            assert self._context.jvm is not None
            self._jvm = Jvm.without_spark(self._context.jvm, self._config.spark_conf())
        return self._jvm

    def open(self) -> JavaObject:
        """Return the catalog. Raise Transient ``destination_unavailable`` while it does not respond."""
        with self._opening:
            if self._opened is None:
                with java_errors("open the catalog"):
                    properties = {**self._config.properties, **(UNCHANGED if self._unchanged else {})}
                    self._opened = self.jvm.open_catalog(self._config.name, properties)
            return self._opened

    def close(self) -> None:
        """Close the catalog and its connections. It is opened again on demand."""
        with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                with java_errors("close the catalog"):
                    self.jvm.close(opened)

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None, "a check compares no table"
        return self._spark

    def fixed(self, table: IcebergTable, lock: AbstractContextManager[object], tags: set[str]) -> IcebergSnapshot:
        """Return the table's current snapshot for a comparison, with a tag until it is closed. ``lock`` is held.

        ``tags`` has the name of the tag meanwhile.
        """
        # It imports pyspark, which a destination does not need before it is opened.
        from levada.destinations.iceberg.fixed_table import IcebergSnapshot
        from levada.destinations.iceberg.spark_checksums import verification_session

        session = verification_session(self._session, self._config.spark_conf())
        made = IcebergSnapshot(session, table, self._config.name, lock, tags, keeps_columns=self._keeps_columns)
        made.tag()
        return made

    def fixed_shadow(
        self, table: IcebergTable, made: Replacement, lock: AbstractContextManager[object]
    ) -> IcebergShadow:
        """Return a shadow copy's rows for a comparison. ``lock`` is held."""
        from levada.destinations.iceberg.fixed_table import IcebergShadow
        from levada.destinations.iceberg.spark_checksums import verification_session

        session = verification_session(self._session, self._config.spark_conf())
        return IcebergShadow(session, table, lock, made.uncommitted(table), made.layout, made.lsn)

    def check(self) -> None:
        """List the catalog's namespaces, and write and remove a file in the warehouse."""
        if not self._unchanged or has_tables(self.jvm, self._config.properties):
            self._inside(())
        try_warehouse(self.jvm, self._config.properties)

    def exists(self, name: TableName) -> bool:
        """Return True if the catalog has a table of this name, of any owner."""
        if self.jvm.names_metadata(name.name):
            return self._is_listed(name)
        with java_errors(f"look for {name}"):
            return bool(self.open().tableExists(self._identifier(name)))

    def _is_listed(self, name: TableName) -> bool:
        try:
            # Some catalogs have all names in lower case.
            return name.name.lower() in (found.name.lower() for found in self._listed(name.namespace))
        except Missing:
            return False

    def load(self, name: TableName, source: TableId) -> IcebergTable | None:
        """Return the Iceberg table of a source table, or None. Raise NeedsOperator if it has another owner."""
        table = self._load_any(name)
        if table is not None:
            self.owner.require(name, table.metadata.properties, source)
        return table

    def _lacks(self, name: TableName) -> bool:
        if self._folders is None:
            self._folders = LocalFolders.of(self.jvm, self._config.properties)
        return self._folders.lack(name)

    def _load_any(self, name: TableName) -> IcebergTable | None:
        if self._lacks(name):
            return None
        if self.jvm.names_metadata(name.name) and not self._is_listed(name):
            return None
        # A call of tableExists first would read the metadata twice.
        try:
            with java_errors(f"load {name}"):
                return self._table(name, self.open().loadTable(self._identifier(name)))
        except Missing:
            if (folder := self._table_folder(name)) is not None:
                folder.require_readable()
            return None

    def _table(self, name: TableName, java: JavaObject) -> IcebergTable:
        return IcebergTable(self.jvm, name, java, self._format_version, self.clock)

    def put_own_name(self, table: IcebergTable) -> None:
        """Write the pipeline's full name to an own table that still has a former owner's name.

        Then a new Pipeline with the former owner's name does not own the table.
        """
        if renamed := self.owner.renamed(table.metadata.properties):
            table.set_properties(renamed)
            _log.info("%s: changed the owner from a former one to this pipeline", table.name)

    def put_table_properties(self, table: IcebergTable) -> None:
        """Set the manifest's table properties, and remove those that it no longer has."""
        if found := changes(self._table_properties, table.metadata.properties):
            table.set_properties(found)
            _log.info("%s: changed the table properties %s", table.name, ", ".join(sorted(found)))

    def create(
        self, name: TableName, schema: ReplicatedTableSchema, mode: TableMode, mark: Watermark
    ) -> tuple[IcebergTable, CopyLease]:
        """Create the table for a copy that ``mark`` will be committed with, and its namespace if it does not exist.

        Return it with the lease of that copy.
        """
        layout = initial_layout(schema, mode)
        properties = {
            "format-version": str(self._format_version),
            **DEFAULTS,
            **self._table_properties,
            **{name: text for name, text in changes(self._table_properties, {}).items() if text is not None},
            **self.owner.properties(name, schema),
            Property.MODE.value: mode.value,
            Property.KEY.value: key_property(schema),
            Property.COLUMNS.value: layout.columns_json(),
            **{name: text for name, text in without_bounds(layout.uuids).items() if text is not None},
        }
        self.clock.check(f"create {name}")
        with java_errors(f"create {name}"):
            with self._namespace_lock:
                self._ensure_namespace(name.namespace)
            java_schema = self.jvm.iceberg.SchemaParser.fromJson(layout.to_json())
            builder = self.open().buildTable(self._identifier(name), java_schema)
            table = self._table(name, builder.withProperties(self.jvm.map(properties)).create())
        actual = table.metadata.layout
        # The location may be that of a table which was renamed in the catalog and still has files there.
        folder = f"{table.java.location().rstrip('/')}/data/{table.metadata.uuid}"
        lease = CopyLease.below(f"{folder}/", mark)
        found = {DATA_PATH: folder, **lease.properties()}
        if actual.fields != layout.fields:
            ids = {c.attnum: f.id for c, f in zip(schema.columns, actual.fields, strict=False)}
            found[Property.COLUMNS.value] = IcebergSchema(actual.fields, ids).columns_json()
        table.set_properties(found)
        _log.info("created %s for %s", name, schema.name)
        return table, lease

    def check_free(self, name: TableName, schema: ReplicatedTableSchema) -> None:
        """Raise NeedsOperator if ``name`` is a table that a copy of ``schema`` must not replace."""
        if self._own_remains(name, schema.id) is not None:
            return
        kept = self._properties(name)
        if kept is None:
            self._check_nesting(name)
        else:
            self.owner.require_replaceable(name, kept, schema)

    def is_free(self, name: TableName) -> bool:
        """Return True if the catalog has no table of this name, and no remains of one. Raise as `check_free` does."""
        folder = None if self._lacks(name) else self._table_folder(name)
        if (folder is not None and folder.has_lost_its_metadata()) or self._load_any(name) is not None:
            return False
        self._check_nesting(name)
        return True

    def _properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the readable properties of the table, or None if there is no table."""
        try:
            table = self._load_any(name)
        except DestinationChanged as error:
            if error.code != codes.TABLE_DAMAGED:
                raise
            return self._own_metadata(name, error).properties
        return None if table is None else table.metadata.properties

    def _check_nesting(self, name: TableName) -> None:
        """Raise NeedsOperator if a folder in a Hadoop catalog is inside another table's folder, or contains one."""
        if self._config.properties["type"] != "hadoop":
            return
        levels = name.namespace
        with java_errors(f"look for {name}"):
            around = [TableName(levels[:i], levels[i]) for i in range(1, len(levels))]
            below = (*levels, name.name)
            within = self.open().listTables(self.jvm.namespace(below)) if self._is_namespace(name) else ()
            clash = next((t for t in around if self.exists(t)), None) or next(
                (TableName(below, t.name()) for t in within), None
            )
        if clash is not None:
            raise NeedsOperator(
                "table_not_ours",
                f"{name} and the table {clash} would share a folder",
                hint="set destinationTable in the table's TableSync, or another spec.destination.iceberg.namespace",
            )

    def _is_namespace(self, name: TableName) -> bool:
        levels = (*name.namespace, name.name)
        return not self._lacks(name) and bool(self.open().namespaceExists(self.jvm.namespace(levels)))

    def drop(self, name: TableName, schema: ReplicatedTableSchema, epoch: int | None = None) -> None:
        """Drop the table with its files. A missing table is no error.

        Raise NeedsOperator if the table has another owner. Raise StaleEpoch if a driver newer than ``epoch`` has
        written or copies it.
        """
        self.check_free(name, schema)
        if (remains := self._own_remains(name, schema.id)) is not None:
            remains.remove()
            _log.warning("removed the files that an interrupted drop of %s left", name)
            return
        try:
            table = self._load_any(name)
        except DestinationChanged as error:
            if error.code != codes.TABLE_DAMAGED:
                raise
            self._drop_damaged(name, schema, error, epoch)
            return
        if table is not None:
            require_not_newer(table.metadata, epoch)
            lease = CopyLease.of(table)
            if lease is not None:
                lease.remove_files(table)
            folder = self._table_folder(name)
            if folder is not None:
                folder.mark_dropped(self.owner.properties(name, schema))
            self._drop_readable(name, table)

    def _drop_readable(self, name: TableName, table: IcebergTable) -> None:
        own = table.own_folder if table.metadata.may_remove_files else None
        try:
            with java_errors(f"drop {name}"):
                self.open().dropTable(self._identifier(name), True)
        except DestinationChanged as error:
            # A purge reads the manifests, and one of them is missing. Some catalogs have already removed the entry by
            # now.
            _log.warning("%s is dropped without reading its files: %s", name, error.message)
            with java_errors(f"drop {name}"):
                self.open().dropTable(self._identifier(name), False)
        if own is not None:
            try:
                with java_errors(f"remove {own}"):
                    table.java.io().deletePrefix(own)
            except LevadaError as error:
                _log.warning("cannot remove the orphan files in %s: %s", own, error.message)

    def _drop_damaged(
        self, name: TableName, schema: ReplicatedTableSchema, error: DestinationChanged, epoch: int | None
    ) -> None:
        """Drop a table that cannot be loaded, if an older version of its metadata shows that it is ours.

        Only in a Hadoop catalog each table has its own folder. In others the data files are left as orphans, because
        the metadata may be that of a table which was renamed.
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
                _log.warning("%s: its files are left as orphans in %s", name, self._folder(name))

    def _own_metadata(self, name: TableName, error: DestinationChanged) -> TableMetadata:
        """Return the newest readable metadata of a damaged table. Raise if it does not show that the table is ours."""
        kept = self._last_metadata(name)
        if kept is None or not self.owner.owner.wrote(owner_of(kept.properties)):
            raise DestinationChanged(
                "table_damaged",
                f"{error.message}. No readable metadata file shows that {name} belongs to this pipeline",
                hint=f"remove {name} from the catalog, then: levada resync MANIFEST TABLE",
            )
        return kept

    def _last_metadata(self, name: TableName) -> TableMetadata | None:
        """Return the newest readable metadata in the table's folder, regardless of the catalog's pointer."""
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
                    return TableMetadata.parse(json.loads(parser.toJson(parser.read(io, location))))
        return None

    def _folder(self, name: TableName) -> str | None:
        """Return the folder of a table of this name, or None if only the catalog's server knows it."""
        warehouse = self._config.properties.get("warehouse")
        if self._config.properties["type"] not in ("hadoop", "jdbc") or warehouse is None:
            return None
        return "/".join((warehouse.rstrip("/"), *name.namespace, name.name))

    def _own_remains(self, name: TableName, source: TableId) -> TableFolder | None:
        """Return the folder that our own interrupted drop left, or None.

        Raise NeedsOperator if it may be another owner's.
        """
        folder = None if self._lacks(name) else self._table_folder(name)
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
        """True if a table that was dropped and created again may have metadata files of the same names.

        A refresh would not detect that, because Iceberg compares the names.
        """
        return self._config.properties["type"] == "hadoop"

    def table_name(self, target: TableTarget) -> TableName:
        """Return the name of a source table's Iceberg table."""
        return self._config.table(target.schema.name, target.name)

    def target_name(self, source: QualifiedTable, place: QualifiedTable) -> TargetName:
        """Return that name in the form that other layers compare, see `CatalogConfig.target_name`."""
        return self._config.target_name(source, place)

    def ours(
        self, unread: dict[TableName, LevadaError], among: Iterable[TableName] | None = None
    ) -> Iterator[tuple[TableId, TableName, IcebergTable | None]]:
        """Yield this pipeline's tables in all namespaces that match the configured template, or those ``among`` names.

        The table itself is None if its newest metadata cannot be read. A table that another tool copied to another
        name, including its properties, is skipped. ``unread`` receives the errors of tables whose owner cannot be read.
        """
        found = (n for s in self._namespaces() for n in (*self._listed(s), *folders_of(self.jvm, self._config, s)))
        names = list(dict.fromkeys(found if among is None else among))
        for name, loaded in zip(names, self._load_each(names), strict=True):
            table = loaded if isinstance(loaded, IcebergTable) else None
            metadata = None if table is None else table.metadata
            if isinstance(loaded, LevadaError):
                _log.warning("%s cannot be loaded: %s", name, loaded.message)
                if loaded.code == codes.TABLE_DAMAGED:
                    metadata = self._last_metadata(name)
                else:
                    unread[name] = loaded
            if metadata is None:
                continue
            kept = metadata.properties
            created_as = folded_name(kept.get(Property.NAME, ""))
            made = owner_of(kept)
            if made.table and self.owner.owner.owns(made, made.table) and created_as == folded_name(str(name)):
                yield made.table, name, table

    def _load_each(self, names: Sequence[TableName]) -> Iterator[IcebergTable | LevadaError | None]:
        """Load tables by several threads, because Iceberg reads metadata for more than a minute before it gives up."""

        def load(name: TableName) -> IcebergTable | LevadaError | None:
            try:
                table = self._load_any(name)
                if table is not None:
                    _ = table.metadata
                return table
            except NeedsOperator as error:
                return error

        pool = ThreadPoolExecutor(_LOADERS, thread_name_prefix="levada-search")
        try:
            yield from pool.map(load, names)
        finally:
            pool.shutdown(cancel_futures=True)

    def _listed(self, namespace: tuple[str, ...]) -> list[TableName]:
        with java_errors(f"list the tables of {'.'.join(namespace)}"):
            found = self.open().listTables(self.jvm.namespace(namespace))
            return [TableName(namespace, table.name()) for table in found]

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        level: list[tuple[str, ...]] = [()]
        for _ in self._config.namespace:
            level = [tuple(found.levels()) for parent in level for found in self._inside(parent)]
        return (n for n in level if self._config.may_hold(n))

    def _inside(self, parent: tuple[str, ...]) -> list[JavaObject]:
        try:
            with java_errors("list the catalog's namespaces"):
                listed = self.open().listNamespaces
                return list(listed(self.jvm.namespace(parent)) if parent else listed())
        except Missing:
            # The warehouse was never written to.
            return []

    def _ensure_namespace(self, levels: tuple[str, ...]) -> None:
        for depth in range(1, len(levels) + 1):
            namespace = self.jvm.namespace(levels[:depth])
            if not self.open().namespaceExists(namespace):
                self._create_namespace(namespace)

    def _create_namespace(self, namespace: JavaObject) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            self.open().createNamespace(namespace, self.jvm.map({}))
        except Py4JJavaError as error:
            # Another process created it first.
            if "AlreadyExists" not in error.java_exception.getClass().getName():
                raise

    def _identifier(self, name: TableName) -> JavaObject:
        return self.jvm.iceberg.catalog.TableIdentifier.of(self.jvm.namespace(name.namespace), name.name)
