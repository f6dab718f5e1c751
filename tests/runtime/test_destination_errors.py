"""A destination of another package that raises exceptions of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.recording import Recording
from tests.runtime.foreign_package import install_package
from tests.runtime.manifest_text import manifests

from levada.errors import NeedsOperator
from levada.runtime.host.assembly import make_destination, pipeline_config

MODULE = """
from levada.destinations import Destination

class Theirs(Destination):
    drop_table_for_copy = write_table_rows = write_events = applied = None

    @classmethod
    def from_settings(cls, settings, context):
        raise KeyError("url")
"""


class Failing(Recording):
    """Cannot be opened."""

    def startup(self) -> None:
        raise ConnectionResetError("the peer has\nclosed it")


def test_an_exception_names_the_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of `from_settings` names the package and the entry point, and keeps its cause."""
    install_package(monkeypatch, tmp_path, "their_destination", "Theirs", MODULE)
    given = manifests(destination={"custom": {"type": "theirs", "options": {}}})
    config = pipeline_config(given, work_dir=tmp_path / "work")
    with pytest.raises(NeedsOperator) as raised:
        make_destination(given, config, None, None, tmp_path / "work")
    assert raised.value.code == "destination_failed"
    assert raised.value.message == (
        "from_settings of entry point theirs = their_destination:Theirs of package their-package raised KeyError: 'url'"
    )
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_start_names_the_class(db: Database, tmp_path: Path) -> None:
    """An error of `startup` of a library user's own class names that class. Nothing is made at the source."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    rig = Rig(db, tmp_path)
    rig.destination = Failing()
    with pytest.raises(NeedsOperator) as raised:
        rig.start()
    assert raised.value.code == "destination_failed"
    assert raised.value.message == (
        "startup of class tests.runtime.test_destination_errors.Failing raised ConnectionResetError: the peer has"
    )
    assert isinstance(raised.value.__cause__, ConnectionResetError)
    assert db.query("SELECT FROM pg_publication") == []
