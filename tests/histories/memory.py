"""The memory destination for an engine that may be killed: it keeps its tables in a file after each call."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import psycopg
import pyarrow as pa
from pydantic import BaseModel
from tests.histories.expected import Watched
from tests.histories.readers import compare

from levada.destinations import DestinationContext
from levada.testing.memory import MemoryDestination, MemoryTable, MemoryTables
from levada.values import TableId

_FILE: Final = "tables.pickle"
_WRITES: Final = (
    "drop_table_for_copy", "write_table_rows", "write_events", "copy_replacement", "write_replacement_events",
    "swap_replacement", "drop_replacement",
)  # fmt: skip
_PACKAGE: Final = "levada_histories"


class Settings(BaseModel):
    """The folder of the file."""

    folder: Path


class KeptDestination(MemoryDestination):
    """The memory destination, whose tables are in a file once a call returns."""

    name: ClassVar[str] = "kept"
    settings_model: ClassVar[type[BaseModel] | None] = Settings

    def __init__(self, folder: Path) -> None:
        tables, shadows = _read(folder)
        super().__init__(MemoryTables(tables, shadows))
        self.folder = folder
        for name in _WRITES:
            setattr(self, name, self._kept(getattr(self, name)))

    @classmethod
    def from_settings(cls, settings: Any, context: DestinationContext) -> Self:
        return cls(settings.folder)

    def _kept(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*args: Any, **kwargs: Any) -> Any:
            result = write(*args, **kwargs)
            with self.place.lock:
                part = self.folder / "part"
                part.write_bytes(pickle.dumps((self.place.tables, self.place.shadows)))
                os.replace(part, self.folder / _FILE)
            return result

        return written


@dataclass
class MemoryReader:
    """The file of a `KeptDestination`."""

    folder: Path

    def __post_init__(self) -> None:
        """Write the package that names the destination, as pip would install it."""
        info = self.folder / f"{_PACKAGE}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1.0\n")
        points = f"[levada.destinations]\nkept = {__name__}:{KeptDestination.__name__}\n"
        (info / "entry_points.txt").write_text(points)

    @property
    def section(self) -> dict[str, Any]:
        return {"custom": {"type": "kept", "options": {"folder": str(self.folder)}}}

    def differences(self, source: psycopg.Connection[Any], table: Watched) -> str:
        held = _read(self.folder)[0][TableId(table.oid)]
        if not held.schema.key:
            return ""  # Its rows are only added.
        return compare(source, pa.Table.from_pylist(held.named(), held.schema.arrow), table)

    def close(self) -> None:
        """There is nothing to end."""


def _read(folder: Path) -> tuple[dict[TableId, MemoryTable], dict[TableId, MemoryTable]]:
    path = folder / _FILE
    return pickle.loads(path.read_bytes()) if path.exists() else ({}, {})
