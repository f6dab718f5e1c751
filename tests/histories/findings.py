"""Findings as values, and what a batch of histories has come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from tests.histories.history import History

Meeting = tuple[str, str, bool]
"""Kinds of two statements that changed one table, in their order, and whether that was in one transaction."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The engine's fate in each phase after the first one, and a restart at the end.

    ``settled``: it has caught up before. ``at once``: it has not. ``stopped``: it is stopped meanwhile. ``killed``: it
    is killed in the middle, and is away for the rest. ``killed in between``: it starts at once. ``killed often``: it is
    killed at any moments of that, and of what it does afterwards, too.
    """

    phases: tuple[str, ...] = ("settled", "settled")
    restart: bool = False
    heal: bool = True

    def __str__(self) -> str:
        return ", ".join((*self.phases, *(["restarted"] if self.restart else [])))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an oracle refutes.

    ``oracle`` is its letter in `tests.histories.oracles`, ``sign`` the kind of fault.
    """

    oracle: str
    sign: str
    detail: str
    history: History
    plan: Plan
    world: str

    @property
    def same(self) -> tuple[str, str]:
        """The part of a finding that a shorter history has to show as well."""
        return self.oracle, self.sign

    @property
    def needs_heal(self) -> bool:
        """Return True if it shows only after hints were followed."""
        return self.sign.startswith(("not healed", "command refused"))

    def __str__(self) -> str:
        return f"({self.oracle}) {self.sign}: {self.detail}\nworld {self.world}, {self.plan}\n{self.history}"


@dataclass
class Tally:
    """Figures of a run."""

    histories: int = 0
    steps: int = 0
    rows: int = 0
    tables: int = 0
    parked: Counter[str] = field(default_factory=Counter)
    meetings: set[Meeting] = field(default_factory=set)

    def add(self, history: History, meetings: Set[Meeting] = frozenset()) -> None:
        self.histories += 1
        self.steps += len(history.steps)
        self.meetings |= meetings
