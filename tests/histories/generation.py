"""Histories made statement by statement, each of which follows from the twin's tables at that moment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg
from tests.histories import columns, many_rows, partitions, publications, rows, successions, tables
from tests.histories.draw import KINDS, OF_ROWS, Draw, ImpossibleError
from tests.histories.findings import Meeting
from tests.histories.history import BEGIN_HISTORY, History, Step
from tests.histories.model import read_model
from tests.histories.player import SESSIONS, Outcome, Player
from tests.histories.returns import published_again, way_back
from tests.histories.stored import CREATE, TABLE
from tests.histories.world import EDITED, FILTERED, Form

MODULES: Final = (rows, many_rows, columns, tables, partitions, successions, publications)
"""The modules that register kinds of statements."""
_ALL: Final = {kind: weight for kind, (weight, _) in KINDS.items()}
_CREATING: Final = ("create table", "create partitioned table")
_ROWS: Final = ("insert", "insert", "insert many", "upsert", "update")
_TOUCHING: Final = ("update", "update", "move key", "delete", "insert", "upsert")
"""Kinds that change rows of a table after a statement of another kind has changed the table."""
_UNMET: Final = 3
"""The factor by which kinds are drawn more often that have not met each other yet."""
_OF_PARTITIONS: Final = 0.3
"""The share of histories that change the partitions of a table for certain, besides those that do by chance."""
_OF_SUCCESSIONS: Final = 0.3
"""The share that puts one table, column or key in the place of another one for certain."""
_ALONE: Final = 0.3
"""The share whose tables are changed by statements of one kind, because a table that others park shows nothing."""
_SUCCESSIONS: Final = ("column again", "key for a while", "table again", "rename chain", "table becomes partition")
_OVER_FILES: Final = {
    kind: KINDS[kind][0]
    for kind in (
        "add column", "add two columns", "drop column", "drop and add column", "rename column", "swap columns",
        "widen column", "retype column", "default", "not null", "replace key", "key of a new column",
    )
} | {"add filled column": 20.0}  # fmt: skip
"""Kinds after which files at the destination are read or written, with their weights.

That which writes a value to each row of a file is drawn often, because what it writes has many types.
"""
_EVERYWHERE: Final = 0.04
"""The share of steps that change all tables of a history."""
_EMPTYING: Final = ("delete all", "truncate")
_HOLLOW: Final = (*[["delete all"]] * 3, ["update", "delete all"], ["delete"], ["truncate"])
"""Statements after which a table has few rows or none."""
_REFILLED: Final = 0.5
"""The share of the tables that get rows at the end of a phase."""
_MUCH: Final = ("insert much", "insert much", "update much", "move many keys", "delete much")
_LARGE: Final = (
    "CREATE TABLE {s}.large (k1 int PRIMARY KEY, k2 int, c1 text, c2 int[], big text NOT NULL DEFAULT '')",
    "ALTER TABLE {s}.large ALTER COLUMN c1 SET STORAGE EXTERNAL",
)
"""A table that takes every statement of many rows. Its long texts are not compressed."""
_ENDS: Final[tuple[list[str | None], ...]] = (
    [],
    [],
    ["truncate", "insert"],
    ["truncate"],
    ["delete all", "insert"],
)
"""The end of a transaction of several statements. A table that is emptied has no row that was rewritten."""
_TYPES: Final = (
    "CREATE SCHEMA {s}",
    "CREATE SCHEMA b_{s}",
    "CREATE TYPE {s}.mood AS ENUM ('good', 'bad')",
    "CREATE TYPE {s}.pair AS (x int, y text)",
    "CREATE DOMAIN {s}.positive AS int CHECK (VALUE > 0)",
    "CREATE TABLE {s}.calm (k1 int PRIMARY KEY, c1 text)",
)
_PARTED: Final = (
    "CREATE TABLE {s}.parted (k1 int PRIMARY KEY, i int, b bigint, t text, d date, ts timestamp, n numeric(10,2))"
)
_MASKED: Final = "CREATE TABLE {s}.masked (k1 int PRIMARY KEY, c1 text, c2 varchar(20), c3 int, c4 text, c5 text)"
_FILTERED: Final = (
    "CREATE TABLE {s}.filtered (k1 int PRIMARY KEY, c1 text, c2 int)",
    "INSERT INTO {s}.filtered SELECT i, 'n' || i, i FROM generate_series(-3, 12) i",
)
_EDITED: Final = "CREATE TABLE {s}.edited (k1 int PRIMARY KEY, c1 text, c2 varchar(20), c3 int, c4 text, c5 text)"
_REMASKED: Final = 0.3
"""The share of histories whose masks change after the first phase."""


def _comments(rng: random.Random) -> list[str]:
    """Return statements that mask some columns of the table of masks."""
    words = ("hmac", "null", "truncate:3", "last:4")
    of_texts = [(column, rng.choice(words)) for column in rng.sample(("c1", "c2", "c4", "c5"), rng.randint(1, 3))]
    others = [("c3", rng.choice(("hmac", "null"))), *([("k1", "hmac")] if rng.random() < 0.3 else [])]
    return [f"COMMENT ON COLUMN {{s}}.masked.{column} IS 'levada:mask={word}'" for column, word in of_texts + others]


def swarm(rng: random.Random, met: Set[Meeting], *, alone: bool = False) -> dict[str, float]:
    """Return the kinds of statements of one history, with their weights: few of them, so that they meet.

    A history of all kinds rarely has two of a rare pair, and its others explain what that pair causes:
    https://users.cs.utah.edu/~regehr/papers/swarm12.pdf

    Kinds that have not ``met`` those which are there already are drawn more often. With ``alone`` there is one kind.
    """
    if not alone and rng.random() < 0.15:
        return dict(_ALL)
    of_rows = rng.sample(sorted(OF_ROWS), rng.randint(3, 8))
    others: list[str] = []
    wanted, left = 1 if alone else rng.choice((1, 2, 2, 3, 4, 8)), sorted(KINDS.keys() - OF_ROWS)
    if rng.random() < _OF_PARTITIONS:
        # Most kinds leave a partition where it is, so that two that move one rarely meet by themselves.
        moving = [kind for kind in left if "partition" in kind]
        others = rng.choices(moving, [KINDS[kind][0] for kind in moving])
        left.remove(others[0])
    elif rng.random() < _OF_SUCCESSIONS / (1 - _OF_PARTITIONS):
        others = [rng.choice(_SUCCESSIONS)]
        left.remove(others[0])
    while len(others) < wanted:
        others += rng.choices(left, [KINDS[kind][0] * (_UNMET if _news(kind, others, met) else 1) for kind in left])
        left.remove(others[-1])
    # Some rows have to be there for whatever else happens.
    rows = {kind: KINDS[kind][0] for kind in sorted({*of_rows, "insert"})}
    share = 0.2 if alone else rng.choice((0.3, 0.5, 0.7))
    return rows | dict.fromkeys(others, sum(rows.values()) / len(others) * share / (1 - share))


def _news(kind: str, others: Sequence[str], met: Set[Meeting]) -> bool:
    """Return True if the kind has not changed a table yet that one of the others changes, before it or after it.

    Two statements of one transaction are another meeting than those of two.
    """
    return any(meeting not in met for o in others for t in (True, False) for meeting in ((kind, o, t), (o, kind, t)))


@dataclass
class _Session:
    """The transaction of a session."""

    open: bool = False
    failed: bool = False
    savepoints: int = 0


@dataclass
class Generator:
    """Makes one history on a twin database, and plays it there meanwhile."""

    seed: int
    player: Player
    form: Form = field(default_factory=Form)
    met: Set[Meeting] = frozenset()
    """Those of earlier histories."""
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.sessions = [_Session() for _ in range(SESSIONS)]
        self.several = self.rng.random() < (0.7 if self.form.small else 0.2)
        self.phase = 0
        self.draw = Draw(self.rng, read_model(self.player.connection(0), self.player.schema))
        self.draw.calm |= {
            name for name, there in ((FILTERED, self.form.filtered), (EDITED, self.form.edited)) if there
        }
        alone = self.rng.random() < _ALONE
        self.weights = swarm(self.rng, self.met, alone=alone)
        self.bursts = self.rng.choice((0.05, 0.15, 0.4))
        """The share of steps that are a transaction of several statements."""
        self.lates = self.rng.choice((0, 0.1, 0.2))
        """The share of steps that are a transaction which has a lower number than those that it comes after."""
        self.excursions = 0 if alone else self.rng.choice((0, 0.4, 0.7))
        """The share of steps that are a change and a return."""
        self.larges = self.rng.choice((0.2, 0.5) if self.form.small else (0, 0, 0.2))
        """The share of steps that are a large transaction."""
        self.hollows = 0 if alone else self.rng.choice((0, 0.2, 0.6))
        """The share of steps that change a table whose rows are deleted."""
        self.careful = False
        """True while a statement that fails is no part of the history, so that those around it are."""
        self.transactions = [0] * SESSIONS
        self.changes: list[tuple[int, str, tuple[int, int]]] = []
        """The OID of a table, the kind of the statement that changed it, and its session and transaction there."""

    def run(self) -> History:
        """Make a history of two to four phases, the first of which creates tables with some rows."""
        for sql in _TYPES:
            self._play([Step(BEGIN_HISTORY, sql)])
        if self.form.partitioned:
            self._play([Step("create table", _PARTED)])
        if self.form.filtered:
            self._play([Step("create table", sql) for sql in _FILTERED])
        if self.form.edited:
            self._play([Step("create table", _EDITED)])
        if self.form.small:
            self._play([Step("create table", sql) for sql in _LARGE])
        if self.form.stored:
            self._play([Step("create table", CREATE)])
        if self.form.masks:
            for sql in (_MASKED, *_comments(self.rng)):
                self._play([Step("create table" if sql is _MASKED else "mask", sql, '{s}."masked"')])
        partitions = sum("partition" in kind for kind in self.weights)
        for _ in range(self.rng.choice((1, 1, 2))):
            self._statement(self.rng.choices(_CREATING, (0.5, partitions or 0.2))[0])
        for _ in range(self.rng.randint(2, 4)):
            self._statement(self.rng.choice(_ROWS))
        if self.form.partitioned:
            self._touch("parted", 0)
        if self.form.masks:
            self._touch("masked", 0)
        if self.form.filtered:
            self._touch(FILTERED, 0)
        for table in [TABLE] * self.form.stored + [EDITED] * self.form.edited:
            for _ in range(4):
                self._touch(table, 0)
        self._end_phase()
        if self.form.masks and self.rng.random() < _REMASKED:
            self._play([Step("mask", sql, '{s}."masked"') for sql in _comments(self.rng)])
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            self._hollow_some()
            for _ in range(self.rng.randint(3, 10)):
                self._next()
            self._end_phase()
        return History(self.seed, tuple(self.steps))

    def _next(self) -> None:
        number = self.rng.randrange(SESSIONS) if self.several and self.rng.random() < 0.4 else 0
        session, chance = self.sessions[number], self.rng.random()
        ways = {
            self._burst: self.bursts,
            self._late: self.lates,
            self._excursion: self.excursions,
            self._large: self.larges,
            self._everywhere: _EVERYWHERE,
            self._hollow: self.hollows,
        }
        if not session.open and not session.failed and self.rng.random() < sum(ways.values()):
            [way] = self.rng.choices(list(ways), list(ways.values()))
            way(number)
            return
        if session.failed:
            self._control("ROLLBACK TO SAVEPOINT s" if session.savepoints and chance < 0.7 else "ROLLBACK", number)
        elif not session.open and chance < 0.2:
            isolation = self.rng.choice(
                ("", "", "", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE")
            )
            self._control(f"BEGIN{isolation}", number)
        elif session.open and chance < 0.28:
            self._control(self._end_or_savepoint(session), number)
        else:
            table = self._statement(None, number)
            if table and self.rng.random() < 0.6:
                self._touch(table, number)

    def _touch(self, table: str, number: int) -> None:
        """Change rows of a table, sometimes after another change of the table itself."""
        before, self.draw.focus = self.draw.focus, table
        kinds = [None] * (self.rng.random() < 0.3) + self.rng.sample(_TOUCHING, self.rng.choice((1, 2)))
        for kind in kinds:
            if not self.sessions[number].failed:
                self._statement(kind, number)
        self.draw.focus = before

    def _burst(self, number: int) -> None:
        """Play some statements in one transaction, most often on one table."""
        self._control("BEGIN", number)
        tables = [t.name for t in self.draw.model.tables if t.name not in self.draw.calm]
        self.draw.focus = self.rng.choice(tables) if tables and self.rng.random() < 0.8 else ""
        for kind in [None] * self.rng.randint(2, 4) + self.rng.choice(_ENDS):
            if not self.sessions[number].failed:
                self._statement(kind, number)
        self.draw.focus = ""
        self._control("ROLLBACK" if self.sessions[number].failed else "COMMIT", number)

    def _late(self, number: int) -> None:
        """Change a table in a transaction that has its number since before other ones change the table and its rows."""
        late = (number + 1) % SESSIONS
        if self.sessions[late].open or self.sessions[late].failed:
            return
        self._refresh(number)
        tables = [t.name for t in self.draw.model.tables if t.name not in self.draw.calm]
        self._control("BEGIN", late)
        self._play([Step("begin", "SELECT pg_current_xact_id()", session=late)])
        self.draw.focus = self.rng.choice(tables) if tables else ""
        for kind in [*[None] * self.rng.choice((0, 1)), *self.rng.sample(_TOUCHING, self.rng.choice((1, 2)))]:
            self._statement(kind, number)
        # Not within savepoints, which have numbers of their own.
        for kind in [None] * self.rng.choice((1, 2)) + self.rng.choice(_ENDS):
            if not self.sessions[late].failed:
                self._statement(kind, late, self.weights if kind is None else None)
        self.draw.focus = ""
        if self.sessions[late].open:
            self._control("ROLLBACK" if self.sessions[late].failed else "COMMIT", late)

    def _excursion(self, number: int) -> None:
        """Change a table, then its rows, and let it return to what it was, most often in one transaction.

        Between two looks nothing has changed then, and what was changed away from its place has come with it.
        """
        self._refresh(number)
        tables = [t.name for t in self.draw.model.tables if t.name not in self.draw.calm]
        self.draw.focus, self.careful = (self.rng.choice(tables) if tables else ""), True
        for _ in range(self.rng.choice((0, 1, 3))):
            self._statement(self.rng.choice(_ROWS), number)
        together = self.rng.random() < 0.7
        if together:
            self._control("BEGIN", number)
        self._refresh(number)
        former, begun = self.draw.model, len(self.steps)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self._statement(None, number, self.rng.choice((self.weights, _ALL)))
        self._refresh(number)
        left = [t.name for t in self.draw.model.tables if t not in former.tables and t.name not in self.draw.calm]
        for _ in range(self.rng.choice((1, 2, 3))):
            # Rows of whatever has left its place, by its own name, and those of other tables.
            self.draw.focus = self.rng.choice(left or tables or [""]) if self.rng.random() < 0.7 else ""
            self._statement(self.rng.choice(_TOUCHING + _EMPTYING), number)
        self._refresh(number)
        back = way_back(self.draw, former, self.draw.model, another=self.rng.random() < 0.2)
        for step in [*back, *published_again(self.steps[begun:])]:
            self._play([replace(step, session=number)])
        self.draw.focus = ""
        for _ in range(self.rng.choice((0, 1, 2))):
            self._statement(self.rng.choice(_TOUCHING), number)
        self.careful = False
        if together:
            self._control("COMMIT", number)

    def _everywhere(self, number: int) -> None:
        """Play statements of one kind on each table, most often in one transaction."""
        self._refresh(number)
        kind, self.careful = self._of_more(self.rng.choice((self.weights, _ALL))), True
        together = self.rng.random() < 0.7
        if together:
            self._control("BEGIN", number)
        for table in self.draw.model.tables:
            if table.name not in self.draw.calm and (self.sessions[number].open or not together):
                self.draw.focus = table.name
                self._statement(kind, number)
        self.draw.focus, self.careful = "", False
        if together and self.sessions[number].open:
            self._control("COMMIT", number)

    def _hollow_some(self) -> None:
        """Change some tables whose rows are deleted, at the begin of a phase: most rows are in files by then."""
        if self.rng.random() < min(1, self.hollows * 2):
            for table in self._filled(0):
                if self.rng.random() < 0.6:
                    self._hollow(0, table)

    def _hollow(self, number: int, table: str = "") -> None:
        """Delete the rows of a table, all or many, change what its files have, and insert rows again.

        Each is a transaction of its own, so that files are there in which no row is left.
        """
        filled = [table] if table else self._filled(number)
        self.draw.focus, self.careful = (self.rng.choice(filled) if filled else ""), True
        for kind in self.rng.choice(_HOLLOW):
            self._statement(kind, number)
        for _ in range(self.rng.choice((1, 1, 2))):
            self._statement(None, number, _OVER_FILES)
        for kind in self.rng.choice(([], ["insert many"], ["insert"], ["upsert", "update"])):
            self._statement(kind, number)
        self.draw.focus, self.careful = "", False

    def _filled(self, number: int) -> list[str]:
        """Return the tables that have rows and columns of their own, which those that inherit have not."""
        self._refresh(number)
        alone = [t for t in self.draw.model.tables if t.name not in self.draw.calm and not t.parent]
        return [t.name for t in alone if self.player.has_rows(number, t.sql)]

    def _large(self, number: int) -> None:
        """Play a transaction of many rows, with savepoints and DDL in it, and sometimes leave it open."""
        self._refresh(number)
        tables = [t.name for t in self.draw.model.tables if t.name not in self.draw.calm]
        fit = [n for n in tables if n == "large"] or tables
        self._control("BEGIN", number)
        for _ in range(self.rng.randint(1, 3)):
            within = self.rng.random() < 0.5
            if within:
                self._control("SAVEPOINT s", number)
            self.draw.focus, self.careful = self.rng.choice(fit if fit and self.rng.random() < 0.8 else [""]), True
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                if self.sessions[number].open:
                    more = self.weights if self.rng.random() < 0.25 else None
                    self._statement(None if more else self.rng.choice(_MUCH), number, more)
            self.draw.focus, self.careful = "", False
            if not self.sessions[number].open:
                return  # another session's lock has ended it
            if within and self.rng.random() < 0.8:
                self._control(self.rng.choice(("ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s")), number)
        # One that is left open ends later, or with the phase.
        if self.rng.random() < 0.4:
            self._control(self.rng.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")), number)

    def _end_or_savepoint(self, session: _Session) -> str:
        ends = ["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT s", "SAVEPOINT s"]
        if session.savepoints:
            ends += ["ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s"] * 2
        elif self.rng.random() < 0.3:
            ends = [f"PREPARE TRANSACTION '{{s}} {self.draw.new('p')}'"]
        return self.rng.choice(ends)

    def _control(self, sql: str, number: int) -> None:
        session = self.sessions[number]
        self.transactions[number] += 1
        [outcome] = self._play([Step(" ".join(sql.split()[:2]).lower(), sql, session=number)])
        if outcome.state:
            session.failed = session.open
            return
        match sql.split()[0]:
            case "BEGIN":
                self.sessions[number] = _Session(open=True)
            case "SAVEPOINT":
                session.savepoints += 1
            case "RELEASE":
                session.savepoints -= 1
            case "ROLLBACK" if "TO" in sql:
                session.failed = False
            case _:
                self.sessions[number] = _Session()
        if sql.startswith("PREPARE"):
            end = self.rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            self._play([Step(f"{end.lower()} prepared", f"{end} PREPARED{sql[len('PREPARE TRANSACTION') :]}")])

    def _statement(self, kind: str | None, number: int = 0, more: Mapping[str, float] | None = None) -> str:
        """Play a statement. Return the name of the table of which it has changed more than rows, most often empty.

        It has the kind, or one of the weighted kinds that change ``more`` than rows, or one of the history's kinds.
        """
        for _ in range(8):
            chosen = kind or (self._kind(number) if more is None else self._of_more(more))
            if not self._refresh(number):
                return ""
            try:
                made = KINDS[chosen][1](self.draw)
            except ImpossibleError:
                continue
            outcomes = self._play([replace(step, session=number) for step in made])
            if self.careful and outcomes[-1].state:
                continue
            changed = chosen not in OF_ROWS and not outcomes[-1].state
            return made[-1].table.partition(".")[2].strip('"') if changed else ""
        return ""

    def _kind(self, number: int) -> str:
        """Draw a kind of statement. In a transaction, statements of DDL meet each other and rows more often."""
        if self.sessions[number].open and self.rng.random() < 0.4:
            return self._of_more(self.weights)
        return self.rng.choices(list(self.weights), list(self.weights.values()))[0]

    def _of_more(self, weights: Mapping[str, float]) -> str:
        """Draw a kind of statement that changes more than rows."""
        kinds = [kind for kind in weights if kind not in OF_ROWS]
        return self.rng.choices(kinds, [weights[kind] for kind in kinds])[0]

    def _refresh(self, number: int) -> bool:
        """Read the model. If a lock of another session prevents that, end the transaction and return False."""
        try:
            self.draw.model = read_model(self.player.connection(number), self.player.schema)
        except psycopg.Error:
            if self.sessions[number].open:
                # No savepoint can be made in a transaction that has failed.
                careful, self.careful = self.careful, False
                self._control("ROLLBACK", number)
                self.careful = careful
            return False
        return True

    def _play(self, steps: list[Step]) -> list[Outcome]:
        made = []
        for step in steps:
            placed = replace(step, phase=self.phase)
            number = placed.session
            if self.careful:
                outcome = self.player.tried(placed, together=self.sessions[number].open)
                if outcome.state:
                    made.append(outcome)
                    break
            else:
                outcome = self.player.play(placed)
            self._changed(placed)
            self.steps.append(placed)
            self.outcomes.append(outcome)
            made.append(outcome)
            if outcome.state:
                self.sessions[placed.session].failed = self.sessions[placed.session].open
                break
        return made

    def _changed(self, step: Step) -> None:
        """Note that a statement changes its table. A table that it creates is not there yet."""
        if not self.sessions[step.session].open:
            self.transactions[step.session] += 1
        table = self.draw.model.named(step.table)
        if table is not None:
            self.changes.append((table.oid, step.kind, (step.session, self.transactions[step.session])))

    @property
    def meetings(self) -> set[Meeting]:
        """Return the kinds of statements that changed the same table, one after the other."""
        of_table: dict[int, list[tuple[str, tuple[int, int]]]] = {}
        for oid, kind, transaction in self.changes:
            of_table.setdefault(oid, []).append((kind, transaction))
        return {
            (a, b, one == other)
            for changes in of_table.values()
            for i, (a, one) in enumerate(changes)
            for b, other in changes[i + 1 :]
        }

    def _end_phase(self) -> None:
        for number, session in enumerate(self.sessions):
            if session.open:
                self._control("ROLLBACK" if session.failed else "COMMIT", number)
            self.sessions[number] = _Session()
        self._refill()
        self.player.end_phase()
        self.phase += 1

    def _refill(self) -> None:
        """Insert rows into some tables, so that most have some which can differ, and some which can be emptied."""
        self._refresh(0)
        self.careful = True
        for table in [t.name for t in self.draw.model.tables if t.name not in self.draw.calm]:
            if self.rng.random() < _REFILLED:
                self.draw.focus = table
                self._statement(self.rng.choice(("insert", "insert many")))
        self.draw.focus, self.careful = "", False
