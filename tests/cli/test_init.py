"""`levada init`: a manifest and a Secret from a look at a real PostgreSQL."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from psycopg import sql
from tests.rigs.command_line import levada
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit
from levada.cli.new_manifest import NewPipeline, manifest_text
from levada.cli.output import show_error
from levada.postgres.estimates import TableEstimate
from levada.segments.staging import Staging
from levada.spec import load_manifests
from levada.spec.source import TlsMode
from levada.values import QualifiedTable


def dsn(db: Database, password: str = "s3cret-'\\") -> str:
    """Return a connection string with a password that needs quotes."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(host="127.0.0.1", port=db.server.port, user="postgres", password=password, dbname=db.name)


def test_a_manifest_of_everything_that_is_found(db: Database, tmp_path: Path) -> None:
    """Every schema is selected, the largest tables are named with their sizes, and the manifest is valid."""
    db.execute(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY, v text)",
        "INSERT INTO sales.orders SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (1000)",
        "INSERT INTO parts SELECT generate_series(1, 500)",
        "ANALYZE",
    )
    done = levada("init", dsn(db), "--dir", tmp_path / "shop", "--name", "shop")
    assert done.exit_code == Exit.OK, done.output
    text = (tmp_path / "shop" / "pipeline.yaml").read_text()
    assert "sales.orders: about 1,000 rows, " in text
    assert "public.parts: about 500 rows, " in text
    assert "parts_1" not in text
    manifests = load_manifests(text)
    assert manifests.selects(QualifiedTable("sales", "orders"))
    assert manifests.selects(QualifiedTable("public", "parts"))
    assert manifests.pipeline.spec.source.tls.mode is TlsMode.DISABLE
    secret = tmp_path / "shop" / "secrets" / "shop-source"
    assert (secret / "username").read_text() == "postgres"
    assert (secret / "password").read_text() == "s3cret-'\\"
    for path in (secret / "password", secret / "username"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert "s3cret" not in text + done.output


def test_the_settings_of_a_table_in_comments_are_valid(db: Database, tmp_path: Path) -> None:
    """Without their comments they are a TableSync of the largest table, whatever its name is."""
    odd = 'a: "b" # c'
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(sql.Identifier(odd)))
    assert levada("init", dsn(db), "--dir", tmp_path).exit_code == Exit.OK
    text = (tmp_path / "pipeline.yaml").read_text()
    before, _, block = text.partition("# ---\n")
    manifests = load_manifests(before + "---\n" + re.sub("^# ", "", block, flags=re.MULTILINE))
    [sync] = manifests.table_syncs
    assert (sync.spec.table.name, sync.spec.columns.types) == (odd, {"price": "Decimal(38, 9)"})


def test_nothing_is_replaced(db: Database, tmp_path: Path) -> None:
    """A second call changes no file and says which one is in the way."""
    assert levada("init", dsn(db), "--dir", tmp_path).exit_code == Exit.OK
    before = (tmp_path / "pipeline.yaml").read_text()
    done = levada("init", dsn(db, "other"), "--dir", tmp_path)
    assert done.exit_code == Exit.FAILED
    assert "file_exists" in done.output
    assert (tmp_path / "pipeline.yaml").read_text() == before


@pytest.mark.parametrize("name", ["../elsewhere", "Shop", "a b", "Shop_1", "x" * 60])
def test_an_invalid_name_writes_nothing(db: Database, tmp_path: Path, name: str) -> None:
    """The name is part of a path, so it is checked before the first file. The error says what is valid."""
    folder = tmp_path / "shop"
    done = levada("init", dsn(db), "--dir", folder, "--name", name)
    assert done.exit_code == Exit.USAGE
    assert "Invalid value for --name: must consist of a-z, 0-9 and -" in " ".join(done.output.split())
    assert "pipeline.yaml" not in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1,127.0.0.1:2/x", "one host"),
        ("this is no dsn = s3cret", "connection string"),
        ("postgresql://127.0.0.1:1/x", "no user"),
        ("postgresql://me:s3cret@127.0.0.1:1/x?sslmode=disable", "source_unreachable"),
        ("postgresql://me:s3cret@127.0.0.1:1/x?sslmode=disable", "check the DSN's host"),
        ("postgresql://me:no@s3cret@127.0.0.1:1/x", "has an @"),
        ("postgresql://me:s3cret@127.0.0.1:1/x?service=shop", "names a service"),
        ("postgresql://me:s3cret@127.0.0.1:1/x?sslmode=always", "unknown sslmode"),
    ],
)
def test_a_wrong_source_is_named(given: str, said: str, tmp_path: Path) -> None:
    """Without a terminal nothing is asked. No file is written, and no password is printed."""
    done = levada("init", given, "--dir", tmp_path)
    assert done.exit_code != Exit.OK
    assert said in " ".join(done.output.split())
    assert "s3cret" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_odd_names_stay_what_they_are(db: Database, tmp_path: Path) -> None:
    """Names with quotes, line breaks, colons and emoji neither break the YAML nor select another table."""
    odd = 'a: "b"\n# c🐘\u202e\x7f'
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(odd)))
        connection.execute(sql.SQL("CREATE TABLE {}.{} (id int PRIMARY KEY)").format(*[sql.Identifier(odd)] * 2))
    assert levada("init", dsn(db), "--dir", tmp_path).exit_code == Exit.OK
    assert load_manifests((tmp_path / "pipeline.yaml").read_text()).selects(QualifiedTable(odd, odd))


@pytest.mark.parametrize("text", ['a: "b"\n# c', "🐘 שלום \u202e\x7f\x85\u2028\ufeff", "\\U0001F418", "100%"])
def test_names_are_read_back(text: str) -> None:
    """A manifest has each name of a database as PostgreSQL has it. Characters beyond U+FFFF have no pair of escapes."""
    new = NewPipeline("a", "::1", 5433, text, "a-source", TlsMode.DISABLE, "file:///lake", "s3://staging", {})
    assert load_manifests(manifest_text(new)).pipeline.spec.source.database == text


@pytest.mark.parametrize("folder", ["my shop", "100% füll 🐘"])
def test_any_folder(db: Database, tmp_path: Path, folder: str) -> None:
    """The staging area of a new manifest is below its folder, whatever characters are in the folder's name."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert levada("init", dsn(db), "--dir", tmp_path / folder).exit_code == Exit.OK
    text = (tmp_path / folder / "pipeline.yaml").read_text()
    assert "Found, the largest first (1 table)" in text
    staging = Staging.open(load_manifests(text).pipeline.spec.staging.uri)
    staging.publish("a", b"a", naming=())
    assert (tmp_path / folder / "staging" / "a").exists()


def test_a_folder_that_cannot_have_a_lake(db: Database, tmp_path: Path) -> None:
    """Iceberg's libraries disagree on # in a path. Nothing is written, the Secret neither."""
    done = levada("init", dsn(db), "--dir", tmp_path / "a#b")
    assert done.exit_code == Exit.USAGE
    assert "a folder with # or ?" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lake", ["s3://bucket/lake", "gs://bucket", "file://host/lake", ""])
def test_a_lake_that_is_no_folder(db: Database, tmp_path: Path, lake: str) -> None:
    """An object store is edited into the manifest. No folder of that name comes into being below the current one."""
    done = levada("init", dsn(db), "--dir", tmp_path, "--lake", lake)
    assert done.exit_code == Exit.USAGE
    told = " ".join(done.output.replace("│", " ").split())
    assert "must be a folder of this machine" in told
    assert "edit spec.destination in pipeline.yaml" in told
    assert list(tmp_path.iterdir()) == []


def test_a_lake_by_its_uri(db: Database, tmp_path: Path) -> None:
    """A file URI is the folder that it names."""
    assert levada("init", dsn(db), "--dir", tmp_path, "--lake", f"file://{tmp_path}/l").exit_code == Exit.OK
    assert f'warehouse: "file://{tmp_path}/l"' in (tmp_path / "pipeline.yaml").read_text()


@pytest.mark.parametrize("below", ["file/shop", "/proc/shop"])
def test_a_folder_that_cannot_be_written(db: Database, tmp_path: Path, below: str) -> None:
    """The error has the folder and its hint the option, not a traceback."""
    (tmp_path / "file").touch()
    done = levada("init", dsn(db), "--dir", tmp_path / below)
    assert done.exit_code == Exit.FAILED
    assert "folder_unusable" in done.output
    assert "--dir" in done.output


def test_a_hint_has_no_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that shows a traceback stands for the user's own, without its DSN."""
    for given in ("postgresql://me:s3cret@h/x", "host=h Password = s3cret"):
        monkeypatch.setattr("sys.argv", ["levada", "init", given, "--dir", "shop"])
        show_error(ValueError("s3cret"), debug=False)
    shown = capsys.readouterr().err
    assert shown.count("levada init DSN --dir shop") == 2
    assert "s3cret" not in shown


def test_the_password_of_the_environment(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PGPASSWORD is a password that neither the history of a shell nor a list of processes shows."""
    monkeypatch.setenv("PGPASSWORD", "from the environment")
    given = f"postgresql://postgres@127.0.0.1:{db.server.port}/{db.name}"
    assert levada("init", given, "--dir", tmp_path, "--name", "shop").exit_code == Exit.OK
    assert (tmp_path / "secrets" / "shop-source" / "password").read_text() == "from the environment"


@pytest.mark.parametrize("mode", TlsMode)
def test_every_text_is_a_valid_manifest(mode: TlsMode) -> None:
    """With no table and with many, with unknown sizes, and with each TLS mode."""
    many = {QualifiedTable("s", f"t{i}"): TableEstimate(None, i, "full") if i % 2 else None for i in range(100)}
    for tables in ({}, many):
        new = NewPipeline("a-b", "::1", 5433, "d b", "a-b-source", mode, "file:///lake", "s3://staging", tables)
        found = load_manifests(manifest_text(new)).pipeline.spec
        assert (found.source.tls.mode, found.source.database) == (mode, "d b")
    assert "and 60 more" in manifest_text(new)
