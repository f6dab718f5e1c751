"""Tests pass limits, and overwrite no constant of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
OURS = ("levada", "levada_operator")


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each constant of the project that a test's module overwrites, with its line.

    That is an assignment to an attribute in upper case of an imported module or class, or a call of ``setattr`` with
    it, such as that of pytest's MonkeyPatch.
    """
    names = dict(imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            target = f"{dotted(node.value, names)}.{node.attr}"
        elif isinstance(node, ast.Call) and called(node) == "setattr" and node.args:
            target = ".".join(dotted(argument, names) for argument in node.args[:2])
            if isinstance(node.args[0], ast.Constant):
                target = str(node.args[0].value)
        else:
            continue
        root, _, rest = target.partition(".")
        if root in OURS and rest.rpartition(".")[2].isupper():
            yield node.lineno, target


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each imported name with the dotted path of what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname, a.name) if a.asname else (a.name.partition(".")[0],) * 2 for a in node.names)


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Return the dotted path of an expression, by the imports, or the text of a constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def called(call: ast.Call) -> str:
    """Return the last name of the function that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(TESTS)) for file in FILES])
def test_no_constant_is_overwritten(file: Path) -> None:
    """A size or a wait that a test needs is a field of a limits value, which the test passes."""
    assert [f"{file.name}:{line}: {name}" for line, name in findings(ast.parse(file.read_text()))] == []


@pytest.mark.parametrize(
    "statement",
    [
        'monkeypatch.setattr("levada.copy.guard.MOST_S", 1)',
        'from levada.copy import guard\nmonkeypatch.setattr(guard, "MOST_S", 1)',
        'from levada.copy import guard as g\nwith patching() as patch:\n    patch.setattr(g, "MOST_S", 1)',
        'import levada.copy.guard\nmonkeypatch.setattr(levada.copy.guard, "MOST_S", 1)',
        'from levada_operator.decide import reconcile\nsetattr(reconcile, "MEMOS", 1)',
        "from levada.copy import guard\nguard.MOST_S = guard.LEAST_S = 1",
        'from levada.copy.guard import Guard\nmonkeypatch.setattr(Guard, "_MOST_S", 1)',
    ],
)
def test_an_overwritten_constant_is_found(statement: str) -> None:
    """The check finds each form, for modules and classes."""
    assert list(findings(ast.parse(statement)))


@pytest.mark.parametrize(
    "statement",
    [
        'from levada.copy import guard\nmonkeypatch.setattr(guard, "hold_table", fail)',
        'from kubernetes.config import kube_config\nmonkeypatch.setattr(kube_config, "DEFAULT", "none")',
        "from levada.copy import guard\nMOST_S = guard.MOST_S",
        "self.LIMITS = 1",
    ],
)
def test_functions_and_other_projects_may_be_replaced(statement: str) -> None:
    """A function that fails is a fault that a test injects, and other projects have no limits to pass."""
    assert not list(findings(ast.parse(statement)))
