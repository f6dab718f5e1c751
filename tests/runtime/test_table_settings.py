"""The settings of single tables for their destination: from a TableSync or from Python to each call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict
from tests.runtime.foreign_package import install_package
from tests.runtime.manifest_text import manifests

from levada.errors import InvalidManifest, NeedsOperator
from levada.runtime.config import PipelineConfig, TableConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.tables.requests import CopySettings, check_table_settings, table_target
from levada.schema import Kind
from levada.stores import MemoryStore
from levada.testing import MemoryDestination, column, table
from levada.values import QualifiedTable

CODE = """
from pydantic import BaseModel, ConfigDict
from levada.testing import MemoryDestination

class TableSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    rank: int = 0

class Offering(MemoryDestination):
    table_settings_model = TableSettings

class Plain(MemoryDestination):
    pass
"""
ORDERS, BILLS = QualifiedTable("public", "orders"), QualifiedTable("public", "bills")
CUSTOM = {"destination": {"custom": {"type": "theirs"}}}


class Ranked(BaseModel):
    """Settings of a table."""

    model_config = ConfigDict(frozen=True)
    rank: int = 0


class Offering(MemoryDestination):
    """A destination with settings of tables."""

    table_settings_model: ClassVar[type[BaseModel] | None] = Ranked


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Install a package with a destination."""
    install_package(monkeypatch, folder, f"their_{kind.lower()}_module", kind, CODE)


def test_a_package_gets_its_own_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The options of a TableSync are an instance of the destination's model. A table without them has None."""
    install(monkeypatch, tmp_path, "Offering")
    said = {"table": {"name": "orders"}, "custom": {"options": {"rank": 7}}}
    config = pipeline_config(manifests(said, **CUSTOM), work_dir=tmp_path)
    settings: Any = config.table(ORDERS).settings
    assert (type(settings).__name__, settings.rank) == ("TableSettings", 7)
    assert config.table(BILLS).settings is None


@pytest.mark.parametrize(
    ("kind", "section", "words"),
    [
        ("Offering", {"options": {"rank": "x"}}, "spec.custom.options.rank"),
        ("Offering", {"options": {"rnak": 1}}, "spec.custom.options.rnak"),
        ("Plain", {}, "spec.custom: the destination theirs has no settings of tables"),
    ],
)
def test_wrong_settings_name_their_field(
    kind: str, section: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A manifest with settings that the destination does not take is refused when it is read, with line and path."""
    install(monkeypatch, tmp_path, kind)
    with pytest.raises(InvalidManifest, match=r"pipeline\.yaml:") as raised:
        manifests({"table": {"name": "orders"}, "custom": section}, **CUSTOM)
    assert words in raised.value.message


def test_settings_for_another_destination_are_refused() -> None:
    """A section of a destination that the Pipeline does not use would silently do nothing."""
    with pytest.raises(InvalidManifest, match=r"spec\.custom: the Pipeline's destination is") as raised:
        manifests({"table": {"name": "orders"}, "custom": {}})
    assert raised.value.code == "invalid_manifest"


def config(tmp_path: Path, **tables: BaseModel | None) -> PipelineConfig:
    """Return a configuration with these settings of tables."""
    named = {QualifiedTable("public", n): TableConfig(settings=s) for n, s in tables.items()}
    return replace(pipeline_config(manifests(), work_dir=tmp_path), tables=named)


def test_a_target_has_the_current_settings(tmp_path: Path) -> None:
    """A change of the manifest reaches the next call without a copy. A renamed table keeps what its name had."""
    schema = table(column(1, "id", Kind.INT8))
    store = MemoryStore("shop")
    assert table_target(store, config(tmp_path), schema).settings is None
    assert table_target(store, config(tmp_path, orders=Ranked(rank=1)), schema).settings == Ranked(rank=1)
    copied = CopySettings.of(config(tmp_path), schema.name)
    renamed = replace(schema, name=BILLS)
    assert copied.target(renamed, config(tmp_path, orders=Ranked(rank=2))).settings == Ranked(rank=2)
    both = config(tmp_path, orders=Ranked(rank=2), bills=Ranked(rank=3))
    assert copied.target(renamed, both).settings == Ranked(rank=3)


def test_settings_of_python_are_checked(tmp_path: Path) -> None:
    """Settings that the destination does not know are refused before anything starts."""
    check_table_settings(config(tmp_path, orders=Ranked(), bills=None), Offering())
    for destination, wrong in ((MemoryDestination(), Ranked()), (Offering(), _Other())):
        with pytest.raises(NeedsOperator) as raised:
            check_table_settings(config(tmp_path, orders=wrong), destination)
        assert raised.value.code == "table_settings_refused"


class _Other(BaseModel):
    """Settings of another destination."""
