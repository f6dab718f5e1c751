"""The list of faults: one small change of the code each, which breaks a rule that matters."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``before``, which occurs once in ``file``, is replaced by ``after``.

    ``breaks`` says in plain words what is wrong then. ``tests`` are the tests that run first.
    """

    name: str
    rule: str
    file: str
    before: str
    after: str
    breaks: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Return the text of the file with the fault. Raise ValueError unless ``before`` occurs exactly once."""
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"{self.name}: its text occurs {count} times in {self.file}")
        return text.replace(self.before, self.after)


def read_faults() -> tuple[Fault, ...]:
    """Return all faults, in the order of the list."""
    entries = tomllib.loads(LIST.read_text())["fault"]
    return tuple(Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries)
