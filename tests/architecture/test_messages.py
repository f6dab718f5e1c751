"""Threads of the engine talk by messages, and not by functions that they pass to each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.lint.tree import ROOT, Tree

TREE = Tree(ROOT)
SEAMS = ("engine/levada/capture", "engine/levada/runtime/stages", "engine/levada/runtime/verifications")
FUNCTIONS = 19
"""The highest number of functions that are parameters or fields in these packages."""


def functions(path: str) -> Iterator[ast.Name]:
    """Yield each place at which the annotation of a parameter or field, or an alias, says Callable."""
    module = TREE.module(path)
    annotations = [arg.annotation for arg in module.nodes(ast.arg)] + [
        a.annotation for a in module.nodes(ast.AnnAssign)
    ]
    aliases = [node.value for node in module.nodes(ast.Assign)]
    for annotation in [*annotations, *aliases]:
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name) and node.id == "Callable":
                yield node


def test_few_functions_cross_the_seams() -> None:
    """A function of another thread that is called has no owner. A message has a type, a handler and an answer."""
    found = {path: len(list(functions(path))) for path in TREE.below(*SEAMS)}
    assert sum(found.values()) <= FUNCTIONS, {path: number for path, number in found.items() if number}


def test_each_message_has_a_handler() -> None:
    """A message without one would end the pipeline when it is sent."""
    messages, handled, kinds = set[str](), set[str](), {"Message", "Ask", "Recorded"}
    for path in TREE.below("engine/levada/runtime"):
        for node in TREE.module(path).nodes(ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            if bases & kinds and node.name not in kinds:
                messages.add(node.name)
        for call in TREE.module(path).nodes(ast.Call):
            if ast.unparse(call.func).endswith("inbox.on"):
                handled.add(ast.unparse(call.args[0]))
    assert messages
    assert handled == messages
