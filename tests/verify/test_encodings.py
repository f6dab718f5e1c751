"""Sources whose databases have another encoding than UTF8. A text that cannot be converted concerns its table alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.extension_types import add_hstore
from tests.rigs.pipeline import HELD, reach, table
from tests.rigs.replicated import Replicated, replicated

from levada.runtime.config import TableConfig
from levada.runtime.pipeline import Pipeline
from levada.schema.stored_types import StoredTypes
from levada.status import TableProgress
from levada.values import OnUnrepresentable, QualifiedTable

__all__ = ["replicated"]

_MORE = 12
"""Tables with which more wait for a copy than can be copied at a time."""


@dataclass(frozen=True)
class Encoding:
    """An encoding of a database, with a text that UTF-8 has too, and the bytes of one that it lacks."""

    name: str
    good: str
    bad: str

    @property
    def bad_text(self) -> str:
        """The text that cannot be converted, as SQL."""
        return f"convert_from('\\x{self.bad}', '{self.name}')"


ENCODINGS = (
    Encoding("WIN1252", "na\u00efve \u20ac", "4181"),
    Encoding("EUC_JP", "\u3042\uff71", "41a9a1"),
    Encoding("SQL_ASCII", "\u3042 \u00e9", "41ff"),
)


@pytest.fixture(params=ENCODINGS, ids=lambda e: e.name)
def encoding(request: pytest.FixtureRequest) -> Encoding:
    """Each kind of encoding: one byte for each character, several, and none that is known."""
    found: Encoding = request.param
    return found


@pytest.fixture
def encoded(replicated: Replicated, encoding: Encoding) -> Iterator[Replicated]:
    """A pipeline from a database with the encoding, which is not started yet."""
    name = f"{replicated.db.name}_encoded"
    with psycopg.connect(replicated.db.server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding.name}' TEMPLATE template0 LOCALE 'C'")  # type: ignore[call-overload]  # a name of the test
    replicated.db = Database(replicated.db.server, name)
    run(
        replicated,
        f'CREATE TABLE t (id int PRIMARY KEY, v text, "{encoding.good}" text[], j json, u text)',
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "CREATE TABLE other (id int PRIMARY KEY, v text)",
    )
    yield replicated
    if replicated.pipeline is not None:
        replicated.pipeline.stop()
    replicated.db.close()
    with psycopg.connect(replicated.db.server.uri(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]  # as above


def run(encoded: Replicated, *statements: str) -> None:
    """Run statements at the source."""
    with psycopg.connect(encoded.db.uri, autocommit=True, client_encoding="UTF8") as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]  # made of constants


@pytest.mark.sampled
def test_texts_that_cannot_be_converted_become_null(encoded: Replicated, encoding: Encoding) -> None:
    """In a copy and in changes, alone or in an array, under onUnrepresentable Null. Then both sides are equal."""
    good, bad = f"'{encoding.good}'", encoding.bad_text
    run(
        encoded,
        f"INSERT INTO t VALUES (1, {good}, ARRAY[{good}, NULL], '[1]', 'a'),"
        f" (2, {bad}, ARRAY[{good}, {bad}], '[1]', 'a'), (3, NULL, NULL, json_build_array({bad}), {good})",
    )
    encoded.start(on_unrepresentable=OnUnrepresentable.NULL)
    run(
        encoded,
        f'INSERT INTO t SELECT id + 10, v, "{encoding.good}", j, u FROM t',
        f"INSERT INTO t VALUES (20, repeat({good}, 3000), NULL, NULL, 'a'), (21, {bad}, NULL, NULL, 'a')",
        f"UPDATE t SET u = {bad} WHERE id IN (1, 20)",
        f"UPDATE t SET v = {good} WHERE id = 21",
        "DELETE FROM t WHERE id = 12",
    )
    encoded.wait_caught_up()
    report = encoded.verify()
    assert report.equal, report
    assert report.source_rows == 7
    found = encoded.replica.query("SELECT id, v IS NULL, u FROM shop_public.t ORDER BY id")
    assert [(key, null) for key, null, _ in found] == [
        (1, False), (2, True), (3, True), (11, False), (13, True), (20, False), (21, False),
    ]  # fmt: skip
    assert [u for _, _, u in found] == [None, "a", encoding.good, "a", encoding.good, None, "a"]
    [(arrays,)] = encoded.replica.query(
        f'SELECT array_agg("{encoding.good}"::text ORDER BY id) FROM shop_public.t WHERE id < 12'
    )  # type: ignore[arg-type]  # made of constants
    assert arrays[0] == arrays[3] is not None
    assert arrays[1] is None


@pytest.mark.sampled
def test_a_text_in_a_change_parks_its_table_alone(encoded: Replicated, encoding: Encoding) -> None:
    """The error names the column, and another table goes on, over a restart too."""
    encoded.start(default_table=HELD)
    run(encoded, f"INSERT INTO t VALUES (1, {encoding.bad_text})", f"INSERT INTO other VALUES (1, '{encoding.good}')")
    assert "column v (text)" in str(require_parked(encoded).error)
    reach(pipeline(encoded), lambda p: encoded.replica.query("SELECT FROM shop_public.other") == [()])
    pipeline(encoded).stop()
    encoded.start(default_table=HELD, wait=False)
    require_parked(encoded)
    run(encoded, f"INSERT INTO other VALUES (2, '{encoding.good}')")
    reach(pipeline(encoded), lambda p: encoded.replica.query("SELECT FROM shop_public.other") == [(), ()])


@pytest.mark.sampled
def test_a_text_in_a_copy_parks_its_table_alone(encoded: Replicated, encoding: Encoding) -> None:
    """It has the same error as after a change, and the other table is copied."""
    run(encoded, f"INSERT INTO t VALUES (1, {encoding.bad_text})", f"INSERT INTO other VALUES (1, '{encoding.good}')")
    encoded.start(default_table=HELD, wait=False)
    require_parked(encoded)
    reach(pipeline(encoded), lambda p: table(p, "other").phase == "Ready")


def pipeline(encoded: Replicated) -> Pipeline:
    """Return the pipeline that runs."""
    assert encoded.pipeline is not None
    return encoded.pipeline


def require_parked(encoded: Replicated, code: str = "unrepresentable_value") -> TableProgress:
    """Wait until table ``t`` is parked, and return it."""
    seen = reach(pipeline(encoded), lambda p: any(t.table.name == "t" and t.error for t in p.tables) and p)
    found = table(seen, "t")
    assert found.error is not None
    assert found.error.code == code
    assert "Text" not in found.error.solution, "it parks such a text too"
    return found


@pytest.mark.sampled
def test_ddl_of_names_outside_of_ascii(encoded: Replicated, encoding: Encoding) -> None:
    """It is followed at its place in the stream, as the trigger's message is read in the encoding of the database."""
    encoded.start()
    run(
        encoded,
        f"ALTER TABLE t ADD COLUMN \"{encoding.good}2\" text DEFAULT '{encoding.good}', DROP COLUMN j",
        f"INSERT INTO t (id, v) VALUES (1, '{encoding.good}')",
        f'ALTER TABLE t RENAME "{encoding.good}" TO "{encoding.good}3"; INSERT INTO t (id) VALUES (2)',
    )
    encoded.wait_caught_up()
    assert encoded.verify().equal


@pytest.mark.sampled
def test_a_name_that_cannot_be_converted(encoded: Replicated, encoding: Encoding) -> None:
    """No statement of the application fails. The table with the name is parked alone."""
    encoded.start(default_table=HELD)
    run(
        encoded,
        f"DO $$ BEGIN EXECUTE format('ALTER TABLE t ADD COLUMN %I text', {encoding.bad_text}); END $$",
        "INSERT INTO t VALUES (1, 'a')",
        f"INSERT INTO other VALUES (1, '{encoding.good}')",
    )
    reach(pipeline(encoded), lambda p: encoded.replica.query("SELECT FROM shop_public.other") == [()])
    require_parked(encoded, "malformed_message")


@pytest.mark.sampled
def test_a_column_whose_name_cannot_be_converted(encoded: Replicated, encoding: Encoding) -> None:
    """Its table is parked alone, also among small tables that are copied together."""
    create = f"CREATE TABLE named (id int PRIMARY KEY, %I text)', {encoding.bad_text}"
    run(encoded, f"DO $$ BEGIN EXECUTE format('{create}); END $$", f"INSERT INTO t VALUES (1, '{encoding.good}')")
    run(encoded, *(f"CREATE TABLE more{i} (id int PRIMARY KEY)" for i in range(_MORE)))
    encoded.start(default_table=HELD, wait=False)
    seen = reach(pipeline(encoded), lambda p: p.tables and all(t.error or t.phase == "Ready" for t in p.tables) and p)
    (error,) = [t.error for t in seen.tables if t.error]
    assert error.code == "text_unconvertible"
    assert "table public.named has a column" in error.reason
    assert len(seen.tables) == _MORE + 3
    assert encoded.verify().equal
    # Rewrites of others are found, also without a message of the event trigger.
    run(encoded, "ALTER EVENT TRIGGER levada_ddl DISABLE", "ALTER TABLE other ALTER id TYPE int USING id + 1")
    seen = reach(pipeline(encoded), lambda p: any(t.table.name == "other" and t.error for t in p.tables) and p)
    assert {t.table.name: t.error.code for t in seen.tables if t.error}["other"] == "table_rewritten"
    run(encoded, error.solution.partition(": ")[2])
    pipeline(encoded).retry([QualifiedTable("public", "named")])
    reach(pipeline(encoded), lambda p: all(t.phase == "Ready" for t in p.tables if t.table.name == "named"))


@pytest.mark.sampled
def test_texts_in_a_map(encoded: Replicated, encoding: Encoding) -> None:
    """A map has its keys and values in UTF-8, and is NULL as a whole if one of them cannot be converted."""
    with encoded.db.connect() as connection:
        add_hstore(connection)
    made = "('\"k\"=>\"' || {} || '\"')::hstore"
    good, bad = made.format(f"'{encoding.good}'"), made.format(encoding.bad_text)
    run(
        encoded,
        "ALTER TABLE other ADD h hstore",
        f"INSERT INTO other VALUES (1, '', {good}), (2, '', {bad})",
    )
    types = TableConfig(stored_types=StoredTypes.of({"h": "Map"}))
    encoded.start(on_unrepresentable=OnUnrepresentable.NULL, tables={QualifiedTable("public", "other"): types})
    run(encoded, "INSERT INTO other SELECT id + 10, v, h FROM other")
    encoded.wait_caught_up()
    text = f'"k"=>"{encoding.good}"'
    found = encoded.replica.query("SELECT h FROM shop_public.other ORDER BY id")
    assert found == [(text,), (None,), (text,), (None,)]
    assert encoded.pipeline is not None
    assert encoded.pipeline.verify(QualifiedTable("public", "other")).equal


@pytest.mark.sampled
def test_a_table_whose_name_cannot_be_converted(encoded: Replicated, encoding: Encoding) -> None:
    """It is left out. A start succeeds, and a table that is created later is found, with one like it in the schema."""
    create = f"DO $$ BEGIN EXECUTE format('CREATE TABLE %I (id int PRIMARY KEY)', {{}} || {encoding.bad_text}); END $$"
    run(encoded, create.format("'a'"))
    encoded.start(default_table=HELD)
    run(encoded, create.format("'b'"), f'CREATE TABLE "{encoding.good}" (id int PRIMARY KEY)')
    run(encoded, f'INSERT INTO "{encoding.good}" VALUES (1)', "INSERT INTO other VALUES (1)")
    seen = reach(pipeline(encoded), lambda p: any(t.table.name == encoding.good and t.copy for t in p.tables) and p)
    encoded.wait_caught_up()
    assert sorted(t.table.name for t in seen.tables) == sorted(["other", "t", encoding.good])
    assert pipeline(encoded).verify(QualifiedTable("public", encoding.good)).equal
