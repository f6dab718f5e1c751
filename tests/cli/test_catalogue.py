"""Each error of the catalogue, shown once as a user sees it: in a pipe, and on terminals of three widths."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from rich.cells import cell_len
from tests.lint.errors import PROBLEMS, TABLES, Catalogue, literals
from tests.lint.tree import ROOT, Tree

from levada.cli.hints import Invocation, set_invocation
from levada.cli.output import show_problem

WIDTHS: Final = (40, 80, 200)
EXAMPLES: Final = {
    "table": "public.orders",
    "name": "public.orders",
    "tables": "public.orders, public.customers",
    "slot": "levada_shop",
    "pipeline": "shop",
    "publication": "levada_shop",
    "host": "127.0.0.1",
    "port": "5432",
    "path": "/var/lake/state",
    "column": "amount",
    "role": "levada",
    "error": "the words of the server",
    "database": "shop",
    "lsn": "0/1A2B3C4",
}
"""Examples of the variables of a message. The name of any other one stands for it."""


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with an example in place of each variable."""
    match node:
        case ast.Constant(value=str() as value):
            return re.sub(r"\{(\w*)\}", lambda m: EXAMPLES.get(m[1], m[1] or "example"), value)
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        case ast.FormattedValue(value=value):
            return text_of(value)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body):
            return text_of(body)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return EXAMPLES.get(name.strip("_").lower(), name.strip("_").lower())
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return text_of(value)
        case ast.Call(args=[argument, *_]):
            return text_of(argument)
        case ast.Call(func=function):
            return text_of(function)
        case ast.Subscript(value=value):
            return text_of(value)
    return "example"


@cache
def shown_errors() -> dict[str, set[tuple[str, str]]]:
    """Return the messages and hints of each code, as the sources make them."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in CATALOGUE.paths:
        for code, message, hint in errors_of(path):
            found.setdefault(code, set()).add((message, hint))
    return found


def errors_of(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the code, the message and the hint of each error that a module makes."""
    for called, node in CATALOGUE.calls(path):
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if called in CATALOGUE.errors:
            order = ("code", "message", "hint")
        elif called in TABLES:
            order = ("code", "kind", "hint", "message")
        elif called in PROBLEMS:
            order = ("severity", "code", "message", "hint")
        else:
            continue
        fields = {**dict(zip(order, node.args, strict=False)), **named}
        for code in literals(fields["code"]) if "code" in fields else ():
            message, hint = (text_of(fields[key]) if key in fields else "" for key in ("message", "hint"))
            yield code, message or "the words of the server", hint


CATALOGUE: Final = Catalogue(Tree(ROOT))
NOT_IN_SOURCES: Final = frozenset({"stale_epoch"})
"""The code that an error's class gives itself."""


def test_each_code_of_the_catalogue_is_shown() -> None:
    """The sources show a message for each documented code, except those that no place of them makes."""
    assert dict(CATALOGUE.rows).keys() - shown_errors().keys() == NOT_IN_SOURCES


@pytest.mark.parametrize("code", sorted(dict(CATALOGUE.rows).keys() - NOT_IN_SOURCES))
def test_an_error_is_plain(code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A message is on the lines of its width with its code, and the hint is below it, on lines that can be copied."""
    set_invocation(Invocation(Path("shop.yaml"), Path("secrets")))
    try:
        for message, hint in sorted(shown_errors()[code]):
            show_problem("error", code, message, hint)
            plain = capsys.readouterr().err
            print(plain, end="")
            assert plain.startswith(f"error: {message} [{code}]\n")
            for width in WIDTHS:
                terminal = io.StringIO()
                monkeypatch.setattr(terminal, "isatty", lambda: True)
                monkeypatch.setattr("sys.stderr", terminal)
                monkeypatch.setenv("COLUMNS", str(width))
                monkeypatch.setenv("NO_COLOR", "1")
                show_problem("error", code, message, hint)
                monkeypatch.undo()
                lines = terminal.getvalue().splitlines()
                assert all(cell_len(line) == width for line in lines if line[:1] in "╭│╰")
                assert f"error: {code}" in lines[0]
                wanted = " ".join(plain.partition("\n  hint: ")[2].split())
                assert wanted in " ".join(terminal.getvalue().split())
    finally:
        set_invocation(None)
