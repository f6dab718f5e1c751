"""The manifests of one pipeline, read from YAML."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError
from yaml.constructor import ConstructorError

from levada.spec.destination import CustomDestination
from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest
from levada.spec.plugins import DESTINATIONS, STORES, lacks_spark, plugin_problems, plugin_table_problems
from levada.spec.problems import Location, SpecProblem, explain, invalid, suggest
from levada.spec.section import PluginTableSettings
from levada.spec.source import IncludedTables, TableSelector, selects
from levada.spec.table_sync import TableSyncManifest, table_settings_problem
from levada.values import QualifiedTable

_KINDS: Final[Mapping[str, type[PipelineManifest] | type[TableSyncManifest]]] = {
    "Pipeline": PipelineManifest,
    "TableSync": TableSyncManifest,
}
_M = TypeVar("_M", bound=Model)

_INTEGER_BITS: Final = 64
_MAX_REPEATED: Final = 100_000
"""Values that the aliases of a text may repeat. A text without aliases has no more values than characters."""
_ENDLESS: Final = 1 << 40


def manifest_digest(content: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a manifest's file."""
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Manifests:
    """A Pipeline and those of its TableSyncs that the manifest contains."""

    pipeline: PipelineManifest
    table_syncs: tuple[TableSyncManifest, ...] = ()

    @property
    def selects(self) -> Selection:
        """The predicate that selects the replicated tables."""
        store = self.pipeline.spec.store.postgres
        tables = self.pipeline.spec.tables
        return Selection(tables.include, tables.exclude, None if store is None else store.schema_name)


@dataclass(frozen=True, slots=True)
class Selection:
    """A predicate on table names, made of the manifest's selectors.

    Two instances compare equal if their selectors are equal.
    """

    include: tuple[IncludedTables, ...]
    exclude: tuple[TableSelector, ...]
    store_schema: str | None

    def __call__(self, table: QualifiedTable) -> bool:
        """Return True if a table is replicated.

        The store's own tables never are: each recorded state would be another change to replicate.
        """
        return table.schema != self.store_schema and selects(self.include, self.exclude, table)


def load_manifests(text: str, source: str = "pipeline.yaml", *, plugins: bool = True) -> Manifests:
    """Read one Pipeline and any number of its TableSyncs from YAML, one document each.

    ``source`` names the text in error messages. With ``plugins``, the options of another package's destination and
    store are validated too, by their classes, which are imported, and settings of Spark by the destination's class.
    Raise InvalidManifest, which lists every problem found.
    """
    documents = _documents(text, source)
    problems: list[SpecProblem] = []
    pipelines: list[PipelineManifest] = []
    table_syncs: list[tuple[TableSyncManifest, _Document]] = []
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
            if plugins:
                problems += [document.placed(problem) for problem in _plugin_problems(read)]
        else:
            earlier = [t for t, _ in table_syncs]
            problems += [document.placed(problem) for problem in _check_references(read, documents, earlier)]
            table_syncs.append((read, document))
    for pipeline in pipelines:
        for table_sync, document in table_syncs:
            problems += [document.placed(p) for p in _table_settings_problems(pipeline, table_sync, plugins=plugins)]
    count = sum(document.model() is PipelineManifest for document in documents)
    if count != 1:
        problems.append(SpecProblem((), f"needs exactly one Pipeline, has {count}"))
    if problems:
        refused = invalid(problems, source)
        if not documents:
            refused.hint = "levada init DSN writes a manifest"
        raise refused
    return Manifests(pipelines[0], tuple(t for t, _ in table_syncs))


def _plugin_problems(pipeline: PipelineManifest) -> list[SpecProblem]:
    problems, destination, store = [], pipeline.spec.destination.section, pipeline.spec.store.custom
    if isinstance(destination, CustomDestination):
        problems += plugin_problems(DESTINATIONS, ("spec", "destination", "custom"), destination)
        if (fields := pipeline.spec.spark_settings) and lacks_spark(destination):
            text = f"has no effect: the destination {destination.type} does not use Spark"
            problems += [SpecProblem(("spec", *field.split(".")), text) for field in fields]
    if store is not None:
        problems += plugin_problems(STORES, ("spec", "store", "custom"), store)
    return problems


def _table_settings_problems(
    pipeline: PipelineManifest, table_sync: TableSyncManifest, *, plugins: bool
) -> list[SpecProblem]:
    problem = table_settings_problem(pipeline.spec, table_sync.spec)
    if problem is not None:
        return [problem]
    found = table_sync.spec.destination_section
    if plugins and found is not None and isinstance(found[1], PluginTableSettings):
        return plugin_table_problems(pipeline.spec.destination.type, ("spec", found[0]), found[1])
    return []


def parse_manifest(model: type[_M], content: object, source: str) -> _M:
    """Validate one object as the Kubernetes API returns it. Its status is ignored.

    ``source`` names the object in error messages. Raise InvalidManifest, which lists every problem found.
    """
    try:
        return _validate(model, content)
    except ValidationError as error:
        raise invalid(explain(error, model), source) from None


def _validate(model: type[_M], content: object) -> _M:
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if key != "status"}
    return model.model_validate(content)


def _check_references(
    read: TableSyncManifest, documents: list[_Document], earlier: list[TableSyncManifest]
) -> Iterator[SpecProblem]:
    names = [name for d in documents if d.model() is PipelineManifest and isinstance(name := d.name(), str)]
    if names and read.spec.pipeline_ref.name not in names:
        yield SpecProblem(("spec", "pipelineRef", "name"), f"must be this file's Pipeline: {', '.join(names)}")
    if any(other.spec.table == read.spec.table for other in earlier):
        yield SpecProblem(("spec", "table"), f"{read.spec.table.qualified} already has a TableSync")


@dataclass(frozen=True, slots=True)
class _Document:
    """One document of a YAML text: its content, and the line number of each of its fields."""

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
        text = "is required: Pipeline or TableSync" if kind is None else f"is unknown: {suggest(kind, _KINDS)}"
        return self.placed(SpecProblem(("kind",), text))

    def placed(self, problem: SpecProblem) -> SpecProblem:
        """Return the problem with the line number of its field, or of the nearest enclosing field that the text has."""
        location = problem.location
        while location and location not in self.lines:
            location = location[:-1]
        return SpecProblem(problem.location, problem.text, self.lines.get(location, 0))


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that reports every value that it cannot construct with its line number.

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


def _documents(text: str, source: str) -> list[_Document]:
    try:
        return _parsed(text, source)
    except RecursionError:
        raise invalid([SpecProblem((), "is nested too deeply")], source) from None


def _parsed(text: str, source: str) -> list[_Document]:
    try:
        return [_document(loader, node) for loader, node in _nodes(text)]
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        what = "it has a tab where YAML needs spaces" if "'\\t'" in str(error.problem) else error.problem
        raise invalid([SpecProblem((), f"is not YAML: {what}", line)], source) from None
    except yaml.YAMLError:
        raise invalid([SpecProblem((), "is not YAML: it has characters that YAML does not allow")], source) from None


def _nodes(text: str) -> list[tuple[_Loader, yaml.Node]]:
    """Return the root of each document that is not empty, with the loader that constructs its value."""
    loader, found = _Loader(text), []
    while loader.check_node():
        node = loader.get_node()
        if node is not None and _expanded(node, {}) > len(text) + _MAX_REPEATED:
            raise ConstructorError(None, None, "its aliases repeat too much", node.start_mark)
        if node is not None and not (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            found.append((loader, node))
    return found


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


def _document(loader: _Loader, node: yaml.Node) -> _Document:
    lines: dict[Location, int] = {(): node.start_mark.line + 1}
    # First, because the construction puts the values of merge keys into their nodes.
    problems = tuple(_walk(node, (), lines, {}))
    return _Document(loader.construct_document(node), lines, problems)


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
