"""Which part of the engine writes which state of a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from levada.runtime.tables.apply_state import ApplyState
from levada.runtime.tables.copy_state import CopyState

RUNTIME = Path(__file__).parents[2] / "engine/levada/runtime"


@dataclass(frozen=True)
class Owned:
    """A class of state, the names by which the code refers to its objects, and the modules that may change it."""

    state: type
    names: frozenset[str]
    owners: frozenset[str]

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields."""
        return frozenset(f.name for f in fields(self.state))


OWNED = [
    Owned(ApplyState, frozenset({"apply"}), frozenset({"tables/apply_state.py", "stages/apply.py"})),
    Owned(CopyState, frozenset({"copy"}), frozenset({"tables/copy_state.py", "stages/copy.py"})),
]
MUTATORS = frozenset({"set", "clear", "append", "add", "pop", "remove", "update", "extend", "discard"})


def written(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the object's name, the attribute and the line of each write to an attribute.

    A write is an assignment, a deletion, or a call of a mutating method such as ``event.set()``.
    """
    for node in ast.walk(tree):
        target = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            target = node.func.value
        elif not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)):
            continue
        if not isinstance(target, ast.Attribute):
            continue
        of = target.value
        yield of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", ""), target.attr, target.lineno


def intruders(owned: Owned, sources: dict[str, str]) -> list[str]:
    """Return the places outside of the owner's modules that write a field of the state."""
    return [
        f"{module}:{line} writes {name}.{attribute}"
        for module, text in sources.items()
        if module not in owned.owners
        for name, attribute, line in written(ast.parse(text))
        if name in owned.names and attribute in owned.fields
    ]


@pytest.mark.parametrize("owned", OWNED, ids=lambda o: o.state.__name__)
def test_each_state_is_written_by_its_owner_alone(owned: Owned) -> None:
    """Fields are assigned only in the owner's modules. Other parts call the methods of the state."""
    sources = {p.relative_to(RUNTIME).as_posix(): p.read_text() for p in RUNTIME.rglob("*.py")}
    assert owned.owners <= sources.keys()
    assert intruders(owned, sources) == []


@pytest.mark.parametrize(
    "statement",
    [
        "record.apply.rows_applied += 1",
        "apply.pending_since = None",
        "del record.apply.pending_since",
        "a, self.record.apply.last_apply_s = 1, 2",
    ],
)
def test_a_write_from_outside_is_found(statement: str) -> None:
    """The check finds each form of a write."""
    assert intruders(OWNED[0], {"supervisor.py": statement})
    assert not intruders(OWNED[0], {"stages/apply.py": statement})
