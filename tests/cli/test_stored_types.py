"""Types that the manifest chooses for columns, through the commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "stored-types.md"
TYPES = """SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = 'replica.items'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"""


def write(path: Path, db: Database, types: dict[str, str] | None = None) -> None:
    """Write the manifest with these types of the table ``items``, None for those of the page."""
    [block] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    pipeline = replicated(db, store={"postgres": {}})
    sync: dict[str, Any] = yaml.safe_load(block)
    sync["spec"]["pipelineRef"] = {"name": pipeline["metadata"]["name"]}
    if types is not None:
        sync["spec"]["columns"]["types"] = types
    path.write_text(yaml.safe_dump_all([pipeline, sync]))


def parked(manifest: Path) -> str:
    """Run the pipeline until it has caught up but for one table, and return its output and its log."""
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.TABLE_ERRORED
    return done.output


@pytest.fixture
def items(manifest: Path, db: Database) -> Path:
    """A manifest of a table with the columns of the page, and of another table."""
    if not db.query("SELECT FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("the server has no pgvector")
    db.execute(
        "DROP TABLE items",
        "CREATE EXTENSION vector",
        "CREATE TABLE items (id int PRIMARY KEY, price numeric, embedding vector(2), opening timestamptz)",
        "INSERT INTO items VALUES (1, 1.5, '[1,-0]', 'infinity'), (2, NULL, NULL, '2024-01-01 00:00+00')",
    )
    return manifest


def test_the_types_of_the_page(items: Path, db: Database) -> None:
    """Copied and streamed values are the source's, as the comparison shows. Another choice copies the table again."""
    write(items, db)
    assert on(items, "check").exit_code == Exit.OK
    run(items)
    assert dict(db.query(TYPES)) == {
        "id": "integer", "price": "numeric", "embedding": "real[]", "opening": "timestamp with time zone",
    }  # fmt: skip
    db.execute("INSERT INTO items VALUES (3, 0.000000001, '[0.1,3e38]', '-infinity')")
    run(items)
    assert on(items, "verify").exit_code == Exit.OK
    copied = "SELECT id, price, embedding::text, opening::text FROM {} ORDER BY id"
    assert db.query(copied.format("replica.items")) == [  # type: ignore[arg-type]  # a constant
        (i, p, None if e is None else e.replace("[", "{").replace("]", "}"), o)
        for i, p, e, o in db.query(copied.format("items"))  # type: ignore[arg-type]  # as above
    ]
    write(items, db, {"opening": "Text", "price": "Text"})
    planned = on(items, "plan").output
    assert "items" in planned
    run(items)
    assert dict(db.query(TYPES))["embedding"] == "text"
    assert on(items, "verify").exit_code == Exit.OK


@pytest.mark.nightly
def test_a_type_that_a_column_does_not_take(items: Path, db: Database) -> None:
    """The check names the table and the column. The table is parked, and the others go on."""
    write(items, db, {"id": "List", "opening": "Text", "prize": "Text"})
    checked = " ".join(on(items, "check").output.split())
    assert "public.items: columns.types has List for column id of type integer, but only vector and halfvec" in checked
    assert "columns.types of table public.items has prize, which is no replicated column" in checked
    db.execute("INSERT INTO orders VALUES (1)")
    assert "[stored_type_refused]" in parked(items)
    assert db.query("SELECT count(*) FROM replica.orders") == [(1,)]
    write(items, db, {"opening": "Text"})
    assert on(items, "resync", "public.items").exit_code == Exit.OK
    run(items)
    assert on(items, "verify").exit_code == Exit.OK


@pytest.mark.parametrize("name", ["text", "Decimal(39, 0)", "Decimal(0, 0)", "Decimal", "Uuid[]", "List(1)", "List(7)"])
def test_names_that_no_type_has(manifest: Path, db: Database, name: str) -> None:
    """The manifest is invalid, and the message names the field."""
    write(manifest, db, {"id": name})
    refused = on(manifest, "check")
    assert refused.exit_code == Exit.USAGE
    assert "spec.columns.types.id" in refused.output


@pytest.mark.nightly
def test_a_retype_and_a_rename_under_the_stream(items: Path, db: Database) -> None:
    """A type that the column no longer takes parks its table. A renamed column has the choice of its new name."""
    write(items, db, {"price": "Decimal(10, 2)", "total": "Text", "opening": "Text"})
    run(items)
    db.execute("ALTER TABLE items RENAME price TO total", "INSERT INTO items VALUES (4, 4.00, '[4,4]', now())")
    run(items)
    assert on(items, "verify").exit_code == Exit.OK
    assert db.query("SELECT total::text FROM replica.items WHERE id = 4") == [("4.00",)]
    db.execute("ALTER TABLE items RENAME total TO price")
    run(items)
    db.execute("ALTER TABLE items ALTER price TYPE text", "INSERT INTO items VALUES (5, 'five')")
    assert "[stored_type_refused]" in parked(items)
    write(items, db, {"price": "Text", "opening": "Text"})
    run(items)
    assert on(items, "verify").exit_code == Exit.OK
