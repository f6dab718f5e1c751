"""Names of datasets, tables and columns, and literals in SQL. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from levada.destinations.bigquery.settings import Settings
from levada.destinations.schema_changes import check_letter_case
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.schema.metadata import at_source
from levada.values import QualifiedTable

_SCHEMA: Final = "{schema}"
_DATASET: Final = re.compile(r"[A-Za-z0-9_]{1,1024}")
_MAX_TABLE_BYTES: Final = 1024
_MAX_COLUMN: Final = 300
# "Flexible column names" in BigQuery's reference of schemas lists the characters that are not allowed.
_NOT_IN_COLUMNS: Final = frozenset('!"$()*,./;?@[\\]^`{}~')
_RESERVED_COLUMNS: Final = (
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_SEQUENCE_NUMBER",
    "_CHANGE_TYPE",
    "_CHANGE_TIMESTAMP",
    # Levada's own columns. The engine refuses this prefix in lower case alone.
    "_LEVADA_",
)
_IN_TABLES: Final = ("L", "M", "N", "Pc", "Pd", "Zs")
"""Unicode categories of the characters of a table's name, by BigQuery's reference of tables."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of BigQuery."""

    project: str
    dataset: str
    name: str

    def __str__(self) -> str:
        return f"{self.project}.{self.dataset}.{self.name}"

    @property
    def sql(self) -> str:
        """The name in SQL."""
        return ".".join(map(quoted, (self.project, self.dataset, self.name)))

    @property
    def path(self) -> str:
        """The name as the Storage Write API has it."""
        return f"projects/{self.project}/datasets/{self.dataset}/tables/{self.name}"


def quoted(name: str) -> str:
    """Quote an identifier. Names with a backtick are rejected before."""
    return f"`{name}`"


def literal(text: str) -> str:
    """Return a string literal of GoogleSQL."""
    return "'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def served_name(settings: Settings, source: QualifiedTable, place: QualifiedTable) -> TableName:
    """Return the name of a source table's table, see `levada.schema.TableTarget.name`.

    Raise NeedsOperator ``destination_name_unusable`` for a name that BigQuery does not allow.
    """
    name = TableName(settings.project, settings.dataset.replace(_SCHEMA, place.schema), place.name)
    if _DATASET.fullmatch(name.dataset) is None:
        why = "a dataset's name has only letters a-z, digits and _"
    elif name.dataset == settings.metadata_dataset:
        why = "that is the dataset of spec.destination.bigquery.metadataDataset"
    elif len(name.name.encode()) > _MAX_TABLE_BYTES or not name.name:
        why = f"a table's name has 1 to {_MAX_TABLE_BYTES} bytes"
    elif not all(unicodedata.category(c).startswith(_IN_TABLES) for c in name.name):
        why = "a table's name has only letters, marks, digits, spaces, - and _"
    else:
        return name
    raise NeedsOperator(
        "destination_name_unusable",
        f"table {source} cannot have the name {name} in BigQuery: {why}",
        hint=f"set destinationTable in the TableSync of {source}, or change spec.destination.bigquery.dataset",
    )


def check_columns(schema: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator if BigQuery does not allow the columns' names.

    The code is ``ambiguous_columns`` if two names differ only in case, which BigQuery ignores in columns.
    """
    # Levada's own columns begin with what no column of the source may begin with.
    for column in at_source(schema).columns:
        if not _usable_column(column.name):
            raise NeedsOperator(
                "destination_name_unusable",
                f"{schema.name}: BigQuery does not allow a column with the name {column.name}",
                hint="rename the column, or exclude it with columns.exclude in the table's TableSync",
            )
    check_letter_case(schema, (c.name for c in schema.columns), "BigQuery")


def _usable_column(name: str) -> bool:
    if not 0 < len(name) <= _MAX_COLUMN or name.upper().startswith(_RESERVED_COLUMNS):
        return False
    return name.isprintable() and not _NOT_IN_COLUMNS & set(name)
