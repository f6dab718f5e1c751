"""What a user asks of one table by changing what the manifest says of it, and what was acted on already. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from levada.destinations.interface import TableSettings
from levada.runtime.config import PipelineConfig, TableConfig
from levada.stores.interface import TableControls
from levada.values import QualifiedTable, TableMode


@dataclass(frozen=True, slots=True)
class CopySettings:
    """What a table's copy depends on: another one makes a new copy.

    ``table`` is the name that the settings were given for: a table that was renamed at the source since keeps them.
    """

    table: QualifiedTable
    mode: TableMode
    destination_table: str
    excluded_columns: frozenset[str]
    depends_on: str
    place: QualifiedTable
    """The schema and name that the table's place at the destination follows. A renamed table keeps its place."""

    @classmethod
    def of(cls, config: PipelineConfig, table: QualifiedTable, before: CopySettings | None = None) -> CopySettings:
        """Return what a copy that begins now depends on; ``before`` is what the newest copy depends on."""
        said = config.table(table)
        if before is not None and said.destination_table == (before.destination_table if before.table == table else ""):
            place = before.place
        else:
            place = QualifiedTable(table.schema, said.destination_table or table.name)
        return cls(table, said.mode, said.destination_table, said.excluded_columns, config.copies_depend_on, place)

    def settings(self, table: QualifiedTable) -> TableSettings:
        """Return the settings for the destination of the table under its present name."""
        usual = TableSettings(self.mode, self.destination_table if self.table == table else "")
        if usual.place_of(table) == self.place:
            return usual
        return TableSettings(self.mode, self.place.name, self.place)

    def to_text(self) -> str:
        """Return it for the store."""
        return json.dumps(
            {
                "table": [self.table.schema, self.table.name],
                "mode": self.mode.value,
                "destinationTable": self.destination_table,
                "excludedColumns": sorted(self.excluded_columns),
                "dependsOn": self.depends_on,
                "place": [self.place.schema, self.place.name],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> CopySettings:
        """Read what `to_text` returned."""
        said = json.loads(text)
        return cls(
            QualifiedTable(*said["table"]),
            TableMode(said["mode"]),
            said["destinationTable"],
            frozenset(said["excludedColumns"]),
            said["dependsOn"],
            QualifiedTable(*said["place"]),
        )


class TableRequest(StrEnum):
    """What is asked of a table and was not acted on yet."""

    NOTHING = "nothing"
    RETRY = "retry"
    RESYNC = "resync"


def pending_request(controls: TableControls, said: TableConfig, wanted: CopySettings) -> TableRequest:
    """Compare what was acted on with what is said now. A nonce of 0 asks for nothing: nobody set it, or unset it."""
    if said.resync_nonce not in (0, controls.resync_nonce) or settings_changed(controls, wanted):
        return TableRequest.RESYNC
    if said.retry_nonce not in (0, controls.retry_nonce):
        return TableRequest.RETRY
    return TableRequest.NOTHING


def settings_changed(controls: TableControls, wanted: CopySettings) -> bool:
    """Tell whether the table's copy was made under other settings than are wanted now."""
    before = last_copy_settings(controls)
    if before is None:
        return False
    return before != wanted if before.table == wanted.table else before.place != wanted.place


def last_copy_settings(controls: TableControls | None) -> CopySettings | None:
    """Return what the table's newest copy was made as; None before the first."""
    return CopySettings.from_text(controls.made_as) if controls is not None and controls.made_as else None
