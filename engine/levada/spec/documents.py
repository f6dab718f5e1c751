"""The documents of a YAML text, with the line of each field. Nothing here knows what a manifest is.

libyaml parses the text, several times as fast as Python does. PyYAML's code for it follows nested values without a
limit and would end the process, so the depth is checked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from levada.spec.problems import Location, SpecProblem, invalid

_INTEGER_BITS: Final = 64
_MAX_REPEATED: Final = 100_000
"""Values that the aliases of a text may repeat. A text without aliases has no more values than characters."""
_MAX_DEPTH: Final = 200
_MAX_EXPLAINED: Final = 1 << 16
"""Characters of a text that Python's parser looks at, if libyaml refuses it. Python takes seconds for a megabyte."""
_ENDLESS: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a YAML text: its content, and the line number of each of its fields."""

    content: Any
    lines: Mapping[Location, int]
    problems: tuple[SpecProblem, ...]

    def at(self, *path: str) -> Any:
        """Return the value in nested mappings, None if there is none."""
        found = self.content
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def placed(self, problem: SpecProblem) -> SpecProblem:
        """Return the problem with the line number of its field, or of the nearest enclosing field that the text has."""
        location = problem.location
        while location and location not in self.lines:
            location = location[:-1]
        return SpecProblem(problem.location, problem.text, self.lines.get(location, 0))


def read_documents(text: str, source: str) -> list[Document]:
    """Return the documents of a text that are not empty. ``source`` names it in messages. Raise InvalidManifest."""
    try:
        return [_document(loader, node) for loader, node in _nodes(text)]
    except RecursionError:
        raise invalid([SpecProblem((), _TOO_DEEP)], source) from None
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        what = "it has a tab where YAML needs spaces" if "'\\t'" in str(error.problem) else error.problem
        raise invalid([SpecProblem((), f"is not YAML: {what}", line)], source) from None
    except (yaml.YAMLError, UnicodeEncodeError):
        raise invalid([SpecProblem((), "is not YAML: it has characters that YAML does not allow")], source) from None


_TOO_DEEP: Final = "is nested too deeply"


class _Reporting(SafeConstructor):
    """A constructor that reports every value that it cannot construct with its line number.

    PyYAML itself raises exceptions without a position for some of them.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this is not a value of type {kind}", node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise ConstructorError(None, None, "this number is too large", node.start_mark)
        if isinstance(value, str) and "\0" in value:
            # C libraries end a text at the first NUL.
            raise ConstructorError(None, None, "this text contains a NUL character", node.start_mark)
        return value


class _Loader(_Reporting, yaml.CSafeLoader):
    """The loader by libyaml."""


class _PythonLoader(_Reporting, yaml.SafeLoader):
    """The loader in Python."""


_AnyLoader = _Loader | _PythonLoader


def _nodes(text: str) -> list[tuple[_AnyLoader, yaml.Node]]:
    """Return the root of each document that is not empty, with the loader that constructs its value."""
    try:
        _check_depth(text)
        return list(_composed(_Loader(text), len(text)))
    except yaml.YAMLError:
        if len(text) > _MAX_EXPLAINED:
            raise
    # It says in better words what is wrong. What it reads nonetheless is a text.
    return list(_composed(_PythonLoader(text), len(text)))


def _composed(loader: _AnyLoader, size: int) -> Iterator[tuple[_AnyLoader, yaml.Node]]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None and _expanded(node, {}) > size + _MAX_REPEATED:
            raise ConstructorError(None, None, "its aliases repeat too much", node.start_mark)
        if node is not None and not (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            yield loader, node


def _check_depth(text: str) -> None:
    """Raise RecursionError for a text whose values are nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise RecursionError
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a node if each alias is replaced by what it stands for.

    A merge key or a copy of a value does so. A few lines of aliases of aliases may be billions of values.
    """
    if id(node) not in known:
        known[id(node)] = 1  # An alias of an object that contains it is refused later.
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        for child in children:
            pair = child if isinstance(child, tuple) else (child,)
            known[id(node)] = min(_ENDLESS, known[id(node)] + sum(_expanded(each, known) for each in pair))
    return known[id(node)]


def _document(loader: _AnyLoader, node: yaml.Node) -> Document:
    lines: dict[Location, int] = {(): node.start_mark.line + 1}
    # First, because the construction puts the values of merge keys into their nodes.
    problems = tuple(_walk(node, (), lines, {}))
    return Document(loader.construct_document(node), lines, problems)


def _walk(
    node: yaml.Node, location: Location, lines: dict[Location, int], left: dict[int, bool]
) -> Iterator[SpecProblem]:
    """Record each field's line number in ``lines``, and yield duplicate keys and recursive aliases.

    YAML keeps the last of several equal keys silently. ``left`` maps the id of each visited node to whether its walk
    has ended, so the content of an anchor is walked once.
    """
    if id(node) in left:
        if not left[id(node)]:
            yield SpecProblem(location, "is an alias of an object that contains it")
        return
    left[id(node)] = False
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*location, index] = item.start_mark.line + 1
            yield from _walk(item, (*location, index), lines, left)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the construction refuses it
            below, line = (*location, key.value), key.start_mark.line + 1
            if key.tag.endswith(":merge"):
                continue
            if below in lines:
                yield SpecProblem(below, f"is a duplicate of the key in line {lines[below]}", line)
                continue
            lines[below] = line
            yield from _walk(value, below, lines, left)
    left[id(node)] = True
