"""A destination and a store of a package that pip installs, named in a manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.scenarios.their_package import install_their_package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed in."""
    return install_their_package(tmp_path_factory.mktemp("their-lake"))


@pytest.fixture
def theirs(engine: Engine, db: Database, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose commands find the package."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    (tmp_path / "state").mkdir()
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    engine.spec = {
        "destination": {"custom": {"type": "lines", "options": {"folder": str(tmp_path / "lines")}}},
        "store": {"custom": {"type": "file", "options": {"folder": str(tmp_path / "state")}}},
    }
    return engine


def rows(engine: Engine) -> list[dict[str, Any]]:
    """Return the lines of the table's file."""
    return [json.loads(line) for line in (engine.folder / "lines" / "public.orders.jsonl").read_text().splitlines()]


def test_rows_reach_another_packages_destination(theirs: Engine, db: Database) -> None:
    """`levada run` copies rows and applies changes. State is in the package's store, from which another run resumes."""
    theirs.write_manifest()
    theirs.levada("check", *theirs.options())
    assert not list((theirs.folder / "state").iterdir()), "a check creates nothing in the store"
    theirs.levada("run", *theirs.options(), "--until", "caught-up")
    assert rows(theirs) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    state = json.loads((theirs.folder / "state" / "shop.json").read_text())
    assert state["epoch"] == 1
    db.execute("INSERT INTO orders VALUES (3, 'c')", "DELETE FROM orders WHERE id = 1")
    theirs.levada("run", *theirs.options(), "--until", "caught-up")
    assert rows(theirs)[2:] == [{"id": 3, "v": "c"}, {"deleted": {"id": 1}}]
    assert "Ready" in theirs.levada("status", *theirs.options()).stdout
    assert db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'") == []


def test_invalid_options_are_reported_by_their_path(theirs: Engine) -> None:
    """`levada check` and `levada run` name each field of the options by its path and its line of the file."""
    destination = {"type": "lines", "options": {"indentBy": 9, "format": {"sortKey": True}}}
    theirs.spec = {"destination": {"custom": destination}, "store": {"custom": {"type": "file"}}}
    theirs.write_manifest()
    lines = theirs.manifest.read_text().splitlines()
    at = {
        key: next(i for i, line in enumerate(lines, 1) if line.strip().startswith(key))
        for key in ("indentBy", "sortKey")
    }
    for command in ("check", "run"):
        done = theirs.levada(command, *theirs.options(), check=False)
        assert done.returncode
        text = " ".join(done.stderr.split())
        assert "spec.destination.custom.options.folder: is required" in text
        assert f":{at['indentBy']}: spec.destination.custom.options.indentBy: must be at most 8" in text
        assert (
            f":{at['sortKey']}: spec.destination.custom.options.format.sortKey: unknown key: did you mean sortKeys?"
            in text
        )
        assert "spec.store.custom.options.folder: is required" in text


def test_settings_of_spark_without_spark_are_reported(theirs: Engine) -> None:
    """A setting that this class's pipeline would ignore, because it does not ask for Spark, is named by its path."""
    theirs.spec |= {"driver": {"mode": "Cluster"}, "executor": {"instances": {"max": 2}}}
    theirs.write_manifest()
    for command in ("check", "run"):
        done = theirs.levada(command, *theirs.options(), check=False)
        assert done.returncode
        text = " ".join(done.stderr.split())
        assert "spec.driver.mode: has no effect: the destination lines does not use Spark" in text
        assert "spec.executor: has no effect: the destination lines does not use Spark" in text
