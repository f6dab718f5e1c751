"""The manifest's section ``spec.destination.iceberg``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field

from levada.destinations.iceberg.table_properties import check_properties
from levada.destinations.iceberg.terms import PARTITION_TERM, SORT_TERM, parse_partition, parse_sort, problem_of
from levada.spec.model import Change, Model, Rule, StrictInt, setting
from levada.spec.names import CatalogNamespace
from levada.spec.section import DestinationSettings, DestinationTableSettings
from levada.spec.source import SecretRef
from levada.values import TableMode

TableProperties = Annotated[dict[str, str], AfterValidator(check_properties)]


class CatalogType(StrEnum):
    """The service that keeps the tables' current metadata."""

    REST = "Rest"
    JDBC = "Jdbc"
    HADOOP = "Hadoop"
    HIVE = "Hive"
    GLUE = "Glue"


_NEED_URI = (CatalogType.REST, CatalogType.JDBC, CatalogType.HIVE)
_NEED_WAREHOUSE = (CatalogType.JDBC, CatalogType.HADOOP, CatalogType.GLUE)
# A Hadoop catalog commits by a rename that fails if the name is taken: https://iceberg.apache.org/spec/#file-system-tables
_OBJECT_STORES = "^(s3|s3a|s3n|gs|abfs|abfss|wasb|wasbs|oss)://"
# Hadoop resolves a relative path against the current folder, and takes the word after file:// as a host. RE2, which the
# CRD's rules use, has no negative lookahead: no other scheme begins with an f.
_FULL_PATH = "^(/|file:/[^/]|file:///|[A-Ea-eG-Zg-z][A-Za-z0-9+.-]*://)"

_SECRET_PROPERTIES = (
    "credential",
    "token",
    "password",
    "jdbc.password",
    "rest.auth.basic.password",
    "s3.secret-access-key",
    "s3.session-token",
    "client.secret-access-key",
    "client.session-token",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
    "gcs.oauth2.token",
    "adls.auth.shared-key.account.key",
    "adls.account-key",
    "adls.sas-token",
    "oss.access-key-secret",
)
"""Properties of Iceberg and its file systems whose values are secrets."""
_PASSWORD_IN_URI = "://[^/?#]*:[^/?#]*@|[?&;]password="


_SCHEMES: Final = {
    CatalogType.REST: ("http://", "https://"),
    CatalogType.JDBC: ("jdbc:",),
    CatalogType.HIVE: ("thrift://",),
}


def _beginning(schemes: Iterable[str]) -> str:
    """Return the regular expression, of Python and of CEL, for a URI with one of the schemes."""
    return f"^(?i:{'|'.join(schemes)})"


def _begins(type_: CatalogType, beginning: str, catalog: Any) -> bool:
    return catalog.type is not type_ or not catalog.uri or re.match(beginning, catalog.uri) is not None


class Catalog(Model):
    """An Iceberg catalog."""

    rules = (
        Rule(
            "a catalog of type Rest, Jdbc or Hive needs a uri",
            "!(self.type in ['Rest', 'Jdbc', 'Hive']) || self.uri != ''",
            lambda c: c.type not in _NEED_URI or bool(c.uri),
            field="uri",
        ),
        *(
            Rule(
                f"the uri of a catalog of type {type_} begins with {' or '.join(schemes)}",
                f"self.type != '{type_}' || self.uri == '' || self.uri.matches('{_beginning(schemes)}')",
                partial(_begins, type_, _beginning(schemes)),
                field="uri",
            )
            for type_, schemes in _SCHEMES.items()
        ),
        Rule(
            "a catalog of type Jdbc, Hadoop or Glue needs a warehouse",
            "!(self.type in ['Jdbc', 'Hadoop', 'Glue']) || self.warehouse != ''",
            lambda c: c.type not in _NEED_WAREHOUSE or bool(c.warehouse),
            field="warehouse",
        ),
        Rule(
            "a catalog of type Hadoop cannot be on an object store, which has no atomic rename: use Rest, Jdbc or Glue",
            f"self.type != 'Hadoop' || !self.warehouse.matches('{_OBJECT_STORES}')",
            lambda c: c.type is not CatalogType.HADOOP or not re.match(_OBJECT_STORES, c.warehouse),
            field="warehouse",
        ),
        Rule(
            "must be a full path or a URI, such as /var/lake, file:///var/lake or s3://bucket/lake",
            f"self.type == 'Rest' || self.warehouse == '' || self.warehouse.matches('{_FULL_PATH}')",
            lambda c: c.type is CatalogType.REST or not c.warehouse or re.match(_FULL_PATH, c.warehouse) is not None,
            field="warehouse",
        ),
        # PyIceberg's PyArrowFileIO.parse_location ignores what follows them, and Hadoop does not.
        Rule(
            "a folder with # or ? in its name cannot be a warehouse: Iceberg's libraries disagree on what these mean",
            "self.type == 'Rest' || !self.warehouse.matches('[#?]')",
            lambda c: c.type is CatalogType.REST or re.search("[#?]", c.warehouse) is None,
            field="warehouse",
        ),
        # Iceberg's GlueTableOperations.persistGlueTable.
        Rule(
            "a catalog of type Glue must not have lock-impl: a commit would no longer compare the version in Glue",
            "self.type != 'Glue' || !('lock-impl' in self.properties)",
            lambda c: c.type is not CatalogType.GLUE or "lock-impl" not in c.properties,
            field="properties",
        ),
        Rule(
            "secrets must not be properties: put them into the Secret of credentialsSecretRef, under the same names",
            f"[{', '.join(map(repr, _SECRET_PROPERTIES))}].all(k, !(k in self.properties))",
            lambda c: not c.properties.keys() & set(_SECRET_PROPERTIES),
            field="properties",
        ),
        Rule(
            "must not contain a password: put it into the Secret of credentialsSecretRef",
            f"!self.uri.matches('{_PASSWORD_IN_URI}')",
            lambda c: re.search(_PASSWORD_IN_URI, c.uri) is None,
            field="uri",
        ),
    )

    type: CatalogType = setting(Change.IMMUTABLE)
    """The kind of catalog."""
    uri: Annotated[str, Field(max_length=2048)] = setting(Change.RESTART, "")
    """The catalog's address: an http, https, jdbc or thrift URI. Empty for Hadoop and Glue."""
    warehouse: Annotated[str, Field(max_length=2048)] = setting(Change.IMMUTABLE, "")
    """The folder of the tables as a URI, or for Rest the warehouse's name. Empty: the catalog's default."""
    properties: dict[str, str] = setting(Change.RESTART, {})
    """Further properties of the catalog and its file system, by Iceberg's names. Secrets belong into
    credentialsSecretRef.
    """


class Maintenance(Model):
    """Maintenance of the tables, which runs between batches."""

    compact_every_seconds: StrictInt = setting(Change.RESTART, 600, ge=0, le=604800)
    """Seconds between two searches of a table for small files and deletes to compact. 0: no maintenance at all."""
    expire_snapshots_after_hours: StrictInt = setting(Change.RESTART, 120, ge=0, le=87600)
    """Hours for which a state of a table can be read after it was replaced. The newest 240 snapshots are all kept.
    Of older ones, the first of every 10 minutes is kept up to an age of 12 hours, then the first of every hour up to 7
    days, of every day up to 90 days, and of every 30 days. Each of them has a tag levada-<time>. All others are removed
    with the files that only they need. 0: older snapshots are thinned out like this, without a limit.
    """


class Settings(DestinationSettings):
    """Iceberg tables, written by Spark."""

    spark: ClassVar[bool] = True
    keeps_deleted: ClassVar[bool] = True
    rules = (
        Rule(
            "cannot become lower: Iceberg tables cannot go back to an older format version",
            "self.formatVersion >= oldSelf.formatVersion",
            # The Python model has no former manifest. The engine parks tables of a higher version.
            lambda _: True,
            field="formatVersion",
        ),
    )

    catalog: Catalog = setting(Change.RESTART)
    """The catalog that the tables are in."""
    namespace: CatalogNamespace = setting(Change.RESYNC, "{schema}", min_length=1)
    """The namespace of the tables. {schema} is replaced by the source table's schema."""
    mode: TableMode = setting(Change.RESYNC, TableMode.UPSERT)
    """Upsert: the tables hold the last state of each row. Changelog: they hold one row per change."""
    format_version: StrictInt = setting(Change.RESTART, 2, ge=2, le=3)
    """The format version of the tables. With 3, rows are deleted by deletion vectors, and readers must support format
    version 3. Existing tables are upgraded in place when they are written next. A table cannot go back from 3 to 2.
    """
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret whose keys are added to the properties of the catalog and its file system. A changed key needs no
    restart. Unset: the pod's own identity is used.
    """
    table_properties: TableProperties = setting(Change.RESTART, {}, max_length=64)
    """Properties of all tables: those of Iceberg that the documentation lists, those that begin with read., and names
    of your own. A property that is removed here is removed from the tables. Others are left alone.
    """
    maintenance: Maintenance = setting(Change.RESTART, {})
    """Maintenance of the tables. Once a day it also removes data files older than three days that no commit refers
    to.
    """


def _partition_term(text: str) -> str:
    parse_partition(text)
    return text


def _sort_term(text: str) -> str:
    parse_sort(text)
    return text


PartitionTerm = Annotated[
    str, AfterValidator(_partition_term), Field(max_length=200, json_schema_extra={"pattern": PARTITION_TERM})
]
SortTermText = Annotated[
    str, AfterValidator(_sort_term), Field(max_length=200, json_schema_extra={"pattern": SORT_TERM})
]


class TableSettings(DestinationTableSettings):
    """Partitions and order of the table's files. A change applies to files that are written from then on. Older files
    stay as they are until maintenance merges them, and queries of the table are the same.
    """

    rules = (
        Rule(
            "must not have an entry twice, and only one of year, month, day and hour of a column",
            "self.partitionBy.all(x, self.partitionBy.exists_one(y, y == x))",
            lambda s: problem_of([parse_partition(text) for text in s.partition_by]) is None,
            field="partitionBy",
        ),
    )

    partition_by: Annotated[tuple[PartitionTerm, ...], Field(max_length=16)] = setting(Change.HOT, ())
    """The partitions, as transforms of columns: country, year(at), month(at), day(at), hour(at), bucket(16, id),
    truncate(10, name). A name with other characters than letters and digits is in backquotes. A column that is renamed
    at the source keeps its partitions. A column that is missing parks the table. Changelogs can be partitioned by
    day(_levada_commit_ts). Empty: no partitions.
    """
    sort_by: Annotated[tuple[SortTermText, ...], Field(max_length=16)] = setting(Change.HOT, ())
    """The order of rows within each file, as columns or transforms: at desc, bucket(16, id), name asc nulls last. NULL
    is first by default, and last with desc. Empty: the order of writing.
    """
