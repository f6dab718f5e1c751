"""Masked columns, through the commands."""

from __future__ import annotations

import hashlib
import hmac
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "masks.md"
KEY = "0123456789abcdef0123456789abcdef"
[PIPELINE, SYNC] = yaml.safe_load_all(
    re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
)
MASKS: dict[str, Any] = {**SYNC["spec"]["columns"]["mask"], "born": {"method": "HMAC"}}


def hashed(text: str, key: str = KEY) -> str:
    """Return the mask of a text by HMAC."""
    return hmac.digest(key.encode(), text.encode(), hashlib.sha256).hex()


def write(path: Path, db: Database, masks: dict[str, Any], *, deletes: str = "", **spec: Any) -> None:
    """Write the manifest with these masks of the table people."""
    pipeline = replicated(db, store={"postgres": {}}, **{"tables": PIPELINE["spec"]["tables"], **spec})
    of_pipeline = {
        "pipelineRef": {"name": pipeline["metadata"]["name"]},
        "columns": {"mask": masks},
        "deletes": deletes,
    }
    path.write_text(yaml.safe_dump_all([pipeline, {**SYNC, "spec": {**SYNC["spec"], **of_pipeline}}]))


def write_key(path: Path, key: str) -> None:
    """Write the key of the masks."""
    folder = path.parent / "secrets" / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hmac").write_text(f"{key}\n")


def emails(db: Database) -> list[Any]:
    """Return the values of a masked column."""
    return [email for (email,) in db.query("SELECT email FROM replica.people ORDER BY id")]


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
    """In the copy, in the stream, and in the comparison. The plan lists them before."""
    assert on(people, "check").exit_code == Exit.OK
    planned = on(people, "plan").output
    assert "public.people is masked: born by HMAC, card by Last to 4," in planned, planned
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


@pytest.mark.nightly
def test_another_key_copies_the_table_again(people: Path, db: Database) -> None:
    """No table has values of two keys, also if rows changed while no engine ran. A key is at least 16 bytes."""
    run(people)
    db.execute("UPDATE people SET email = 'later' WHERE id = 2")
    write_key(people, other := "another key, also long enough")
    run(people)
    assert emails(db) == [hashed("ada@clear", other), hashed("later", other), hashed("", other)]
    assert on(people, "verify").exit_code == Exit.OK
    write_key(people, "short")
    assert "[mask_key_weak]" in on(people, "run", "--until", "caught-up").output
    (command,) = re.findall(r"^openssl .*$", PAGE.read_text(), re.MULTILINE)
    subprocess.run(["sh", "-c", command], cwd=people.parent, check=True)
    run(people)
    assert not {hashed("later", other), hashed("later")} & set(emails(db))


def test_changed_masks(people: Path, db: Database) -> None:
    """They copy the table again. Those that cannot be are named by a check, and the table is not copied."""
    run(people)
    write(people, db, {"email": {"method": "Last", "length": 5}})
    run(people)
    assert emails(db) == ["clear", None, ""]
    for masks, code in (
        ({"emial": {"method": "HMAC"}}, "masked_column_missing"),
        ({"id": {"method": "Null"}}, "mask_refused"),
        ({"ssn": {"method": "Truncate", "length": 3}}, "mask_refused"),
    ):
        write(people, db, masks)
        assert f"[{code}]" in " ".join(on(people, "check").output.split())
        on(people, "run", "--until", "caught-up")
        assert emails(db) == ["clear", None, ""]
    write(people, db, {})
    run(people)
    assert emails(db) == ["ada@clear", None, ""]


@pytest.mark.nightly
def test_a_renamed_table_keeps_its_masks(people: Path, db: Database) -> None:
    """Also when it is copied again, until a TableSync of its new name has others."""
    run(people)
    db.execute("ALTER TABLE people RENAME TO persons", "UPDATE persons SET email = 'new' WHERE id = 2")
    run(people)
    assert on(people, "resync", "public.persons").exit_code == Exit.OK
    db.execute("ALTER TABLE persons RENAME TO humans", "ALTER TABLE humans RENAME ssn TO social")
    run(people)
    assert on(people, "resync", "public.humans").exit_code == Exit.OK
    run(people)
    assert emails(db) == [hashed("ada@clear"), hashed("new"), hashed("")]
    assert db.query("SELECT DISTINCT social FROM replica.people") == [(None,)]
    assert on(people, "verify").exit_code == Exit.OK


def test_masks_that_no_manifest_may_have(people: Path, db: Database) -> None:
    """HMAC without a Secret, and lengths where there is none."""
    for masks, text in (
        ({"note": {"method": "Truncate"}}, "is needed by the methods Truncate and Last"),
        ({"note": {"method": "Null", "length": 3}}, "is only for the methods Truncate and Last"),
        ({"note": {"method": None}}, "put Null in quotes"),
    ):
        write(people, db, masks)
        assert text in " ".join(on(people, "check").output.split())
    write(people, db, {"note": {"method": "HMAC"}}, tables={"include": [{"schema": "public", "name": "*"}]})
    assert "needs tables.maskKeySecretRef" in " ".join(on(people, "check").output.split())


@pytest.mark.nightly
def test_kept_rows_are_never_of_other_masks(people: Path, db: Database) -> None:
    """A table that keeps deleted rows is parked after a change of its masks, until it keeps them no longer."""
    write(people, db, {}, deletes="Mark")
    run(people)
    db.execute("DELETE FROM people WHERE id = 1")
    write(people, db, MASKS, deletes="Mark")
    assert "[kept_rows_masked]" in on(people, "run", "--until", "caught-up").output
    assert emails(db) == ["ada@clear", None, ""]
    write(people, db, MASKS)
    run(people)
    assert emails(db) == [None, hashed("")]


def test_no_row_in_clear_is_kept_after_an_interrupted_copy(people: Path, db: Database) -> None:
    """A copy with masks fails under Apply. The destination is in clear until then, so Mark takes no row of it over."""
    write(people, db, {})
    run(people)
    db.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$",
        "CREATE EVENT TRIGGER refuse ON sql_drop EXECUTE FUNCTION refuse()",
    )
    write(people, db, MASKS)
    assert "refused" in on(people, "run", "--until", "caught-up").output
    db.execute("DROP EVENT TRIGGER refuse", "DELETE FROM people WHERE id = 1")
    assert emails(db) == ["ada@clear", None, ""]
    write(people, db, MASKS, deletes="Mark")
    assert "[kept_rows_masked]" in on(people, "run", "--until", "caught-up").output
    assert emails(db) == ["ada@clear", None, ""]


@pytest.mark.nightly
def test_masks_before_the_first_copy_is_complete(people: Path, db: Database) -> None:
    """A table that keeps deleted rows has none yet, so it is copied with the masks. Afterwards it keeps them."""
    db.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$",
        "CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()",
    )
    write(people, db, {}, deletes="Mark")
    assert "refused" in on(people, "run", "--until", "caught-up").output
    db.execute("DROP EVENT TRIGGER refuse")
    write(people, db, MASKS, deletes="Mark")
    run(people)
    assert emails(db) == [hashed("ada@clear"), None, hashed("")]
    db.execute("DELETE FROM people WHERE id = 1")
    write(people, db, {}, deletes="Mark")
    assert "[kept_rows_masked]" in on(people, "run", "--until", "caught-up").output


SQL = re.findall(r"^(?:COMMENT|CREATE TABLE people_new).*?;$", PAGE.read_text(), re.MULTILINE)
COMMENTED = "SELECT id, email, ssn, note, card FROM replica.people ORDER BY id"
MASKED = (1, hashed("ada@clear"), None, "clea", "1234")


@pytest.fixture
def commented(manifest: Path, db: Database) -> Path:
    """A manifest without a mask, of a table with people whose columns have the comments of the page."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, ssn int NOT NULL, note text, card varchar(40))",
        "INSERT INTO people VALUES (1, 'ada@clear', 770011, 'clearnote', '4111clear1234')",
        *[statement for statement in SQL if statement.startswith("COMMENT")],
    )
    write_key(manifest, KEY)
    write(manifest, db, {})
    return manifest


def states(path: Path) -> str:
    """Return what the status shows, in one line."""
    return " ".join(on(path, "status").output.split())


@pytest.mark.nightly
def test_comments_mask(commented: Path, db: Database) -> None:
    """In the copy, in the stream, in the comparison, and in a table that takes the name in a swap."""
    assert len(SQL) == 5
    assert on(commented, "check").exit_code == Exit.OK
    assert "public.people is masked: " in on(commented, "plan").output
    run(commented)
    assert db.query(COMMENTED) == [MASKED]
    db.execute("INSERT INTO people SELECT 2, email, ssn, note, card FROM people")
    run(commented)
    assert db.query(COMMENTED) == [MASKED, (2, *MASKED[1:])]
    assert on(commented, "verify").exit_code == Exit.OK
    db.execute(
        SQL[4],
        "INSERT INTO people_new SELECT * FROM people WHERE id = 1",
        "BEGIN; ALTER TABLE people RENAME TO people_old; ALTER TABLE people_new RENAME TO people; END",
    )
    run(commented)
    assert db.query(COMMENTED) == [MASKED]
    assert on(commented, "verify").exit_code == Exit.OK


@pytest.mark.nightly
def test_changed_comments_copy_the_table_again(commented: Path, db: Database) -> None:
    """So do those that come and go, and a column that is added with one is masked in its first rows."""
    run(commented)
    db.execute(
        "COMMENT ON COLUMN people.email IS NULL",
        "BEGIN; ALTER TABLE people ADD COLUMN born text DEFAULT 'clear'; COMMENT ON COLUMN people.born IS"
        " 'Levada:MASK=Last:2'; INSERT INTO people VALUES (3, 'b', 1, 'n', 'c', 'long ago'); END",
        "COMMENT ON COLUMN people.note IS 'levada:mask=truncate:2'",
    )
    assert "public.people" in on(commented, "plan").output
    run(commented)
    assert db.query(COMMENTED) == [(1, "ada@clear", None, "cl", "1234"), (3, "b", None, "n", "c")]
    assert db.query("SELECT born FROM replica.people ORDER BY id") == [("ar",), ("go",)]
    db.execute("ALTER TABLE people RENAME card TO plastic", "UPDATE people SET plastic = 'clear9999'")
    run(commented)
    assert db.query("SELECT plastic FROM replica.people") == [("9999",), ("9999",)]
    assert on(commented, "verify").exit_code == Exit.OK


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("comment", "masks", "shown"),
    [
        ("levada:mask=truncate:5", {"email": {"method": "Truncate", "length": 3}}, "ada"),
        ("levada:mask=truncate:3", {"email": {"method": "Truncate", "length": 5}}, "ada"),
        ("levada:mask=last:3", {"email": {"method": "HMAC"}}, hashed("ada@clear")),
        ("levada:mask=null", {"email": {"method": "HMAC"}}, None),
    ],
)
def test_the_stricter_mask_holds(
    commented: Path, db: Database, comment: str, masks: dict[str, Any], shown: str | None
) -> None:
    """Neither the manifest nor the comment weakens the other."""
    db.execute(f"COMMENT ON COLUMN people.email IS '{comment}'")
    write(commented, db, masks)
    run(commented)
    assert db.query("SELECT email FROM replica.people") == [(shown,)]


@pytest.mark.nightly
def test_a_comment_that_is_no_mask_parks_its_table(commented: Path, db: Database) -> None:
    """Nothing is replicated in clear, the other tables go on, and a resync copies it after a corrected comment."""
    for comment, masks in (
        ("levada:mask=hmca", {}),
        ("levada: mask hmac", {}),
        ("levada:mask=hmac levada:mask=null", {}),
        ("levada:mask=last:3", {"email": {"method": "Truncate", "length": 3}}),
    ):
        db.execute(f"COMMENT ON COLUMN people.email IS '{comment}'")
        write(commented, db, masks)
        assert "[mask_comment_refused]" in on(commented, "check").output
        assert on(commented, "run", "--until", "caught-up").exit_code != Exit.OK
        assert db.query("SELECT to_regclass('replica.people') IS NULL, to_regclass('replica.items') IS NULL") == [
            (True, False)
        ]
        assert "mask_comment_refused" in states(commented)
    write(commented, db, {})
    db.execute("COMMENT ON COLUMN people.email IS 'levada:mask=hmac'")
    assert on(commented, "resync", "public.people").exit_code == Exit.OK
    run(commented)
    assert db.query(COMMENTED) == [MASKED]
    db.execute("COMMENT ON COLUMN people.email IS 'levada:mask=hmca'", "UPDATE people SET email = 'clear again'")
    assert on(commented, "run", "--until", "caught-up").exit_code != Exit.OK
    assert db.query(COMMENTED) == [MASKED]
    db.execute("COMMENT ON COLUMN people.email IS 'levada:mask=hmac'")
    assert on(commented, "resync", "public.people").exit_code == Exit.OK
    run(commented)
    assert db.query("SELECT email FROM replica.people") == [(hashed("clear again"),)]


def test_a_comment_for_people_is_none(commented: Path, db: Database) -> None:
    """One that names Levada without such a word masks nothing."""
    db.execute("COMMENT ON COLUMN people.email IS 'read by Levada: see the wiki, and mylevada:x'")
    run(commented)
    assert db.query("SELECT email FROM replica.people") == [("ada@clear",)]
