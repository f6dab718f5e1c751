"""Masked columns, through the commands."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

KEY = "0123456789abcdef0123456789abcdef"
MASKS: dict[str, Any] = {
    "email": {"method": "HMAC"},
    "ssn": {"method": "Null"},
    "note": {"method": "Truncate", "length": 4},
    "card": {"method": "Last", "length": 4},
    "born": {"method": "HMAC"},
}


def hashed(text: str, key: str = KEY) -> str:
    """Return the mask of a text by HMAC."""
    return hmac.digest(key.encode(), text.encode(), hashlib.sha256).hex()


def write(path: Path, db: Database, masks: dict[str, Any], **spec: Any) -> None:
    """Write the manifest with these masks of the table people."""
    tables = {"include": [{"schema": "public", "name": "*"}], "maskKeySecretRef": {"name": "masks", "key": "hmac"}}
    pipeline = replicated(db, store={"postgres": {}}, tables=tables, **spec)
    sync = {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": "people"},
        "spec": {
            "pipelineRef": {"name": pipeline["metadata"]["name"]},
            "table": {"name": "people"},
            "columns": {"mask": masks},
        },
    }
    path.write_text(yaml.safe_dump_all([pipeline, sync]))


def write_key(path: Path, key: str) -> None:
    """Write the key of the masks."""
    folder = path.parent / "secrets" / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hmac").write_text(f"{key}\n")


@pytest.fixture
def people(manifest: Path, db: Database) -> Path:
    """A manifest that masks columns of a table with people."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, ssn int NOT NULL, note text, card varchar(40),"
        " born date)",
        "INSERT INTO people VALUES (1, 'ada@clear', 770011, 'clearnote', '4111clear1234', '1815-12-10'),"
        " (2, NULL, 770012, '', '12', NULL), (3, '', 770013, 'éßx́yz', '日本語テキスト', '1900-01-01')",
    )
    write_key(manifest, KEY)
    write(manifest, db, MASKS)
    return manifest


ROWS = "SELECT id, email, ssn, note, card, born FROM replica.people ORDER BY id"


def test_masks(people: Path, db: Database) -> None:
    """In the copy, in the stream, and in the comparison."""
    assert on(people, "check").exit_code == Exit.OK
    run(people)
    copied = [
        (1, hashed("ada@clear"), None, "clea", "1234", hashed("1815-12-10")),
        (2, None, None, "", "12", None),
        (3, hashed(""), None, "éßx́", "テキスト", hashed("1900-01-01")),
    ]
    assert db.query(ROWS) == copied
    db.execute("UPDATE people SET id = id + 10", "DELETE FROM people WHERE id = 12")
    db.execute("INSERT INTO people SELECT id + 1, email, ssn, note, card, born FROM people WHERE id = 11")
    run(people)
    assert db.query(ROWS) == [(11, *copied[0][1:]), (12, *copied[0][1:]), (13, *copied[2][1:])]
    assert on(people, "verify").exit_code == Exit.OK
    db.execute(
        "DROP TRIGGER levada_guard ON replica.people",
        "UPDATE replica.people SET email = 'x', card = 'y', ssn = 1 WHERE id = 12",
    )
    wrong = on(people, "verify", "--show-values", "--output", "json")
    assert wrong.exit_code != Exit.OK
    assert hashed("ada@clear") in wrong.output
    assert "ada@clear" not in wrong.output
    assert "770011" not in wrong.output
