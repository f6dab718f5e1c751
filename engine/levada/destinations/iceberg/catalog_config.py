"""The configuration of the manifest's catalog: its Spark properties, and the names of tables in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from levada.destinations.collisions import TargetName
from levada.destinations.credentials import read_credentials
from levada.destinations.iceberg.settings import CatalogType, Settings
from levada.errors import NeedsOperator
from levada.locations import MAX_NAME_BYTES, folded_name, source_name, target_name
from levada.values import QualifiedTable

_SCHEMA: Final = "{schema}"

_S3: Final = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
_ON_S3: Final = re.compile("s3[an]?://")
_DEFAULTS: Final[Mapping[CatalogType, Mapping[str, str]]] = {
    CatalogType.REST: {"rest.client.connection-timeout-ms": "10000", "rest.client.socket-timeout-ms": "60000"},
    CatalogType.JDBC: {"jdbc.schema-version": "V1"},
}
_NAMES: Final = {
    "hive": (re.compile(r"[A-Za-z0-9_]{1,128}"), "at most 128 letters a-z, digits and _"),
    "glue": (re.compile(r"[a-z0-9_]{1,252}"), "lower-case letters a-z, digits and _"),
}
"""Name patterns of catalogs that allow fewer names than a file system."""
_CHECKSUMS: Final = "parquet.page.verify-checksum.enabled"
"""Parquet's setting, which is off by default. Without it a compaction would write a value again that has changed."""
_POSTGRES: Final = {"jdbc.connectTimeout": "10", "jdbc.socketTimeout": "60"}
"""Timeouts in seconds, by the names of PostgreSQL's JDBC driver. Without them an unreachable catalog blocks forever."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The levels of a table's namespace, and its name."""

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """The configuration of a catalog. ``properties`` may contain secrets.

    ``name`` is the catalog's name in Spark. ``namespace`` has the template of each level.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    namespace: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings, pipeline: str, credentials: Path | None = None) -> Self:
        """Return the configuration of a pipeline's catalog. Each file in ``credentials`` is a property of that name."""
        catalog = settings.catalog
        properties = {"type": catalog.type.lower(), **_DEFAULTS.get(catalog.type, {})}
        if catalog.type is CatalogType.JDBC and catalog.uri.startswith("jdbc:postgresql:"):
            properties |= _POSTGRES
        # A REST catalog configures the file access itself.
        if catalog.type is CatalogType.GLUE or (
            catalog.type is not CatalogType.REST and _ON_S3.match(catalog.warehouse)
        ):
            properties |= _S3
        given = {"uri": catalog.uri, "warehouse": catalog.warehouse}
        properties |= {key: value for key, value in given.items() if value}
        properties |= all_properties(settings, credentials)
        name = "levada_" + re.sub(r"[^a-z0-9_]", "_", pipeline.lower())
        return cls(name, properties, tuple(settings.namespace.split(".")))

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings that define the catalog."""
        prefix = f"spark.sql.catalog.{self.name}"
        # Spark's cache would hide commits of other writers, and share table objects between threads.
        conf = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
        conf[f"{prefix}.hadoop.{_CHECKSUMS}"] = "true"
        return conf | {f"{prefix}.{key}": value for key, value in self.properties.items()}

    def table(self, source: QualifiedTable, place: QualifiedTable) -> TableName:
        """Return the name of a source table's Iceberg table, which is derived from ``place``, see `TableTarget.name`.

        `target_name` encodes each of its parts.

        Raise NeedsOperator ``destination_name_unusable`` for a name that this type of catalog does not allow.
        """
        levels = tuple(target_name(level.replace(_SCHEMA, place.schema)) for level in self.namespace)
        found = TableName(levels, target_name(place.name))
        self._check_name(source, found)
        return found

    def target_name(self, source: QualifiedTable, place: QualifiedTable) -> TargetName:
        """Return that name in the form that other layers compare.

        Identities are equal if the catalog or its file system treats the names as equal.
        """
        name = str(self.table(source, place))
        return TargetName(name, folded_name(name) if self._folds_case else name)

    def may_hold(self, namespace: tuple[str, ...]) -> bool:
        """Return True if the template produces this namespace for some schema."""
        if len(namespace) != len(self.namespace):
            return False
        return all(
            re.fullmatch(re.escape(template).replace(re.escape(_SCHEMA), ".+"), _source_name(level), re.DOTALL)
            for template, level in zip(self.namespace, namespace, strict=True)
        )

    def _check_name(self, source: QualifiedTable, table: TableName) -> None:
        kind = self.properties["type"]
        form, words = _NAMES.get(kind, (None, ""))
        parts = (*table.namespace, table.name)
        if form is not None and not all(map(form.fullmatch, parts)):
            why = f"a catalog of type {kind} allows only names of {words}"
        elif any(len(part.encode()) > MAX_NAME_BYTES for part in (".".join(table.namespace), table.name)):
            why = f"a name in the lake has at most {MAX_NAME_BYTES} bytes"
        else:
            return
        raise NeedsOperator(
            "destination_name_unusable",
            f"table {source} cannot have the name {table} in the lake: {why}",
            hint=f"set destinationTable in the TableSync of {source}, or change spec.destination.iceberg.namespace",
        )

    @property
    def _folds_case(self) -> bool:
        """False if the catalog is known to be case-sensitive: on PostgreSQL, and in folders on Linux."""
        if self.properties["type"] == "jdbc":
            return not self.properties["uri"].startswith("jdbc:postgresql:")
        return self.properties["type"] != "hadoop" or sys.platform in ("darwin", "win32")


def _source_name(level: str) -> str:
    try:
        return source_name(level)
    except UnicodeDecodeError:
        return level


def all_properties(settings: Settings, credentials: Path | None) -> dict[str, str]:
    """Return the further properties of the catalog and its file system, with those in the Secret. They are secret."""
    secret = {} if credentials is None else read_credentials(credentials)
    return {**settings.catalog.properties, **secret}
