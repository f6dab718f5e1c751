"""Error codes in the sources, and their rows in docs/errors.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Final

from tests.lint.language import CODE, messages
from tests.lint.tree import Finding, Module, Tree, line_of

DOCUMENT: Final = "docs/errors.md"
CLASSES: Final = "engine/levada/errors.py"
NAMES: Final = "engine/levada/codes.py"
COMMANDS: Final = "engine/levada/cli/app.py"
TABLES: Final = frozenset({"Failure"})
"""Rows of tables that errors are made from, with the code as the first argument or by name."""
PROBLEMS: Final = frozenset({"Problem"})
"""The problems of a preflight: the code comes after the severity."""
NAMES_ITS_FIELD: Final = {"cut_request_invalid", "invalid_manifest", "progress_unreadable", "verify_request_invalid"}
"""Codes whose messages name the field of a document, which is all that a hint could have."""
_BEFORE_TABLE: Final = re.compile(r"levada (?:(?:resync|retry) MANIFEST|verify MANIFEST --table) $")
_ROW: Final = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", re.MULTILINE)


class Catalogue:
    """The errors of a tree: their classes, their codes and their rows in the document."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.paths: Final = [*tree.below(*CODE)]

    @cached_property
    def ancestors(self) -> dict[str, set[str]]:
        """Each class of `levada.errors`, with the classes that it derives from and itself."""
        found: dict[str, set[str]] = {}
        for node in sorted(self.tree.module(CLASSES).nodes(ast.ClassDef), key=lambda node: node.lineno):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if "Exception" in bases or bases & found.keys():
                found[node.name] = {node.name}.union(*(found.get(base, ()) for base in bases))
        return found

    @cached_property
    def errors(self) -> set[str]:
        """The classes of errors. A package may have narrower kinds of its own."""
        classes = [node for path in self.paths for node in self.tree.module(path).nodes(ast.ClassDef)]
        narrower = {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in self.ancestors for b in c.bases)}
        return narrower | self.ancestors.keys()

    @cached_property
    def codes(self) -> dict[str, tuple[str, int]]:
        """Each code with a place that has it."""
        found: dict[str, tuple[str, int]] = {}
        for path in self.paths:
            for code, line in self._codes_in(self.tree.module(path), path):
                found.setdefault(code, (path, line))
        return found

    @cached_property
    def rows(self) -> list[tuple[str, int]]:
        """The first column of the tables of docs/errors.md, with the lines."""
        lines = enumerate(self.tree.text(DOCUMENT).splitlines(), 1)
        return [(row[1], number) for number, line in lines if (row := re.match(r"\| `(\w+)` \|", line))]

    def calls(self, path: str) -> Iterator[tuple[str, ast.Call]]:
        """Yield each call in a module with the last name of the function or class that is called."""
        for node in self.tree.module(path).nodes(ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node

    def _codes_in(self, module: Module, path: str) -> Iterator[tuple[str, int]]:
        """Yield the codes that a module's text gives to errors, as literals."""
        first = self.errors | TABLES | ({"__init__"} if path == CLASSES else set())
        for called, node in self.calls(path):
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if called in first:
                given += node.args[:1]
            elif called in PROBLEMS:
                given += node.args[1:2]
            else:
                continue
            yield from ((code, node.lineno) for value in given for code in literals(value))


def literals(node: ast.expr) -> Iterator[str]:
    """Yield the strings that an expression can be, as far as it shows them itself."""
    if isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "codes":
        yield node.attr.lower()


def error_codes(tree: Tree) -> Iterator[Finding]:
    """Report codes that are not lower_snake_case or have no row in docs/errors.md, and rows without a code."""
    catalogue = Catalogue(tree)
    rows = dict(catalogue.rows)
    for code, (path, line) in catalogue.codes.items():
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", code):
            yield Finding(path, line, f"the code {code} is not lower_snake_case")
        if code not in rows:
            yield Finding(path, line, f"the code {code} is missing in {DOCUMENT}, add: | `{code}` | meaning | action |")
    for code, line in catalogue.rows:
        if code not in catalogue.codes:
            yield Finding(DOCUMENT, line, f"nothing raises {code}, remove the row")
        if line != rows[code]:
            yield Finding(DOCUMENT, line, f"{code} has another row at line {rows[code]}, remove one")


def code_names(tree: Tree) -> Iterator[Finding]:
    """Report codes that code compares as text and not by their names, and names that nothing uses."""
    catalogue = Catalogue(tree)
    known, used = {code for code, _ in catalogue.rows}, set[str]()
    for path in catalogue.paths:
        module = tree.module(path)
        used |= {node.attr for node in module.nodes(ast.Attribute) if ast.unparse(node.value) == "codes"}
        raised = [*module.nodes(ast.Call, ast.IfExp, ast.keyword), *module.tree.body]
        given = {id(child) for node in raised for child in ast.iter_child_nodes(node)}
        for node in module.nodes(ast.Constant):
            if node.value in known and id(node) not in given:
                yield Finding(path, node.lineno, f"{node.value} is text, write codes.{str(node.value).upper()}")
    for node in tree.module(NAMES).nodes(ast.AnnAssign) if tree.has(NAMES) else ():
        name, code = ast.unparse(node.target), ast.literal_eval(node.value or "None")
        if code != name.lower() or code not in known or name not in used:
            yield Finding(NAMES, node.lineno, f"{name} is not the name of a code of {DOCUMENT} that code uses")


def error_classes(tree: Tree) -> Iterator[Finding]:
    """Report rows of docs/errors.md whose second column does not end with the class of the error or one above it."""
    catalogue = Catalogue(tree)
    raised: dict[str, set[str]] = {}
    for path in catalogue.paths:
        for called, node in catalogue.calls(path):
            kind = node.args[1] if called in TABLES and len(node.args) > 1 else node.func
            if called in catalogue.ancestors.keys() | TABLES and isinstance(kind, ast.Name) and node.args:
                for code in literals(node.args[0]):
                    raised.setdefault(code, set()).update(catalogue.ancestors.get(kind.id, ()))
    text = tree.text(DOCUMENT)
    for code, meaning, _ in _ROW.findall(text):
        names = raised.get(code)
        if names and not any(re.search(rf"\b{name}\b", meaning) for name in names):
            yield Finding(DOCUMENT, line_of(text, f"| `{code}` |"), f"{code} is one of {sorted(names)}, name its class")


def error_hints(tree: Tree) -> Iterator[Finding]:
    """Report errors without a hint, unless the document's last column begins with Nothing or Report it."""
    catalogue = Catalogue(tree)
    actions = {code: action for code, _, action in _ROW.findall(tree.text(DOCUMENT))}
    for path in catalogue.paths:
        for called, node in catalogue.calls(path):
            if called not in catalogue.errors | TABLES or any(keyword.arg == "hint" for keyword in node.keywords):
                continue
            for code in literals(node.args[0]) if node.args else ():
                if code not in NAMES_ITS_FIELD and not re.match(r"Nothing|Report it", actions.get(code, "")):
                    yield Finding(path, node.lineno, f"{code} has no hint, add the command that resolves it")


def hint_commands(tree: Tree) -> Iterator[Finding]:
    """Report messages with ``levada COMMAND MANIFEST`` whose command does not exist or takes no manifest.

    Also a table after it that is not quoted for a shell, as ``QualifiedTable.argument`` is.
    """
    commands = {
        function.name
        for function in tree.module(COMMANDS).nodes(ast.FunctionDef)
        if any(isinstance(d, ast.Call) and ast.unparse(d.func).endswith("command") for d in function.decorator_list)
        and "manifest" in {arg.arg for arg in function.args.args}
    }
    for path in tree.below(*CODE):
        for line, text in messages(tree.module(path)):
            for verb in re.findall(r"\blevada ([a-z]+) MANIFEST\b", text):
                if verb not in commands:
                    yield Finding(path, line, f"levada has no command {verb!r} that takes a manifest: {text}")
        for node in tree.module(path).nodes(ast.JoinedStr):
            for before, given in pairwise(node.values):
                if isinstance(before, ast.Constant) and isinstance(given, ast.FormattedValue):
                    name = ast.unparse(given.value)
                    if _BEFORE_TABLE.search(str(before.value)) and not name.endswith("argument"):
                        yield Finding(path, node.lineno, f"{name} is an argument of a command, write {name}.argument")
