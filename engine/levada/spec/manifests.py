"""The manifests of one pipeline, read from YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError
from yaml.constructor import ConstructorError

from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest, TableSyncManifest
from levada.spec.problems import Location, SpecProblem, explain, invalid, suggest
from levada.spec.source import Tables, selects
from levada.values import QualifiedTable

_KINDS: Final[Mapping[str, type[PipelineManifest] | type[TableSyncManifest]]] = {
    "Pipeline": PipelineManifest,
    "TableSync": TableSyncManifest,
}
_M = TypeVar("_M", bound=Model)

_INTEGER_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Manifests:
    """A Pipeline and the TableSyncs of it that were written."""

    pipeline: PipelineManifest
    table_syncs: tuple[TableSyncManifest, ...] = ()

    @property
    def selects(self) -> Selection:
        """Which tables are replicated."""
        store = self.pipeline.spec.store.postgres
        return Selection(self.pipeline.spec.tables, None if store is None else store.schema_name)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selectors as a function of a table's name; equal ones select the same."""

    tables: Tables
    store_schema: str | None

    def __call__(self, table: QualifiedTable) -> bool:
        """Tell whether a table is replicated; never so are the store's own tables, whose changes would not end."""
        return table.schema != self.store_schema and selects(self.tables, table)


def load_manifests(text: str, source: str = "pipeline.yaml") -> Manifests:
    """Read one Pipeline and any TableSyncs of it from a YAML text with a document for each.

    ``source`` names the text in errors. Raise InvalidManifest that lists every problem found.
    """
    documents = _documents(text, source)
    problems: list[SpecProblem] = []
    pipelines: list[PipelineManifest] = []
    table_syncs: list[TableSyncManifest] = []
    for document in documents:
        problems += [p if p.line else document.placed(p) for p in document.problems]
        if (model := document.model()) is None:
            problems.append(document.unknown_kind())
            continue
        try:
            read = _validate(model, document.content)
        except ValidationError as error:
            problems += [document.placed(problem) for problem in explain(error, model)]
            continue
        if isinstance(read, PipelineManifest):
            pipelines.append(read)
        else:
            table_syncs.append(read)
            problems += [document.placed(problem) for problem in _strangers(read, documents, table_syncs[:-1])]
    count = sum(document.model() is PipelineManifest for document in documents)
    if count != 1:
        problems.append(SpecProblem((), f"needs exactly one Pipeline, has {count}"))
    if problems:
        raise invalid(problems, source)
    return Manifests(pipelines[0], tuple(table_syncs))


def parse_manifest(model: type[_M], content: object, source: str) -> _M:
    """Check one object, as Kubernetes hands it out; raise InvalidManifest that lists every problem found."""
    try:
        return _validate(model, content)
    except ValidationError as error:
        raise invalid(explain(error, model), source) from None


def _validate(model: type[_M], content: object) -> _M:
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if key != "status"}
    return model.model_validate(content)


def _strangers(
    read: TableSyncManifest, documents: list[_Document], earlier: list[TableSyncManifest]
) -> Iterator[SpecProblem]:
    names = [name for d in documents if d.model() is PipelineManifest and isinstance(name := d.name(), str)]
    if names and read.spec.pipeline_ref.name not in names:
        yield SpecProblem(("spec", "pipelineRef", "name"), f"must be this file's Pipeline: {', '.join(names)}")
    if any(other.spec.table == read.spec.table for other in earlier):
        yield SpecProblem(("spec", "table"), f"{read.spec.table.qualified} has a TableSync already")


@dataclass(frozen=True, slots=True)
class _Document:
    """One document of a YAML text: its content, and the line of each of its fields."""

    content: Any
    lines: Mapping[Location, int]
    problems: tuple[SpecProblem, ...]

    def _at(self, *path: str) -> Any:
        found = self.content
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def model(self) -> type[PipelineManifest] | type[TableSyncManifest] | None:
        kind = self._at("kind")
        return _KINDS.get(kind) if isinstance(kind, str) else None

    def name(self) -> Any:
        return self._at("metadata", "name")

    def unknown_kind(self) -> SpecProblem:
        kind = self._at("kind")
        text = "is required: Pipeline or TableSync" if kind is None else f"is unknown; {suggest(kind, _KINDS)}"
        return self.placed(SpecProblem(("kind",), text))

    def placed(self, problem: SpecProblem) -> SpecProblem:
        """Give the problem the line of its field, or of the nearest one above it that is there."""
        location = problem.location
        while location and location not in self.lines:
            location = location[:-1]
        return SpecProblem(problem.location, problem.text, self.lines.get(location, 0))


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, with an error of its own, and so with a line, for each value that it cannot make."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(None, None, f"this is no value of type {kind}", node.start_mark) from None
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            raise ConstructorError(None, None, "this number is too large", node.start_mark)
        if isinstance(value, str) and "\0" in value:
            # C libraries would take the text to end there.
            raise ConstructorError(None, None, "this text has a NUL character", node.start_mark)
        return value


def _documents(text: str, source: str) -> list[_Document]:
    try:
        return _parsed(text, source)
    except RecursionError:
        raise invalid([SpecProblem((), "is nested too deeply")], source) from None


def _parsed(text: str, source: str) -> list[_Document]:
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if node is not None]
        contents = [content for content in yaml.load_all(text, Loader=_Loader) if content is not None]
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        raise invalid([SpecProblem((), f"is not YAML: {error.problem}", line)], source) from None
    except yaml.YAMLError:
        raise invalid([SpecProblem((), "is not YAML: it has characters that YAML does not allow")], source) from None
    nodes = [node for node in nodes if not (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"))]
    documents = []
    for node, content in zip(nodes, contents, strict=True):
        lines: dict[Location, int] = {(): node.start_mark.line + 1}
        problems = tuple(_walk(node, (), lines, {}))
        documents.append(_Document(content, lines, problems))
    return documents


def _walk(
    node: yaml.Node, location: Location, lines: dict[Location, int], left: dict[int, bool]
) -> Iterator[SpecProblem]:
    """Note each field's line; yield keys given twice, of which YAML would keep the last without a word.

    ``left`` tells of each node entered whether it was left again; an anchor's content is walked once.
    """
    if id(node) in left:
        if not left[id(node)]:
            yield SpecProblem(location, "is an alias of what it is part of")
        return
    left[id(node)] = False
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*location, index] = item.start_mark.line + 1
            yield from _walk(item, (*location, index), lines, left)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below, line = (*location, key.value), key.start_mark.line + 1
            if key.tag.endswith(":merge"):
                continue
            if below in lines:
                yield SpecProblem(below, f"is given twice, first in line {lines[below]}", line)
                continue
            lines[below] = line
            yield from _walk(value, below, lines, left)
    left[id(node)] = True
