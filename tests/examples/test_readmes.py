"""The READMEs of the examples in Python: each command is run, with the addresses of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import run_page
from tests.rigs.database import Database
from tests.rigs.http_service import Service, service

__all__ = ["service"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def follow(name: str, folder: Path, **adapted: str) -> str:
    """Run the README of an example in a folder that has the examples. Return what it prints."""
    (folder / "examples").mkdir()
    for example in EXAMPLES.iterdir():
        (folder / "examples" / example.name).symlink_to(example)
    here = {written.replace("__", " "): value for written, value in adapted.items()}
    run_page(EXAMPLES / name / "README.md", folder, {"PYTHONUNBUFFERED": "1"}, adapted=here)
    return (folder / "output").read_text()


def in_background(words: str, until: str) -> str:
    """Return a command that runs until another one succeeds, and is then stopped by Ctrl-C's signal."""
    return f"{words} > run.log 2>&1 &\nuntil {until}; do kill -0 $!; sleep 0.2; done\nkill -TERM $!\nwait $! || true"


@pytest.mark.nightly
def test_change_capture(shop: Database, tmp_path: Path) -> None:
    """The rows are in the file, and nothing is left at the source."""
    end = "changes.jsonl public.orders public.customers"
    here = {
        "127.0.0.1 5432 shop": f"127.0.0.1 {shop.server.port} {shop.name}",
        end: in_background(end, "test -e changes.snapshot"),
    }
    follow("change-capture", tmp_path, **here)
    assert (tmp_path / "changes.jsonl").read_text().count("insert") == 2
    assert shop.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []


@pytest.mark.nightly
def test_custom_destination(shop: Database, service: Service, tmp_path: Path) -> None:
    """The service has the rows of the source, the end is no traceback, and nothing is left at the source."""
    end = "http://localhost:8080/changes"
    here = {
        "127.0.0.1 5432 shop": f"127.0.0.1 {shop.server.port} {shop.name}",
        end: in_background(service.url, "grep 'caught up' run.log"),
    }
    follow("custom-destination", tmp_path, **here)
    assert sorted(row["id"] for row in service.rows("public.orders")) == [1, 2]
    assert "Traceback" not in (tmp_path / "run.log").read_text()
    assert shop.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []
    assert shop.query("SELECT pubname FROM pg_publication") == []
    assert shop.query("SELECT evtname FROM pg_event_trigger") == []


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("example", ["custom-destination/custom_destination.py", "change-capture/change_capture.py"])
def test_an_example_without_arguments_prints_its_usage(example: str) -> None:
    """It is no traceback."""
    done = subprocess.run([sys.executable, EXAMPLES / example], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"usage: python \S+ HOST PORT DATABASE [^\n]+\n", done.stderr)


def test_custom_store(tmp_path: Path, shop: Database) -> None:
    """Each start takes the next epoch."""
    (tmp_path / "examples").mkdir()
    copied = tmp_path / "examples" / "custom-store"
    copied.mkdir()
    (copied / "custom_store.py").write_text((EXAMPLES / "custom-store" / "custom_store.py").read_text())
    run_page(EXAMPLES / "custom-store" / "README.md", tmp_path, {})


@pytest.mark.nightly
def test_run_engine(shop: Database, tmp_path: Path) -> None:
    """Each phase of the tables is printed, until they have caught up."""
    assert "shop: 2 tables have caught up" in follow("run-engine", tmp_path)
