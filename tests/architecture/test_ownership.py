"""Each state of a table is written by one part of the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from levada.runtime.tables.apply_state import ApplyState
from levada.runtime.tables.copy_state import CopyState
from levada.runtime.tables.cut_state import CutState
from levada.runtime.tables.place_state import PlaceState
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.resync_state import ResyncState
from levada.runtime.tables.retry_state import RetryState
from levada.runtime.tables.tag_state import TagState

RUNTIME = Path(__file__).parents[2] / "engine/levada/runtime"


@dataclass(frozen=True)
class Owned:
    """A class of state, the names by which the code refers to its objects, and the modules that may change it.

    Only these modules call the methods ``reserved``. Any module may call the others.
    """

    state: type
    names: frozenset[str]
    owners: frozenset[str]
    reserved: frozenset[str] = frozenset()

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields."""
        return frozenset(f.name for f in fields(self.state))


OWNED = [
    Owned(ApplyState, frozenset({"apply"}), frozenset({"tables/apply_state.py", "stages/apply.py"})),
    Owned(CopyState, frozenset({"copy"}), frozenset({"tables/copy_state.py", "stages/copy.py"})),
    Owned(
        ResyncState,
        frozenset({"resync"}),
        frozenset({"tables/resync_state.py", "stages/resync.py"}),
        frozenset({"enter", "begin_again", "finish"}),
    ),
    Owned(RetryState, frozenset({"retries"}), frozenset({"tables/retry_state.py"})),
    Owned(CutState, frozenset({"cut"}), frozenset({"stages/cuts.py"})),
    Owned(TagState, frozenset({"tag"}), frozenset({"stages/lake_cuts.py"})),
    Owned(PlaceState, frozenset({"place"}), frozenset({"tables/place_check.py"})),
]
RECORD_OWNERS = {
    "id": "tables/table_membership.py",
    "name": "tables/table_membership.py",
    "suspended": "tables/table_membership.py",
    "phase": "tables/phase_changes.py",
}
"""The only module that assigns each field of a record. The other fields are assigned by the record's own methods."""
MUTATORS = frozenset({"set", "clear", "append", "add", "pop", "remove", "update", "extend", "discard"})


def written(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the object's name, the attribute and the line of each write to an attribute.

    A write is an assignment, a deletion, or a call of a method of the attribute such as ``event.set()``. A call of a
    method of the object itself is yielded too.
    """
    for node in ast.walk(tree):
        target = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value if node.func.attr in MUTATORS else node.func
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
        if name in owned.names and attribute in owned.fields | owned.reserved
    ]


def sources() -> dict[str, str]:
    """Return the text of each module of the runtime, by its path."""
    return {p.relative_to(RUNTIME).as_posix(): p.read_text() for p in RUNTIME.rglob("*.py")}


@pytest.mark.parametrize("owned", OWNED, ids=lambda o: o.state.__name__)
def test_each_state_is_written_by_its_owner_alone(owned: Owned) -> None:
    """Fields are assigned only in the owner's modules. Other parts call the methods of the state."""
    texts = sources()
    assert owned.owners <= texts.keys()
    assert intruders(owned, texts) == []


def test_identity_and_phase_are_written_by_the_registry_alone() -> None:
    """Each field of a record has one module that assigns it, and no module replaces a state as a whole."""
    texts, names = sources(), {f.name for f in fields(TableRecord)}
    assert set(RECORD_OWNERS.values()) <= texts.keys()
    assert [
        f"{module}:{line} writes {name}.{attribute}"
        for module, text in texts.items()
        for name, attribute, line in written(ast.parse(text))
        if name in {"record", "r"} and attribute in names and RECORD_OWNERS.get(attribute) != module
    ] == []


@pytest.mark.parametrize(
    "statement",
    [
        "record.resync.not_before += 1",
        "resync.outdated = True",
        "del record.resync.error",
        "a, self.record.resync.step = 1, 2",
        "record.resync.cancelled.set()",
        "record.resync.finish()",
    ],
)
def test_a_write_from_outside_is_found(statement: str) -> None:
    """The check finds each form of a write."""
    owned = next(o for o in OWNED if o.state is ResyncState)
    assert intruders(owned, {"supervisor.py": statement})
    assert not intruders(owned, {"stages/resync.py": statement})


@pytest.mark.parametrize("statement", ["record.resync.request()", "n = resync.not_before", "stage.resync(record)"])
def test_reads_and_requests_are_allowed(statement: str) -> None:
    """Every module may read a state and call its methods for requests."""
    owned = next(o for o in OWNED if o.state is ResyncState)
    assert not intruders(owned, {"supervisor.py": statement})


def pool_functions(text: str) -> list[ast.FunctionDef | ast.Lambda]:
    """Return the functions of a module that are marked as running in a pool, and all lambdas."""
    lines = text.splitlines()
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Lambda)
        or (
            isinstance(node, ast.FunctionDef)
            and any("# in a pool" in line for line in lines[node.lineno - 1 : node.body[0].lineno - 1])
        )
    ]


def test_jobs_in_pools_touch_no_record() -> None:
    """Each function that a stage submits is marked, and gets values. Its result goes to the supervisor by the inbox."""
    for module, text in sources().items():
        if not module.startswith("stages/"):
            continue
        functions = pool_functions(text)
        marked = {f.name for f in functions if isinstance(f, ast.FunctionDef)}
        submitted = {
            getattr(node.args[0], "attr", getattr(node.args[0], "id", ""))
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "submit"
        }
        assert submitted <= marked, module
        for function in functions:
            names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            attributes = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
            assert not names & {"record", "records", "resync"}, f"{module}:{function.lineno}"
            assert "_registry" not in attributes, f"{module}:{function.lineno}"
