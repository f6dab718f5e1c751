"""Each state of a table is written by one part of the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.lint.tree import Finding, Module, Tree

RUNTIME: Final = "engine/levada/runtime"


@dataclass(frozen=True)
class Owned:
    """A class of state, its module, the name of its objects in the code, and the modules that may change it.

    Only these modules call the methods ``reserved``. Any module may call the others.
    """

    state: str
    module: str
    name: str
    owners: frozenset[str]
    reserved: frozenset[str] = frozenset()


OWNED: Final = (
    Owned("ApplyState", "tables/apply_state.py", "apply", frozenset({"tables/apply_state.py", "stages/apply.py"})),
    Owned("CopyState", "tables/copy_state.py", "copy", frozenset({"tables/copy_state.py", "stages/copy.py"})),
    Owned(
        "ResyncState",
        "tables/resync_state.py",
        "resync",
        frozenset({"tables/resync_state.py", "stages/resync.py"}),
        frozenset({"enter", "begin_again", "finish"}),
    ),
    Owned("RetryState", "tables/retries.py", "retries", frozenset({"tables/retries.py"})),
    Owned("HoldState", "tables/hold_state.py", "hold", frozenset({"stages/holds.py"})),
    Owned("TagState", "tables/hold_state.py", "tag", frozenset({"stages/lake_cuts.py"})),
    Owned("PlaceState", "tables/record.py", "place", frozenset({"tables/place_check.py"})),
)
RECORD: Final = "tables/record.py"
RECORD_OWNERS: Final = {
    "id": "tables/table_membership.py",
    "name": "tables/table_membership.py",
    "suspended": "tables/table_membership.py",
    "phase": "tables/phase_changes.py",
}
"""The only module that assigns each field of a record. The other fields are assigned by the record's own methods."""
MUTATORS: Final = frozenset({"set", "clear", "append", "add", "pop", "remove", "update", "extend", "discard"})


def state_owners(tree: Tree) -> Iterator[Finding]:
    """Report writes of a state's fields outside of its owner's modules. Others call the methods of the state."""
    for owned in OWNED:
        fields = _fields(tree, owned.module, owned.state)
        for owner in sorted(owned.owners):
            if not tree.has(f"{RUNTIME}/{owner}"):
                yield Finding(f"{RUNTIME}/{owner}", 0, f"the owner of {owned.state} does not exist, correct OWNED")
        for path, line, name, attribute in _writes(tree):
            if name == owned.name and attribute in fields | owned.reserved and path not in owned.owners:
                yield Finding(f"{RUNTIME}/{path}", line, f"only {sorted(owned.owners)} may write {name}.{attribute}")


def record_owners(tree: Tree) -> Iterator[Finding]:
    """Report writes of a record's identity and phase outside of the registry, and states replaced as a whole."""
    fields = _fields(tree, RECORD, "TableRecord")
    for owner in sorted(set(RECORD_OWNERS.values())):
        if not tree.has(f"{RUNTIME}/{owner}"):
            yield Finding(f"{RUNTIME}/{owner}", 0, "the owner of a field does not exist, correct RECORD_OWNERS")
    for path, line, name, attribute in _writes(tree):
        if name in {"record", "r"} and attribute in fields and RECORD_OWNERS.get(attribute) != path:
            owner = RECORD_OWNERS.get(attribute, "a method of the record")
            yield Finding(f"{RUNTIME}/{path}", line, f"only {owner} may write {name}.{attribute}")


def pool_jobs(tree: Tree) -> Iterator[Finding]:
    """Report submitted functions without the mark ``# in a pool``, and those with it that use a record or registry."""
    for path in tree.below(f"{RUNTIME}/stages"):
        module = tree.module(path)
        functions = _pool_functions(module, tree.text(path).splitlines())
        marked = {f.name for f in functions if isinstance(f, ast.FunctionDef)}
        for call in module.nodes(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "submit" and call.args:
                name = getattr(call.args[0], "attr", getattr(call.args[0], "id", ""))
                if name not in marked:
                    yield Finding(path, call.lineno, f"{name or 'the function'} is submitted, mark it by # in a pool")
        for function in functions:
            used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} & {"record", "records", "resync"}
            used |= {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)} & {"_registry"}
            if used:
                yield Finding(path, function.lineno, f"a job in a pool uses {sorted(used)}, pass values to it")


def _writes(tree: Tree) -> Iterator[tuple[str, int, str, str]]:
    """Yield the module within the runtime, the line, the object's name and the attribute of each write.

    A write is an assignment, a deletion, or a call of a method of the attribute such as ``event.set()``. A call of a
    method of the object itself is yielded too.
    """
    for path in tree.below(RUNTIME):
        for node in tree.module(path).nodes(ast.Call, ast.Attribute):
            target: ast.AST = node
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in MUTATORS else node.func
            elif not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)):
                continue
            if not isinstance(target, ast.Attribute):
                continue
            of = target.value
            name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
            yield path.removeprefix(f"{RUNTIME}/"), target.lineno, name, target.attr


def _fields(tree: Tree, path: str, name: str) -> set[str]:
    """Return the names of a dataclass's fields. Raise LookupError if there is no such class."""
    for node in tree.module(f"{RUNTIME}/{path}").nodes(ast.ClassDef):
        if node.name == name:
            return {f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
    raise LookupError(f"{path} has no class {name}")


def _pool_functions(module: Module, lines: list[str]) -> list[ast.FunctionDef | ast.Lambda]:
    """Return the functions of a module that are marked as running in a pool, and all lambdas."""
    marked = [
        node
        for node in module.nodes(ast.FunctionDef)
        if any("# in a pool" in line for line in lines[node.lineno - 1 : node.body[0].lineno - 1])
    ]
    return [*marked, *module.nodes(ast.Lambda)]
