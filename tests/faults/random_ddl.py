"""Random statements that change and alter one table, some of them in transactions, of which some are rolled back."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

_TYPES = ("int", "bigint", "real", "numeric(10,2)", "varchar(20)", "text", "timestamptz", "date", "uuid")
_CONSTANTS = {
    "int": "7",
    "bigint": "8",
    "real": "0.1",
    "numeric(10,2)": "1.50",
    "varchar(20)": "'short'",
    "text": "'constant'",
    "timestamptz": "'2024-02-03 04:05:06+00'",
    "date": "'2024-02-03'",
    "uuid": "'6f1a2b3c-0000-4000-8000-000000000001'",
}
_COMPUTED = {
    "int": "(random() * 100)::int",
    "bigint": "(random() * 100)::bigint",
    "real": "random()",
    "timestamptz": "clock_timestamp()",
    "uuid": "gen_random_uuid()",
    "text": "md5(random()::text)",
}
_WIDER = {
    "int": ("bigint",),
    "real": ("double precision",),
    "numeric(10,2)": ("numeric(14,2)", "numeric(14,4)"),
    "varchar(20)": ("varchar(40)", "text"),
}


@dataclass
class RandomTable:
    """A table of schema public with the columns ``id``, ``a``, ``big`` and others that come and go."""

    name: str
    rng: random.Random
    columns: dict[str, str] = field(default_factory=dict)
    number: int = 0
    log: list[str] = field(default_factory=list)
    """The statements that were committed."""

    def create(self, connection: psycopg.Connection[Any]) -> None:
        self.columns = {"n": "int", "r": "real"}
        for statement in (
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, a int NOT NULL, big text, n int, r real)",
            f"ALTER TABLE {self.name} ALTER big SET STORAGE EXTERNAL",
            f"CREATE UNIQUE INDEX {self.name}_a ON {self.name} (a)",
            f"CREATE UNIQUE INDEX {self.name}_ida ON {self.name} (id, a)",
            f"INSERT INTO {self.name} SELECT i, i, repeat('x' || i, 1000), i, i FROM generate_series(1, 30) i",
        ):
            connection.execute(statement.encode())

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Run some statements, alone or in one transaction."""
        statements = [s for _ in range(self.rng.randint(1, 6)) for s in self._some()]
        if self.rng.random() < 0.5:
            self.log += [s for s in statements if self._run(connection, s)]
            return
        before, done = dict(self.columns), []
        with connection.transaction():
            for statement in statements:
                known = dict(self.columns)
                with suppress(psycopg.Error), connection.transaction():
                    connection.execute(statement.encode())
                    if self.rng.random() < 0.1:
                        raise psycopg.Rollback
                    done.append(statement)
                    continue
                self.columns = known
            if self.rng.random() < 0.1:
                self.columns = before
                raise psycopg.Rollback
            self.log += ["BEGIN", *done, "COMMIT"]

    def end(self, connection: psycopg.Connection[Any]) -> None:
        """Change a row, because without a change or a trigger the stream does not show what was altered."""
        i = self.rng.randint(100001, 1000000)
        for statement in (
            f"INSERT INTO {self.name} (id, a) VALUES ({i}, {i})",
            f"UPDATE {self.name} SET id = id",
        ):
            if self._run(connection, statement):
                self.log.append(statement)
                return

    def _run(self, connection: psycopg.Connection[Any], statement: str) -> bool:
        with suppress(psycopg.Error):
            connection.execute(statement.encode())
            return True
        return False

    def _some(self) -> list[str]:
        dml = (self._insert, self._update, self._update, self._move, self._swap, self._delete, self._reuse)
        ddl = (
            self._add, self._add, self._drop, self._rename, self._swap_names, self._widen, self._default,
            self._identity, self._key, self._truncate, self._not_null, self._rename_and_back,
            self._rewrite,
        )  # fmt: skip
        return self.rng.choice(dml if self.rng.random() < 0.7 else ddl)()

    def _id(self) -> int:
        return self.rng.randint(1, 40)

    def _insert(self) -> list[str]:
        i = self.rng.randint(1, 100000)
        return [f"INSERT INTO {self.name} (id, a, big) VALUES ({i}, {i}, repeat('y{i}', {self.rng.choice([1, 2000])}))"]

    def _update(self) -> list[str]:
        t = self.name
        names = [n for n, kind in self.columns.items() if kind in ("int", "bigint", "real", "text", "double precision")]
        sets = [f"{n} = (random() * 100)::int" if self.rng.random() < 0.8 else f"{n} = NULL" for n in names]
        chosen = self.rng.sample([*sets, "big = repeat(md5(random()::text), 100)"], 1)
        return [f"UPDATE {t} SET {', '.join(chosen)} WHERE id % 7 = {self.rng.randint(0, 6)}"]

    def _move(self) -> list[str]:
        i = self._id()
        return [
            f"UPDATE {self.name} SET id = id + 1000 WHERE id = {i}"
            if self.rng.random() < 0.5
            else f"UPDATE {self.name} SET a = -a WHERE id = {i}"
        ]

    def _swap(self) -> list[str]:
        t, one, other = self.name, self._id(), self._id()
        return [
            f"DO $$ BEGIN UPDATE {t} SET id = -1 WHERE id = {one}; UPDATE {t} SET id = {one} WHERE id = {other};"
            f" UPDATE {t} SET id = {other} WHERE id = -1; END $$"
        ]

    def _delete(self) -> list[str]:
        return [f"DELETE FROM {self.name} WHERE {self.rng.choice(['id', 'a'])} = {self._id()}"]

    def _reuse(self) -> list[str]:
        i = self._id()
        return [
            f"DELETE FROM {self.name} WHERE id = {i}",
            f"INSERT INTO {self.name} (id, a, big) VALUES ({i}, {i}, 'again')",
        ]

    def _add(self) -> list[str]:
        self.number += 1
        kind, name = self.rng.choice(_TYPES), f"c{self.number}"
        self.columns[name] = kind
        default = self.rng.choice(["", f" DEFAULT {_CONSTANTS[kind]}", f" NOT NULL DEFAULT {_CONSTANTS[kind]}"])
        if self.rng.random() < 0.1 and kind in _COMPUTED:
            default = f" DEFAULT {_COMPUTED[kind]}"
        statements = [f"ALTER TABLE {self.name} ADD {name} {kind}{default}"]
        if self.rng.random() < 0.4:
            statements += self._of(name)
        return statements

    def _of(self, name: str) -> list[str]:
        """Return a change of the default of one column."""
        constant = _CONSTANTS.get(self.columns[name], "NULL")
        change = self.rng.choice([f"SET DEFAULT {constant}", "SET DEFAULT NULL", "DROP DEFAULT"])
        return [f"ALTER TABLE {self.name} ALTER {name} {change}"]

    def _one(self) -> str | None:
        return self.rng.choice(list(self.columns)) if self.columns else None

    def _drop(self) -> list[str]:
        if (name := self._one()) is None:
            return []
        kind = self.columns.pop(name)
        statements = [f"ALTER TABLE {self.name} DROP {name}"]
        if self.rng.random() < 0.4:
            self.columns[name] = kind
            statements.append(f"ALTER TABLE {self.name} ADD {name} {kind}")
        return statements

    def _rename(self) -> list[str]:
        if (name := self._one()) is None:
            return []
        self.number += 1
        self.columns[f"c{self.number}"] = self.columns.pop(name)
        return [f"ALTER TABLE {self.name} RENAME {name} TO c{self.number}"]

    def _swap_names(self) -> list[str]:
        if len(self.columns) < 2:
            return []
        one, other = self.rng.sample(list(self.columns), 2)
        self.columns[one], self.columns[other] = self.columns[other], self.columns[one]
        t = self.name
        return [
            f"DO $$ BEGIN ALTER TABLE {t} RENAME {one} TO moving; ALTER TABLE {t} RENAME {other} TO {one};"
            f" ALTER TABLE {t} RENAME moving TO {other}; END $$"
        ]

    def _widen(self) -> list[str]:
        name = self._one()
        if name is None or self.columns[name] not in _WIDER:
            return []
        self.columns[name] = self.rng.choice(_WIDER[self.columns[name]])
        return [f"ALTER TABLE {self.name} ALTER {name} TYPE {self.columns[name]}"]

    def _default(self) -> list[str]:
        return [] if (name := self._one()) is None else self._of(name)

    def _identity(self) -> list[str]:
        t = self.name
        return [
            f"ALTER TABLE {t} REPLICA IDENTITY "
            + self.rng.choice(
                [
                    "FULL",
                    "FULL",
                    "DEFAULT",
                    "DEFAULT",
                    "DEFAULT",
                    f"USING INDEX {t}_a",
                    f"USING INDEX {t}_ida",
                    "NOTHING",
                ]
            )
        ]

    def _key(self) -> list[str]:
        t = self.name
        return [
            f"ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
            *(self._some() if self.rng.random() < 0.7 else []),
            f"ALTER TABLE {t} ADD CONSTRAINT {t}_pkey PRIMARY KEY ({self.rng.choice(['id', 'id', 'a', 'id, a'])})",
        ]

    def _truncate(self) -> list[str]:
        return [f"TRUNCATE {self.name}"] if self.rng.random() < 0.3 else []

    def _not_null(self) -> list[str]:
        name = self.rng.choice([*self.columns, "big"])
        return [f"ALTER TABLE {self.name} ALTER {name} {self.rng.choice(['SET', 'DROP'])} NOT NULL"]

    def _rename_and_back(self) -> list[str]:
        t = self.name
        return [f"DO $$ BEGIN ALTER TABLE {t} RENAME TO moving; ALTER TABLE moving RENAME TO {t}; END $$"]

    def _rewrite(self) -> list[str]:
        if self.rng.random() < 0.5:
            return [f"VACUUM FULL {self.name}"]
        return [f"ALTER TABLE {self.name} ALTER a TYPE bigint"] if self.rng.random() < 0.3 else []
