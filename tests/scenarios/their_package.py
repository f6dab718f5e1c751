"""Another author's package with a destination and a store, installed by pip into a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_PYPROJECT: Final = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "their-lake"
version = "1.0"

[project.entry-points."levada.destinations"]
lines = "their_lake:LinesDestination"

[project.entry-points."levada.stores"]
file = "their_lake.store:FileStore"
"""

_DESTINATION: Final = '''
"""Rows and changes as lines of JSON in one file for each table."""

import json
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from levada.destinations import Capabilities, Destination
from levada.pgoutput.events import Delete, Insert, Update
from levada.values import Durability


class Format(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    sort_keys: bool = False


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    folder: Path
    indent_by: int = Field(0, ge=0, le=8)
    format: Format = Format()


class LinesDestination(Destination):
    name: ClassVar[str] = "lines"
    capabilities: ClassVar[Capabilities] = Capabilities()
    settings_model = Settings

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @classmethod
    def from_settings(cls, settings: Settings, context: Any) -> Self:
        return cls(settings)

    def _path(self, target: Any) -> Path:
        return self._settings.folder / f"{target.name}.jsonl"

    def _write(self, target: Any, values: list[dict[str, Any]]) -> None:
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        with open(self._path(target), "a") as file:
            for value in values:
                file.write(json.dumps(value, sort_keys=self._settings.format.sort_keys) + "\\n")

    def drop_table_for_copy(self, target: Any, epoch: int | None = None) -> None:
        self._path(target).unlink(missing_ok=True)

    def write_table_rows(self, target: Any, rows: Any, mark: Any) -> Durability:
        self._write(target, [row for batch in rows.batches() for row in batch.to_pylist()])
        return Durability.DURABLE

    def write_events(self, events: Any, mark: Any) -> Durability:
        targets = {table: events.changes(table).target for table in events.tables}
        for event in events:
            match event:
                case Insert(schema, _, _, row) | Update(schema, _, _, row, _):
                    self._write(targets[schema.id], [dict(row.values)])
                case Delete(schema, _, _, old):
                    self._write(targets[schema.id], [{"deleted": dict(old.values)}])
        return Durability.DURABLE
'''

_STORE: Final = '''
"""A store in a file, named in a manifest."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from levada.stores import CachedStore, StoreContext
from their_lake.storage import FileStorage


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    folder: Path


class FileStore(CachedStore):
    settings_model = Settings

    @classmethod
    def from_settings(cls, settings: Settings, context: StoreContext) -> Self:
        return cls(context.pipeline, FileStorage(settings.folder / f"{context.pipeline}.json"))
'''

_STORAGE: Final = Path(__file__).with_name("file_storage.py")


def install_their_package(folder: Path) -> Path:
    """Build and install the package ``their-lake`` with pip, without a network. Return the folder for PYTHONPATH."""
    source, target = folder / "their-lake", folder / "site"
    (source / "their_lake").mkdir(parents=True)
    (source / "pyproject.toml").write_text(_PYPROJECT)
    for name, text in (("__init__", _DESTINATION), ("store", _STORE), ("storage", _STORAGE.read_text())):
        (source / "their_lake" / f"{name}.py").write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", target, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target
