"""A destination of one's own: every row and every change, posted as JSON to an HTTP service, with retries.

    python examples/custom-destination/custom_destination.py HOST PORT DATABASE http://localhost:8080/changes

Each request is one JSON document: a slice of a table's copy, or a slice of the WAL in commit order. Delivery is at
least once: after a crash the same changes come again, with the same (commit LSN, ordinal), by which a service knows
them. SIGINT and SIGTERM end the program. The slot and the publication stay, and the slot keeps WAL.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import logging
import math
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from levada import (
    Durability,
    Lsn,
    MemoryStore,
    NeedsOperator,
    Pipeline,
    PipelineConfig,
    PostgresConnection,
    PublicationConfig,
    SlotConfig,
    StagingConfig,
    TableId,
    Transient,
    Watermark,
)
from levada.destinations import Capabilities, Destination, EventBatch, Ordering, TableRows, TableTarget
from levada.events import Delete, Event, Insert, Partial, RelationEvent, TruncateEvent, Update
from levada.schema import ReplicatedTableSchema

Message = dict[str, Any]


class HttpDestination(Destination):
    """Posts to one URL. All tables come in one call, so that a transaction stays whole across them."""

    name: ClassVar[str] = "http"
    capabilities: ClassVar[Capabilities] = Capabilities(ordering=Ordering.PIPELINE)

    def __init__(
        self, url: str, *, rows_per_request: int = 1000, attempts: int = 5, first_delay_s: float = 0.2
    ) -> None:
        self._url = url
        self._rows_per_request = rows_per_request
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, Transient)),
            stop=stop_after_attempt(attempts),
            wait=wait_exponential_jitter(multiplier=first_delay_s, max=10),
            before_sleep=_warn,
            reraise=True,
        )
        self._tables: dict[TableId, str] = {}

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        self._post({"type": "drop", "table": str(target.name)})

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        name = self._tables[target.id] = str(target.name)
        self._post({"type": "create", "table": name, "columns": _columns(target.schema)})
        for batch in rows.batches():
            for first in range(0, batch.num_rows, self._rows_per_request):
                values = [_values(row) for row in batch.slice(first, self._rows_per_request).to_pylist()]
                self._post({"type": "rows", "table": name, "as_of": str(mark.lsn), "rows": values})
        return Durability.DURABLE

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            self._tables[table] = str(events.changes(table).target.name)
        changes: list[Message] = []
        for event in events:
            changes += self._changes(event)
            if len(changes) >= self._rows_per_request:
                self._post({"type": "changes", "changes": changes})
                changes = []
        if changes:
            self._post({"type": "changes", "changes": changes})
        return Durability.DURABLE

    def _changes(self, event: Event) -> Iterator[Message]:
        match event:
            case Insert(schema, lsn, ordinal, row):
                yield self._change("insert", schema, lsn, ordinal) | {"row": _values(row.values)}
            case Update(schema, lsn, ordinal, row, old):
                change = self._change("update", schema, lsn, ordinal) | {"row": _values(row.values)}
                if isinstance(row, Partial):
                    change["unchanged"] = row.unchanged
                yield change if old is None else change | {"old": _values(old.values)}
            case Delete(schema, lsn, ordinal, old):
                yield self._change("delete", schema, lsn, ordinal) | {"old": _values(old.values)}
            case RelationEvent(schema, lsn, ordinal):
                yield self._change("columns", schema, lsn, ordinal) | {"columns": _columns(schema)}
            case TruncateEvent(lsn, ordinal, tables):
                for table in tables:
                    if table in self._tables:
                        yield _place(lsn, ordinal) | {"op": "truncate", "table": self._tables[table]}

    def _change(self, op: str, schema: ReplicatedTableSchema, lsn: Lsn, ordinal: int) -> Message:
        return _place(lsn, ordinal) | {"op": op, "table": self._tables[schema.id]}

    def _post(self, message: Message) -> None:
        self._retrying(self._try, json.dumps(message).encode())

    def _try(self, body: bytes) -> None:
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                response.read()
        except urllib.error.HTTPError as error:
            # The type is the retry policy: what the service refuses is for a person, what it cannot do now is not.
            if error.code < 500 and error.code not in (408, 429):
                raise NeedsOperator(
                    "http_refused", f"{self._url} answers {error.code}", hint="see the service's log"
                ) from None
            raise Transient("http_unavailable", f"{self._url} answers {error.code}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise Transient("http_unavailable", f"cannot reach {self._url}: {error}") from None


def _warn(state: RetryCallState) -> None:
    """Log why a request is posted again."""
    if state.outcome is not None:
        logging.getLogger(__name__).warning("posting again: %s", state.outcome.exception())


def _place(lsn: Lsn, ordinal: int) -> Message:
    return {"lsn": str(lsn), "ordinal": ordinal}


def _columns(schema: ReplicatedTableSchema) -> list[Message]:
    # The attnum is the same after a rename. A receiver knows by it which column a name has become.
    return [
        {"id": c.attnum, "name": c.name, "type": c.type_name, "key": c.attnum in schema.key} for c in schema.columns
    ]


def _values(row: Mapping[str, Any]) -> Message:
    return {name: json_value(value) for name, value in row.items()}


def json_value(value: Any) -> Any:
    """Return a value as JSON has it. What JSON has no type for is text, as PostgreSQL writes it where it can be."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case list() | tuple():  # a tuple is an entry of a map
            return [json_value(element) for element in value]
        case dict():  # a range
            return {name: json_value(field) for name, field in value.items()}
    return format(value, "f")  # Decimal


def pipeline(source: PostgresConnection, url: str, work_dir: Path) -> Pipeline:
    """Make a pipeline of every table in schema public. Its state ends with the process."""
    config = PipelineConfig(
        name="http",
        source=source,
        slot=SlotConfig("levada_http"),
        publication=PublicationConfig("levada_http"),
        staging=StagingConfig(str(work_dir / "staging"), durable=False),
        work_dir=work_dir,
        selects=lambda table: table.schema == "public",
        freshness_s=1.0,
    )
    return Pipeline(config, store=MemoryStore("http"), destination=HttpDestination(url))


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    if len(sys.argv) != 5:
        sys.exit(f"usage: python {sys.argv[0]} HOST PORT DATABASE URL")
    host, port, database, url = sys.argv[1:]
    source = PostgresConnection(host, int(port), database, sslmode="prefer")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), pipeline(source, url, Path(".levada/http")) as running:
        running.run_until(running.caught_up())
        print("caught up; Ctrl-C ends it")
        running.wait()


if __name__ == "__main__":
    main()
