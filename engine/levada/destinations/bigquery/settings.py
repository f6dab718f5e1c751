"""The manifest's section ``spec.destination.bigquery``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from levada.spec.model import Change, Model, Rule, setting
from levada.spec.section import DestinationSettings
from levada.spec.source import SecretRef
from levada.values import TableMode

_PROJECT: Final = r"^([a-z0-9.-]+:)?[a-z][-a-z0-9]*$"
_DATASET: Final = r"^[A-Za-z0-9_]+$"
_DATASET_TEMPLATE: Final = r"^([A-Za-z0-9_]|\{schema\})+$"
_LOCATION: Final = r"^[A-Za-z0-9-]+$"
_REST: Final = r"^https?://[^/?#@\s]+$"
_HOST_PORT: Final = r"^[^/?#@\s]+:[0-9]+$"


class PartitionUnit(StrEnum):
    """The range of values in one partition."""

    HOUR = "Hour"
    DAY = "Day"
    MONTH = "Month"
    YEAR = "Year"


class JsonbType(StrEnum):
    """The type of jsonb columns in BigQuery."""

    JSON = "Json"
    STRING = "String"


class Endpoint(Model):
    """Addresses of BigQuery's APIs."""

    rules = (
        Rule(
            "a rest address with http has no login, so it is only for an emulator on this machine or in this cluster",
            "!self.rest.startsWith('http://') || self.storage != ''",
            lambda e: not e.rest.startswith("http://") or bool(e.storage),
            field="storage",
        ),
    )

    rest: Annotated[str, Field(pattern=_REST, max_length=2048)] = setting(Change.RESTART)
    """The URL of the REST API, without a path. With http, no credentials are read or sent."""
    storage: Annotated[str, Field(pattern=_HOST_PORT, max_length=2048)] = setting(Change.RESTART)
    """The host and port of the Storage Write API. The connection has TLS, unless rest has http."""


class Layout(Model):
    """The partitions and clusters of one table."""

    table: str = setting(Change.RESYNC, min_length=1, max_length=255)
    """The source table, as schema.name."""
    partition_by: str = setting(Change.RESYNC, "", max_length=300)
    """A column of type date, timestamp or timestamptz. Empty: no partitions."""
    partition_unit: PartitionUnit = setting(Change.RESYNC, PartitionUnit.DAY)
    """The range of values in one partition. A date column has no hours."""
    cluster_by: list[str] = setting(Change.RESYNC, [], max_length=4)
    """Up to four columns. Empty: the key's columns."""


class Settings(DestinationSettings):
    """BigQuery tables."""

    project: Annotated[str, Field(pattern=_PROJECT, max_length=128)] = setting(Change.IMMUTABLE)
    """The project of the datasets. Its jobs run there too."""
    location: Annotated[str, Field(pattern=_LOCATION, max_length=64)] = setting(Change.IMMUTABLE, "US")
    """The location of all datasets."""
    dataset: Annotated[str, Field(pattern=_DATASET_TEMPLATE, max_length=255)] = setting(Change.RESYNC, "{schema}")
    """The dataset of the tables. {schema} is replaced by the source table's schema."""
    metadata_dataset: Annotated[str, Field(pattern=_DATASET, max_length=255)] = setting(Change.IMMUTABLE, "levada")
    """The dataset of staging tables and of the tables with watermarks. Several pipelines may share it."""
    mode: TableMode = setting(Change.RESYNC, TableMode.UPSERT)
    """Upsert: the tables hold the last state of each row. Changelog: they hold one row per change."""
    jsonb: JsonbType = setting(Change.RESYNC, JsonbType.JSON)
    """The type of jsonb columns. Json parks a table with a number that BigQuery's JSON cannot hold exactly."""
    layouts: list[Layout] = setting(Change.RESYNC, [], max_length=1000)
    """Partitions and clusters of tables. A table that is not listed is clustered by its key."""
    endpoint: Endpoint | None = setting(Change.RESTART, None)
    """Addresses of the APIs, for private endpoints or an emulator. Unset: Google's public endpoints."""
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the key credentials.json: the key of a service account, or a configuration of workload identity
    federation. Unset: the pod's own identity (application default credentials).
    """
