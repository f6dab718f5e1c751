"""The docstrings of the fields of models, read from their source.

Pydantic can read them itself, but does it when it makes the class: a quarter of the CPU of each start of a command.
Only the schemas need them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from functools import cache


def field_docstring(model: type, name: str) -> str | None:
    """Return the docstring below a field, in the class whose body has its annotation."""
    return _docstrings(next(c for c in model.__mro__ if name in inspect.get_annotations(c))).get(name)


@cache
def _docstrings(model: type) -> Mapping[str, str]:
    """Return the docstring below each annotated name in the body of a class. A class without source has none."""
    try:
        source = textwrap.dedent(inspect.getsource(model))
    except OSError:
        return {}
    found = {}
    [body] = [statement.body for statement in ast.parse(source).body if isinstance(statement, ast.ClassDef)]
    for field, text in itertools.pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found
