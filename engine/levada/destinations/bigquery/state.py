"""The state of a served table: one row in a table of its own, in the metadata dataset.

Each transaction on a served table also updates its state's row, so that BigQuery lets only one of two transactions
commit. ``version`` grows with each update. A transaction that does not find the version that its driver has read
changes nothing. A table for each state keeps the transactions of different served tables apart, because BigQuery
detects conflicts by table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from levada.destinations.bigquery.layout import Layout
from levada.destinations.bigquery.names import TableName, literal
from levada.destinations.interface import TableMode
from levada.values import Lsn, QualifiedTable, TableId, Watermark

DONE: Final = "done"
FENCED: Final = "fenced"


@dataclass(frozen=True, slots=True)
class Description:
    """The owner of a served table, and its columns.

    ``source_id`` identifies the source. ``columns_after`` are the columns after an ALTER TABLE that may have run or
    not. ``filled`` has the attnums of added columns whose constant must be written to existing rows. ``made`` is the
    random mark of the table's creation, which the table has as a label.
    """

    pipeline: str
    source_id: str
    table: TableId
    source: QualifiedTable
    dataset: str
    name: str
    mode: TableMode
    key: tuple[int, ...]
    columns: Layout
    columns_after: Layout | None = None
    filled: tuple[int, ...] = ()
    made: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `to_text`. Raise ValueError for anything else."""
        try:
            data = json.loads(text)
            after = data["columnsAfter"]
            return cls(
                pipeline=data["pipeline"],
                source_id=data["sourceId"],
                table=TableId(data["table"]),
                source=QualifiedTable(*data["source"]),
                dataset=data["dataset"],
                name=data["name"],
                mode=TableMode(data["mode"]),
                key=tuple(data["key"]),
                columns=Layout.from_json(data["columns"]),
                columns_after=None if after is None else Layout.from_json(after),
                filled=tuple(data["filled"]),
                made=data["made"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from error

    def to_text(self) -> str:
        """Return the description as JSON."""
        data: dict[str, Any] = {
            "pipeline": self.pipeline,
            "sourceId": self.source_id,
            "table": int(self.table),
            "source": [self.source.schema, self.source.name],
            "dataset": self.dataset,
            "name": self.name,
            "mode": self.mode.value,
            "key": list(self.key),
            "columns": self.columns.to_json(),
            "columnsAfter": None if self.columns_after is None else self.columns_after.to_json(),
            "filled": list(self.filled),
            "made": self.made,
        }
        return json.dumps(data)


@dataclass(frozen=True, slots=True)
class StoredState:
    """The row of a state. ``lsn`` is None if the served table is not a complete copy."""

    version: int
    epoch: int
    lsn: Lsn | None
    description: Description

    @classmethod
    def parse(cls, row: Sequence[Any]) -> Self:
        """Parse a row of `read_sql`."""
        version, epoch, lsn, document = row
        return cls(int(version), int(epoch), None if lsn is None else Lsn(int(lsn)), Description.parse(document))

    def mark(self, pipeline: str) -> Watermark | None:
        """Return the watermark, or None if there is no complete copy."""
        return None if self.lsn is None else Watermark(pipeline, self.epoch, self.lsn)

    def after(self, epoch: int, lsn: Lsn | None, description: Description) -> StoredState:
        """Return the state that follows this one."""
        return replace(self, version=self.version + 1, epoch=epoch, lsn=lsn, description=description)


def read_sql(table: TableName) -> str:
    """Return the query for the row of a state."""
    return f"SELECT version, epoch, lsn, document FROM {table.sql}"


def create_sql(table: TableName, state: StoredState) -> str:
    """Return the statement that creates a state with its row, unless there is one.

    One statement does both, so that of two processes only one creates the row.
    """
    return (
        f"CREATE TABLE IF NOT EXISTS {table.sql} (version INT64, epoch INT64, lsn INT64, document STRING) AS "
        f"SELECT {state.version} AS version, {state.epoch} AS epoch, {_lsn(state.lsn)} AS lsn, "
        f"{literal(state.description.to_text())} AS document"
    )


def fenced_script(table: TableName, before: StoredState, after: StoredState, parts: Sequence[str]) -> str:
    """Return a script with one transaction, whose last statement returns its outcome.

    The transaction changes the state from ``before`` to ``after``, and runs ``parts``: each is a few statements. The
    outcome is `DONE`, or `FENCED` if the state is no longer ``before``. A part sets the variable ``outcome`` to another
    text to undo the transaction.
    """
    lines = [
        "DECLARE outcome STRING DEFAULT 'done';",
        "BEGIN TRANSACTION;",
        f"IF NOT EXISTS (SELECT 1 FROM {table.sql} WHERE version = {before.version}) THEN",
        f"SET outcome = '{FENCED}';",
        "END IF;",
    ]
    for part in parts:
        lines += [f"IF outcome = '{DONE}' THEN", part, "END IF;"]
    lines += [
        f"IF outcome = '{DONE}' THEN",
        f"UPDATE {table.sql} SET version = {after.version}, epoch = {after.epoch}, lsn = {_lsn(after.lsn)}, "
        f"document = {literal(after.description.to_text())} WHERE version = {before.version};",
        "COMMIT TRANSACTION;",
        "ELSE",
        "ROLLBACK TRANSACTION;",
        "END IF;",
        "SELECT outcome;",
    ]
    return "\n".join(lines)


def guarded_script(table: TableName, state: StoredState, statement: str) -> str:
    """Return a script that runs one DDL statement if the state is still ``state``. It returns the outcome.

    BigQuery allows no such statement in a transaction. So the comparison is made by the same job, just before it.
    """
    lines = [
        f"DECLARE outcome STRING DEFAULT '{DONE}';",
        f"IF EXISTS (SELECT 1 FROM {table.sql} WHERE version = {state.version}) THEN",
        f"{statement};",
        "ELSE",
        f"SET outcome = '{FENCED}';",
        "END IF;",
        "SELECT outcome;",
    ]
    return "\n".join(lines)


def _lsn(lsn: Lsn | None) -> str:
    return "CAST(NULL AS INT64)" if lsn is None else str(int(lsn))
