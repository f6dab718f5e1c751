"""`levada erase` with a destination in PostgreSQL, and the commands of its page."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.docs.pages import blocks_of
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.cli.erase import file_keys, in_requests, merged, parsed
from levada.cli.exit_codes import Exit
from levada.destinations.erasure import Erased
from levada.runtime.erasures.eraser import ErasureOptions
from levada.runtime.erasures.report import ErasureReport
from levada.runtime.report.erasures import ERASURES, ErasuresApi
from levada.values import Lsn, QualifiedTable

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "erasure.md"
KEY = "0123456789abcdef0123456789abcdef"


def write(path: Path, db: Database, *syncs: dict[str, Any], **spec: Any) -> None:
    """Write the manifest of a pipeline whose tables are copied to the schema replica."""
    pipeline = replicated(db, store={"postgres": {}}, **spec)
    name = pipeline["metadata"]["name"]
    documents = [pipeline]
    for sync in syncs:
        table = sync["table"]["name"]
        kind = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": table}}
        documents.append({**kind, "spec": {"pipelineRef": {"name": name}, **sync}})
    path.write_text(yaml.safe_dump_all(documents))


def erased(path: Path, *arguments: str) -> dict[str, Any]:
    """Run the command, and return its result or the code of its error."""
    done = on(path, "erase", *arguments, "-o", "json", "--yes")
    if done.exit_code == Exit.OK:
        return dict(json.loads(done.stdout))
    found = re.search(r"\[(erase_\w+|unknown_table)\]", done.output)
    return {"code": found[1] if found else done.output}


def test_keys_of_several_forms() -> None:
    """A key is a value, a string of JSON, or an object whose numbers keep their digits."""
    assert parsed(" 7 ") == "7"
    assert parsed('"7"') == "7"
    assert parsed('{"a": 1.10, "b": "x", "c": true}') == {"a": "1.10", "b": "x", "c": "true"}
    assert parsed("{not json") == "{not json"
    for text in ('{"a": null}', '{"a": [1]}'):
        with pytest.raises(typer.BadParameter) as caught:
            parsed(text)
        assert text not in str(caught.value)


def test_a_line_of_a_file_is_one_key(tmp_path: Path) -> None:
    """Only a line break ends a key. A byte order mark is no part of the first one, or its person would stay."""
    file = tmp_path / "keys.txt"
    file.write_bytes("\ufeffann\r\n\r\nx\u2028y\x0bz\x85\nbob".encode())
    assert file_keys(file) == ["ann", "x\u2028y\x0bz", "bob"]
    file.write_bytes("ann".encode("utf-16"))
    for unreadable in (file, tmp_path):
        with pytest.raises(typer.BadParameter, match=str(unreadable)):
            file_keys(unreadable)


def test_many_keys_are_requested_in_parts() -> None:
    """Each request has as many keys as its size allows, and the results are added."""
    keys = [str(n) for n in range(1000)]
    parts = list(in_requests(keys, most_bytes=100))
    assert [key for part in parts for key in part] == keys
    assert all(1 <= len(json.dumps(part)) <= 110 for part in parts)
    result = {"rows": 1, "files": 1, "states": 1, "unreferencedFiles": 0, "keys": 2, "atSource": 0, "cuts": ["b"]}
    whole = merged([result, {**result, "cuts": ["a"]}])
    assert (whole["rows"], whole["keys"], whole["cuts"]) == (2, 4, ["a", "b"])


def test_one_erasure_at_a_time() -> None:
    """A second request is refused while one runs. The state has the step, and at the end no key is kept."""
    goes_on, names = threading.Event(), []

    class Slow:
        def erase(self, table: QualifiedTable, options: ErasureOptions, cancelled: threading.Event) -> ErasureReport:
            names.append(str(table))
            options.told("removing the rows")
            assert goes_on.wait(LIMIT_S)
            return ErasureReport(table, Lsn(1), options.dry_run, len(options.keys), 0, Erased(rows=1))

    api = ErasuresApi(Slow())
    begun = api.change("POST", ERASURES, b'{"table": "public.people", "keys": ["7"]}')
    assert begun is not None
    path = f"{ERASURES}/{json.loads(begun.body)['id']}"

    def state() -> dict[str, Any]:
        found = api.state(path)
        assert found is not None
        return dict(json.loads(found.body))

    until(state, lambda s: s["step"] == "removing the rows")
    second = api.change("POST", ERASURES, b'{"table": "public.people", "keys": ["8"]}')
    assert second is not None
    assert (second.status, json.loads(second.body)["error"]["code"]) == (409, "erase_running")
    goes_on.set()
    assert until(state, lambda s: s["finished"])["result"]["rows"] == 1
    assert names == ["public.people"]
    for body in (b'{"table": "public.people", "keys": []}', b'{"table": "people", "keys": [{"id": ["secret"]}]}', b"{"):
        refused = api.change("POST", ERASURES, body)
        assert refused is not None
        assert refused.status == 400
        assert b"secret" not in refused.body
    unknown = api.state(f"{ERASURES}/1")
    assert unknown is not None
    assert unknown.status == 404


@pytest.mark.nightly
def test_a_table_that_is_not_ready(manifest: Path, db: Database) -> None:
    """Nothing is erased from a table that is suspended or errored, because it has not applied every change."""
    db.execute(
        "CREATE TABLE resting (id int PRIMARY KEY)",
        "CREATE TABLE parked (id int PRIMARY KEY)",
        "INSERT INTO parked VALUES (1)",
    )
    write(manifest, db)
    run(manifest)
    db.execute("DROP TABLE replica.parked", "INSERT INTO parked VALUES (2)")
    write(manifest, db, {"table": {"name": "resting"}, "suspend": True})
    assert on(manifest, "run", "--until", "caught-up").exit_code == Exit.TABLE_ERRORED
    assert erased(manifest, "resting", "1") == {"code": "erase_not_ready"}
    assert erased(manifest, "parked", "9") == {"code": "erase_not_ready"}


def test_the_page(manifest: Path, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page about erasure works as it is printed."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text)",
        "INSERT INTO people SELECT n, 'p' || n FROM generate_series(1, 10) n",
        "CREATE TABLE visits (person int, visit int, note text, PRIMARY KEY (person, visit))",
        "INSERT INTO visits VALUES (7, 1, 'a'), (7, 2, 'b')",
    )
    write(manifest, db)
    run(manifest)
    assert erased(manifest, "people", "7") == {"code": "erase_at_source"}
    db.execute("DELETE FROM visits WHERE visit = 1", "DELETE FROM people WHERE id IN (8, 9)")
    monkeypatch.chdir(manifest.parent)
    for block in blocks_of(PAGE):
        if block.language == "sql":
            db.execute(block.code)
            continue
        for line in block.code.splitlines():
            if not line.startswith("levada"):
                assert line.startswith("printf")
                Path("keys.txt").write_text("8\n9\n")
                continue
            words = re.findall(r"'[^']*'|\S+", line)
            done = on(manifest, words[1], *(word.strip("'") for word in words[3:]))
            assert done.exit_code == Exit.OK, done.output
    assert db.query("SELECT id FROM replica.people ORDER BY id") == [(n,) for n in (1, 2, 3, 4, 5, 6, 10)]
    assert db.query("SELECT visit FROM replica.visits") == [(2,)]


@pytest.mark.nightly
def test_keys_of_every_form(manifest: Path, db: Database) -> None:
    """A key may be written as PostgreSQL accepts it. A masked one is given in clear. Kept rows are erased too."""
    db.execute(
        "CREATE TABLE texts (id char(5) PRIMARY KEY)",
        "INSERT INTO texts VALUES ('ab'), ('abcde')",
        "CREATE TABLE days (day date, id uuid, PRIMARY KEY (id, day))",
        "INSERT INTO days VALUES ('2026-01-02', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')",
        "CREATE TABLE masked (email text PRIMARY KEY, n int)",
        "INSERT INTO masked VALUES ('ada@clear', 1), ('bob@clear', 2)",
        "CREATE TABLE amounts (amount numeric(10, 2) PRIMARY KEY)",
        "INSERT INTO amounts VALUES (1.5), (2.5)",
        "CREATE TABLE keyless (what text)",
    )
    folder = manifest.parent / "secrets" / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hmac").write_text(f"{KEY}\n")
    write(
        manifest,
        db,
        {"table": {"name": "masked"}, "columns": {"mask": {"email": {"method": "HMAC"}}}, "deletes": "Ignore"},
        tables={
            "include": [{"schema": "public", "name": "*"}],
            "maskKeySecretRef": {"name": "masks", "key": "hmac"},
            "keyless": "Append",
        },
    )
    run(manifest)
    db.execute("DELETE FROM texts", "DELETE FROM days", "DELETE FROM masked", "DELETE FROM amounts WHERE amount = 1.5")
    assert erased(manifest, "texts", "abcdefgh")["rows"] == 0
    run(manifest)
    assert db.query("SELECT count(*) FROM replica.masked") == [(2,)]
    found = erased(manifest, "masked", "ada@clear")
    assert (found["rows"], found["atSource"]) == (1, 0)
    assert db.query("SELECT n FROM replica.masked") == [(2,)]
    assert erased(manifest, "amounts", "2.50")["code"] == "erase_at_source"
    assert erased(manifest, "amounts", "2.5", "--anyway")["rows"] == 1
    assert erased(manifest, "days", '{"day": "Jan 2 2026", "id": "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}"}')["rows"] == 0
    for arguments, code in (
        (("days", "2026-01-02"), "erase_key_invalid"),
        (("days", '{"day": "2026-01-02"}'), "erase_key_invalid"),
        (("amounts", "many"), "erase_key_invalid"),
        (("keyless", "x"), "erase_unsupported"),
        (("nothing", "x"), "unknown_table"),
    ):
        assert erased(manifest, *arguments) == {"code": code}


@pytest.mark.nightly
def test_keys_that_the_source_would_change(manifest: Path, db: Database) -> None:
    """A key that a type would cut off or round erases no other row. A scale is filled up, also below a mask."""
    db.execute(
        "CREATE DOMAIN short AS varchar(3)",
        "CREATE DOMAIN shorter AS short CHECK (VALUE <> 'bad')",
        "CREATE DOMAIN cents AS numeric(10, 2)",
        "CREATE TABLE domains (id shorter PRIMARY KEY)",
        "INSERT INTO domains VALUES ('abc')",
        "CREATE TABLE prices (id cents PRIMARY KEY)",
        "INSERT INTO prices VALUES (1.5)",
        "CREATE TABLE names (id name PRIMARY KEY)",
        "INSERT INTO names VALUES (repeat('x', 63))",
        """CREATE TABLE letters (id "char" PRIMARY KEY)""",
        "INSERT INTO letters VALUES ('a')",
        "CREATE TABLE masked (id numeric(10, 2) PRIMARY KEY)",
        "INSERT INTO masked VALUES (1.5), (2.5)",
        "CREATE TABLE free (id numeric PRIMARY KEY)",
        "INSERT INTO free VALUES (1.00)",
    )
    folder = manifest.parent / "secrets" / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hmac").write_text(f"{KEY}\n")
    tables = {"include": [{"schema": "public", "name": "*"}], "maskKeySecretRef": {"name": "masks", "key": "hmac"}}
    write(manifest, db, {"table": {"name": "masked"}, "columns": {"mask": {"id": {"method": "HMAC"}}}}, tables=tables)
    run(manifest)
    for key in ("abcd", "bad"):
        assert erased(manifest, "domains", key, "--anyway")["rows"] == 0
    for table, key in (("names", "x" * 64), ("letters", "ab"), ("prices", "1.501")):
        assert erased(manifest, table, key, "--anyway") == {"code": "erase_key_invalid"}
    for table, key in (
        ("domains", "abc"),
        ("names", "x" * 63),
        ("letters", "a"),
        ("prices", "1.5"),
        ("masked", "1.500"),
    ):
        assert erased(manifest, table, key) == {"code": "erase_at_source"}
        found = erased(manifest, table, key, "--anyway")
        assert found["rows"] == 1, table
        assert not any("another text" in place["where"] for place in found["remaining"])
    # Files have 1.00, which is another text.
    found = erased(manifest, "free", "1", "--anyway")
    assert any("another text" in place["where"] for place in found["remaining"])
