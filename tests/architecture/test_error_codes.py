"""docs/errors.md lists every error code that the sources can raise, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.language import messages

from levada import errors
from levada.cli import main

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "errors.md"

SOURCES = sorted(path for root in ("engine", "operator") for path in (ROOT / root).rglob("*.py"))
CLASSES = [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
BASES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
# A package may have narrower kinds of its own.
ERRORS = BASES | {c.name for c in CLASSES if any(isinstance(b, ast.Name) and b.id in BASES for b in c.bases)}
# Rows of tables that errors are made from, with the code as the first argument or by name.
TABLES = {"Failure"}
# The problems of a preflight: the code comes after the severity.
PROBLEMS = {"Problem"}


def codes_in(source: str) -> Iterator[str]:
    """The codes that a module's text gives to errors, as literals."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ERRORS | TABLES and node.args:
            yield from literals(node.args[0])
        if called in PROBLEMS and len(node.args) > 1:
            yield from literals(node.args[1])
        if called in ERRORS | TABLES | PROBLEMS:
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from literals(keyword.value)


def literals(node: ast.expr) -> Iterator[str]:
    """The strings that an expression can be, as far as it says so itself."""
    if isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def codes_of_tree() -> dict[str, set[str]]:
    """Each code, and the files that have it."""
    found: dict[str, set[str]] = {"stale_epoch": {"engine/levada/errors.py"}}
    for path in SOURCES:
        for code in codes_in(path.read_text()):
            found.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    return found


def documented() -> list[str]:
    """The first column of the tables of docs/errors.md."""
    return re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)


def test_codes_are_lower_snake_case() -> None:
    """A code is a stable word for scripts and alerts: lower_snake_case."""
    assert [c for c in codes_of_tree() if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", c)] == []


def test_every_code_is_documented() -> None:
    """Each code of the tree has a row in docs/errors.md: | `code` | what it means | what to do |."""
    missing = {code: sorted(files) for code, files in codes_of_tree().items() if code not in documented()}
    rows = "\n".join(f"| `{code}` | (from {', '.join(files)}) |  |" for code, files in sorted(missing.items()))
    assert not missing, f"add to {DOCUMENT.relative_to(ROOT)}:\n{rows}"


def test_no_code_is_documented_that_is_gone() -> None:
    """docs/errors.md has no row for a code that nothing raises, and none twice."""
    rows = documented()
    assert sorted(set(rows) - codes_of_tree().keys()) == []
    assert len(rows) == len(set(rows))


def classes_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield each code of a module with the name of its error's class, where both are literal."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        kind = node.args[1] if called in TABLES and len(node.args) > 1 else node.func
        if called in BASES | TABLES and isinstance(kind, ast.Name) and kind.id in BASES:
            for code in literals(node.args[0]):
                yield code, kind.id


def bases_of(name: str) -> set[str]:
    """Return the names of a class of errors and of those that it derives from."""
    return {kind.__name__ for kind in getattr(errors, name).__mro__}


def test_the_class_of_each_error_is_documented() -> None:
    """The second column ends with the class of the error, or with one that it derives from."""
    raised: dict[str, set[str]] = {}
    for path in SOURCES:
        for code, name in classes_of(path.read_text()):
            raised.setdefault(code, set()).update(bases_of(name))
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .* \|$", DOCUMENT.read_text(), re.MULTILINE)
    wrong = [
        (code, sorted(raised[code] & BASES))
        for code, meaning in rows
        if code in raised and not any(re.search(rf"\b{name}\b", meaning) for name in raised[code] & BASES)
    ]
    assert not wrong


def test_errors_that_need_someone_have_hints() -> None:
    """An error has a hint, unless the document's last column says that nothing needs to be done, or to report it.

    The messages of the codes in `NAMES_ITS_FIELD` name the field of a document, which is all that a hint could say.
    """
    actions = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE))
    without = [
        (str(path.relative_to(ROOT)), node.lineno, code)
        for path in SOURCES
        for node, code in without_hints(path.read_text())
        if code not in NAMES_ITS_FIELD and not re.match(r"Nothing|Report it", actions.get(code, ""))
    ]
    assert not without


NAMES_ITS_FIELD = {"cut_request_invalid", "invalid_manifest", "progress_unreadable", "verify_request_invalid"}


def without_hints(source: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call with a literal code that makes an error without a hint."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ERRORS | TABLES and not any(keyword.arg == "hint" for keyword in node.keywords):
            yield from ((node, code) for code in literals(node.args[0]))


def test_each_command_in_a_hint_exists() -> None:
    """Every ``levada COMMAND MANIFEST`` in a message or a hint is a command that takes a manifest."""
    commands = {c.name or c.callback.__name__: c.callback for c in main.registered_commands if c.callback}
    wrong = []
    for path in SOURCES:
        for line, text in messages(path):
            for verb in re.findall(r"\blevada ([a-z]+) MANIFEST\b", text):
                known = commands.get(verb)
                if known is None or "manifest" not in known.__annotations__:
                    wrong.append((str(path.relative_to(ROOT)), line, text))
    assert not wrong
