"""Histories as values, with text in which ``{s}`` stands for the schema of a history."""

from __future__ import annotations

from dataclasses import dataclass, replace

MARK = "{s}"
BEGIN_HISTORY = "begin history"
"""The kind of statements that create schemas and types, which come before all others."""
PUBLICATION = "{p}"
"""Stands for the publication of the pipeline."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement. ``kind`` names what it does, for the coverage and for the causes of errors.

    ``table`` is the table that it changes, quoted, before it runs. ``phase`` counts the parts of a history, between
    which the engine may catch up or be killed. A COPY has its rows after the first line.
    """

    kind: str
    sql: str
    table: str = ""
    session: int = 0
    phase: int = 0

    def __str__(self) -> str:
        return f"{self.phase}/{self.session}: {self.sql[:400]};"


@dataclass(frozen=True, slots=True)
class History:
    """Some statements in the order in which they begin and end."""

    seed: int
    steps: tuple[Step, ...]
    transform: str = ""
    """Partitioning in the lake of the table named parted."""

    def without(self, start: int, stop: int) -> History:
        """Return the history without some steps."""
        return replace(self, steps=self.steps[:start] + self.steps[stop:])

    def in_phase(self, number: int) -> list[Step]:
        """Return the steps of one phase."""
        return [step for step in self.steps if step.phase == number]

    @property
    def phases(self) -> int:
        return max((step.phase for step in self.steps), default=0) + 1

    def __str__(self) -> str:
        parted = f", parted by {self.transform}" if self.transform else ""
        return "\n".join([f"seed {self.seed}{parted}, phase/session: statement", *(f"  {step}" for step in self.steps)])


def rendered(text: str, schema: str, publication: str = "") -> str:
    """Return the text for a schema and a publication."""
    return text.replace(MARK, schema).replace(PUBLICATION, publication)


def quoted(name: str) -> str:
    """Return an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'
