"""The manifest's section ``spec.destination.ducklake``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from levada.spec.model import Change, Model, Rule, StrictInt, setting
from levada.spec.names import Host, Identifier
from levada.spec.section import DestinationSettings
from levada.spec.source import SecretRef, TlsMode
from levada.values import TableMode

_SECRETS: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_DATA_PATH: Final = r"^(|/.*|file:///.*|(s3|s3a|gs|abfs|abfss|az)://.+)$"


class Tls(Model):
    """Encryption of the connection to the catalog's server."""

    mode: TlsMode = setting(Change.RESTART, TlsMode.VERIFY_FULL)
    """The check of the server's certificate, as libpq's sslmode. Disable: the connection is not encrypted. A
    certificate authority of its own is the key ca.crt of the destination's Secret, in PEM. A certificate of the client
    is its keys tls.crt and tls.key.
    """


class Catalog(Model):
    """The PostgreSQL database of the catalog."""

    host: Host = setting(Change.RESTART)
    """The server's host name or address."""
    port: StrictInt = setting(Change.RESTART, 5432, ge=1, le=65535)
    """The server's TCP port."""
    database: Identifier = setting(Change.IMMUTABLE)
    """The database's name."""
    schema_name: Identifier = setting(Change.IMMUTABLE, "public", alias="schema")
    """The schema of the catalog's tables: METADATA_SCHEMA in DuckDB. A missing schema or catalog is created."""
    tls: Tls = setting(Change.RESTART, {})
    """Encryption of the connection."""


class Settings(DestinationSettings):
    """DuckLake tables, whose catalog is in PostgreSQL. No DuckDB is needed."""

    keeps_deleted: ClassVar[bool] = True

    rules = (
        Rule(
            "secrets must not be properties: put them into the Secret of credentialsSecretRef, under the same names",
            f"[{', '.join(map(repr, _SECRETS))}].all(k, !(k in self.properties))",
            lambda s: not s.properties.keys() & set(_SECRETS),
            field="properties",
        ),
    )

    catalog: Catalog = setting(Change.RESTART)
    """The catalog that the tables are in."""
    data_path: Annotated[str, Field(pattern=_DATA_PATH, max_length=2048)] = setting(Change.IMMUTABLE, "")
    """The folder of the data files: a full path, or the URI of an object store. It is needed to create a catalog.
    Empty: the data path of the existing catalog.
    """
    properties: dict[str, str] = setting(Change.RESTART, {})
    """Properties of the object store: s3.endpoint and s3.region. Secrets belong into credentialsSecretRef."""
    schema_name: Annotated[str, Field(pattern=r"^([^{}]|\{schema\})+$", max_length=255)] = setting(
        Change.RESYNC, "{schema}", alias="schema"
    )
    """The schema of the tables. {schema} is replaced by the source table's schema. A missing schema is created."""
    mode: TableMode = setting(Change.RESYNC, TableMode.UPSERT)
    """Upsert: the tables hold the last state of each row. Changelog: they hold one row per change."""
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the keys username and password for the catalog, ca.crt for its server, and the secret properties
    of the object store, such as s3.access-key-id. A changed key needs no restart. Unset: libpq's defaults and the pod's
    own identity are used.
    """
