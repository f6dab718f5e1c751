"""A slip in the tables of a manifest, which is corrected a moment later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tests.rigs.command_line import manifest, on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]

COPIED = "DataSync"


def select(path: Path, db: Database, *schemas: str) -> None:
    """Write a manifest of all tables in some schemas."""
    tables: dict[str, Any] = {"include": [{"schema": schema} for schema in schemas]}
    path.write_text(yaml.safe_dump(replicated(db, "replica_{schema}", store={"postgres": {}}, tables=tables)))


def test_another_folder_is_named(manifest: Path, db: Database, tmp_path: Path) -> None:
    """The same manifest in another folder has another work folder. A check and a run say so, once, with a way back."""
    select(manifest, db, "public")
    run(manifest)
    assert "work_folder_changed" not in on(manifest, "check").output
    other = tmp_path / "other folder" / "pipeline.yaml"
    other.parent.mkdir()
    other.write_text(manifest.read_text())
    (other.parent / "secrets").symlink_to(tmp_path / "secrets")
    checked = " ".join(on(other, "check").output.split())
    assert "[work_folder_changed]" in checked
    [folder] = re.findall(r"--work-dir (\S+)", checked)
    assert "work_folder_changed" not in run(other, "--work-dir", folder)
    db.execute("INSERT INTO orders VALUES (7)")
    assert "[work_folder_changed]" in run(other)
    assert "work_folder_changed" not in run(other)
    assert db.query("SELECT id FROM replica_public.orders") == [(7,)]


def test_a_mistyped_schema_removes_no_state(manifest: Path, db: Database) -> None:
    """The start is refused with the entry and the tables. After the correction no table is copied again.

    Without the entry, the other schema is given up.
    """
    db.execute("CREATE SCHEMA sales", "CREATE TABLE sales.bills (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    select(manifest, db, "public", "sales")
    assert COPIED in run(manifest)
    select(manifest, db, "public", "salse")
    refused = on(manifest, "run", "--until", "caught-up")
    assert refused.exit_code != Exit.OK
    assert "[pattern_without_table]" in refused.output
    assert on(manifest, "check").exit_code != Exit.OK
    assert re.search(r"salse\.\*.*sales\.bills", " ".join(refused.output.split()))
    db.execute("INSERT INTO sales.bills VALUES (7)")
    select(manifest, db, "public", "sales")
    assert COPIED not in run(manifest)
    assert db.query("SELECT id FROM replica_sales.bills") == [(7,)]
    select(manifest, db, "public")
    assert "its state is forgotten" in run(manifest)
