"""The configuration of the manifest's catalog: its Spark properties, and the names of tables in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from levada.destinations.collisions import TargetName
from levada.errors import InvalidManifest, LoginFailed, NeedsOperator
from levada.locations import MAX_NAME_BYTES, folded_name, source_name, target_name
from levada.values import QualifiedTable

_FIELD: Final = "spec.destination.iceberg"
_SCHEMA: Final = "{schema}"

_TYPES: Final[Mapping[str, str]] = {"Rest": "rest", "Jdbc": "jdbc", "Hadoop": "hadoop", "Hive": "hive", "Glue": "glue"}
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "Rest": ("uri",),
    "Jdbc": ("uri", "warehouse"),
    "Hadoop": ("warehouse",),
    "Hive": ("uri",),
    "Glue": ("warehouse",),
}
_S3: Final = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
_ON_S3: Final = re.compile("s3[an]?://")
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "Rest": {"rest.client.connection-timeout-ms": "10000", "rest.client.socket-timeout-ms": "60000"},
    "Jdbc": {"jdbc.schema-version": "V1"},
}
_NAMES: Final = {
    "hive": (re.compile(r"[A-Za-z0-9_]{1,128}"), "at most 128 letters a-z, digits and _"),
    "glue": (re.compile(r"[a-z0-9_]{1,252}"), "lower-case letters a-z, digits and _"),
}
"""Name patterns of catalogs that allow fewer names than a file system."""
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
    def from_manifest(cls, config: Mapping[str, Any], pipeline: str, credentials: Path | None = None) -> Self:
        """Read the manifest's section. Each file in ``credentials`` is a catalog property of that name.

        Raise InvalidManifest with the path of the invalid field.
        """
        catalog = config.get("catalog") or {}
        kind = str(catalog.get("type"))
        if kind not in _TYPES:
            raise _invalid("catalog.type", f"is {kind!r}, not one of {', '.join(_TYPES)}")
        for needed in _NEEDED[kind]:
            if not catalog.get(needed):
                raise _invalid(f"catalog.{needed}", f"is needed for a catalog of the type {kind}")
        properties = {"type": _TYPES[kind], **_DEFAULTS.get(kind, {})}
        if kind == "Jdbc" and str(catalog["uri"]).startswith("jdbc:postgresql:"):
            properties |= _POSTGRES
        # A REST catalog configures the file access itself.
        if kind == "Glue" or (kind != "Rest" and _ON_S3.match(str(catalog.get("warehouse")))):
            properties |= _S3
        properties |= {key: str(catalog[key]) for key in ("uri", "warehouse") if catalog.get(key)}
        properties |= {key: str(value) for key, value in (catalog.get("properties") or {}).items()}
        if credentials is not None:
            properties |= read_credentials(credentials)
        name = "levada_" + re.sub(r"[^a-z0-9_]", "_", pipeline.lower())
        return cls(name, properties, _template(str(config.get("namespace") or "{schema}")))

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings that define the catalog."""
        prefix = f"spark.sql.catalog.{self.name}"
        # Spark's cache would hide commits of other writers, and share table objects between threads.
        conf = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
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


def read_credentials(folder: Path) -> dict[str, str]:
    """Return the contents of a mounted Secret's files by name, without the trailing line break.

    Raise LoginFailed ``credentials_unreadable`` for a file that cannot be read, or that is not UTF-8 text.
    """
    files = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name[:2] != ".."]
    return {p.name: _read_key(p) for p in files}


def _read_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LoginFailed(
            "credentials_unreadable",
            f"key {path.name} of Secret {path.parent.name} is not readable text: {type(error).__name__}",
            hint=f"give Secret {path.parent.name} the key {path.name} as UTF-8 text, readable by this process",
        ) from None


def _template(text: str) -> tuple[str, ...]:
    levels = tuple(text.split("."))
    if not all(levels) or set("{}") & set(text.replace(_SCHEMA, "")):
        raise _invalid("namespace", f"is {text!r}, and the only placeholder is {_SCHEMA}")
    return levels


def _source_name(level: str) -> str:
    try:
        return source_name(level)
    except UnicodeDecodeError:
        return level


def _invalid(path: str, what: str) -> InvalidManifest:
    return InvalidManifest("invalid_manifest", f"{_FIELD}.{path} {what}")
