"""Random choices from a model, and the register of the kinds of statements."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests.histories.history import Step
from tests.histories.model import Column, Model, Table

_T = TypeVar("_T")


class ImpossibleError(Exception):
    """The model has nothing that such a statement could change."""


@dataclass
class Draw:
    """Random choices. ``model`` is replaced before each statement."""

    rng: random.Random
    model: Model
    number: int = 0
    calm: frozenset[str] = field(default=frozenset({"calm"}))
    """Names of tables that get changes of rows alone."""
    traits: dict[str, bool] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    """Names of which a reader may take two for one."""
    focus: str = ""
    """The name of the table that is drawn wherever it fits."""

    def odds(self, share: float) -> bool:
        return self.rng.random() < share

    def trait(self, name: str, histories: float) -> bool:
        """Return True half of the time in a share of the histories, and never in the others."""
        if name not in self.traits:
            self.traits[name] = self.odds(histories)
        return self.traits[name] and self.odds(0.5)

    def one(self, of: Sequence[_T]) -> _T:
        if not of:
            raise ImpossibleError
        return self.rng.choice(of)

    def some(self, of: Sequence[_T], least: int = 1) -> list[_T]:
        """Return some members in random order."""
        if len(of) < least:
            raise ImpossibleError
        return self.rng.sample(of, self.rng.randint(least, len(of)))

    def table(self, wanted: Callable[[Table], bool] = lambda table: True, *, calm: bool = False) -> Table:
        """Return a table. Statements that change more than rows leave the calm ones alone."""
        with_calm = calm and self.odds(0.2 * len(self.calm))
        found = [t for t in self.model.tables if (with_calm or t.name not in self.calm) and wanted(t)]
        return self.one([t for t in found if t.name == self.focus] or found)

    def new(self, prefix: str) -> str:
        """Return a name that the history did not use before."""
        self.number += 1
        return f"{prefix}{self.number}"

    def column(self, table: Table, wanted: Callable[[Column], bool] = lambda column: True) -> Column:
        return self.one([c for c in table.others if wanted(c)])


Make = Callable[[Draw], "list[Step]"]
KINDS: Final[dict[str, tuple[float, Make]]] = {}
"""Each kind of statement with its weight and the function that makes steps of it."""
OF_ROWS: Final[set[str]] = set()
"""Kinds that change rows alone."""


def statement(kind: str, weight: float) -> Callable[[Callable[[Draw], tuple[Table | None, list[str]]]], Make]:
    """Register a function that returns a table and the statements that change it."""

    def register(function: Callable[[Draw], tuple[Table | None, list[str]]]) -> Make:
        def make(draw: Draw) -> list[Step]:
            table, statements = function(draw)
            return [Step(kind, sql, "" if table is None else table.sql) for sql in statements]

        KINDS[kind] = (weight, make)
        if function.__module__.endswith("rows"):
            OF_ROWS.add(kind)
        return make

    return register


Made = tuple[Table | None, list[str]]
"""The table that is changed, and the statements."""
