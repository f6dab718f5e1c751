"""An OpenSearch cluster as the place of a test, read by OpenSearch's own client."""

from __future__ import annotations

import base64
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.helpers import scan
from tests.rigs.waiting import LIMIT_S

from levada.destinations import Destination, DestinationContext
from levada.destinations.opensearch import OpenSearchDestination
from levada.destinations.opensearch.naming import Naming, field_name
from levada.destinations.opensearch.settings import Settings
from levada.schema import Column, ColumnType, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import OP
from levada.testing import DestinationPlace, fold_changelog

_prefixes = itertools.count(1)
_run = secrets.token_hex(3)


@dataclass(frozen=True)
class Cluster:
    """The indices below one prefix."""

    url: str
    prefix: str
    context: DestinationContext

    @classmethod
    def new(cls, url: str, work: Path) -> Cluster:
        """Return an empty place in the cluster."""
        return cls(url, f"p{_run}-{next(_prefixes)}-", DestinationContext(pipeline="shop", work_dir=work))

    @property
    def settings(self) -> Settings:
        return Settings.model_validate({"urls": [self.url], "prefix": self.prefix, "replicas": 0})

    def client(self) -> OpenSearch:
        return OpenSearch([self.url], timeout=LIMIT_S)

    def open(self) -> OpenSearchDestination:
        return OpenSearchDestination.from_settings(self.settings, self.context)

    def started(self) -> OpenSearchDestination:
        """Return a destination as a process opens it at its start."""
        destination = self.open()
        destination.startup()
        return destination

    def alias(self, target: TableTarget) -> str:
        return Naming(self.prefix).target_name(target.schema.name, target.name).name

    def documents(self, alias: str) -> dict[str, dict[str, Any]]:
        """Return all documents behind an alias, by id."""
        client = self.client()
        client.indices.refresh(index=alias)
        found = {d["_id"]: d["_source"] for d in scan(client, index=alias, size=1000)}
        client.close()
        return found

    def rows(self, target: TableTarget) -> list[dict[str, Any]]:
        """Return the rows of a table, with the column's values that the documents have."""
        documents = self.documents(self.alias(target)).values()
        rows = [_row(target.schema, d) for d in documents]
        return fold_changelog(target.schema, rows) if rows and OP in rows[0] else rows

    def place(self) -> DestinationPlace:
        """Return the place for the conformance suite."""
        return DestinationPlace(self.open, self.rows, shown, partial(_open_in_child, self.settings, self.context))


def _open_in_child(settings: Settings, context: DestinationContext) -> Destination:
    return OpenSearchDestination.from_settings(settings, context)


def _row(schema: ReplicatedTableSchema, document: dict[str, Any]) -> dict[str, Any]:
    row = {c.name: document.get(field_name(c.name)) for c in schema.columns}
    return row | {name: value for name, value in document.items() if name.startswith("_levada_")}


def shown(column: Column, value: Any) -> Any:
    """Return the JSON value of a value of the source."""
    return _json(column.type, value)


def _json(kind: ColumnType, value: Any) -> Any:
    if value is None:
        return None
    if kind.kind is Kind.MAP:
        return [{"key": key, "value": text} for key, text in value]
    if kind.parts:
        return {name: _json(part, value[name]) for name, part in kind.parts}
    if kind.element is not None:
        return [_json(kind.element, v) for v in value]
    texts: dict[Kind, Callable[[Any], Any]] = {
        Kind.DECIMAL: lambda v: f"{Decimal(v):.{kind.scale}f}",
        Kind.DATE: lambda v: v.isoformat() if isinstance(v, date) else v,
        Kind.TIME: lambda v: v.isoformat(timespec="microseconds"),
        Kind.TIMESTAMP: lambda v: v.isoformat(timespec="microseconds"),
        Kind.TIMESTAMPTZ: _zoned,
        Kind.BYTEA: lambda v: base64.b64encode(v).decode(),
        Kind.FLOAT4: _float,
        Kind.FLOAT8: _float,
    }
    return texts[kind.kind](value) if kind.kind in texts else value


def _zoned(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _float(value: float) -> Any:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), value)
