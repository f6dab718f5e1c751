"""The manifests of one pipeline, read from YAML."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import ValidationError

from levada.printable import listed
from levada.spec.destination import CustomDestination
from levada.spec.documents import Document, read_documents
from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest
from levada.spec.plugins import DESTINATIONS, STORES, lacks_spark, plugin_problems, plugin_table_problems
from levada.spec.problems import SpecProblem, explain, invalid, suggest
from levada.spec.section import PluginTableSettings
from levada.spec.source import IncludedTables, TableSelector, selects
from levada.spec.table_sync import TableSyncManifest, table_settings_problem
from levada.values import QualifiedTable

_KINDS: Final[Mapping[str, type[PipelineManifest] | type[TableSyncManifest]]] = {
    "Pipeline": PipelineManifest,
    "TableSync": TableSyncManifest,
}
_M = TypeVar("_M", bound=Model)


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
    documents = read_documents(text, source)
    problems: list[SpecProblem] = []
    pipelines: list[PipelineManifest] = []
    table_syncs: list[tuple[TableSyncManifest, Document]] = []
    found = (d.at("metadata", "name") for d in documents if _model(d) is PipelineManifest)
    names = {name for name in found if isinstance(name, str)}
    tables: set[QualifiedTable] = set()
    for document in documents:
        problems += [p if p.line else document.placed(p) for p in document.problems]
        if (model := _model(document)) is None:
            problems.append(_unknown_kind(document))
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
            problems += [document.placed(problem) for problem in _check_references(read, names, tables)]
            tables.add(read.spec.table.qualified)
            table_syncs.append((read, document))
    for pipeline in pipelines:
        for table_sync, document in table_syncs:
            problems += [document.placed(p) for p in _table_settings_problems(pipeline, table_sync, plugins=plugins)]
    count = sum(_model(document) is PipelineManifest for document in documents)
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
    read: TableSyncManifest, names: Set[str], earlier: Container[QualifiedTable]
) -> Iterator[SpecProblem]:
    """Yield what is wrong with the Pipeline and the table that a TableSync names. ``earlier`` are others' tables."""
    if names and read.spec.pipeline_ref.name not in names:
        yield SpecProblem(("spec", "pipelineRef", "name"), f"must be this file's Pipeline: {listed(sorted(names))}")
    if read.spec.table.qualified in earlier:
        yield SpecProblem(("spec", "table"), f"{read.spec.table.qualified} already has a TableSync")


def _model(document: Document) -> type[PipelineManifest] | type[TableSyncManifest] | None:
    kind = document.at("kind")
    return _KINDS.get(kind) if isinstance(kind, str) else None


def _unknown_kind(document: Document) -> SpecProblem:
    kind = document.at("kind")
    text = "is required: Pipeline or TableSync" if kind is None else f"is unknown: {suggest(kind, _KINDS)}"
    return document.placed(SpecProblem(("kind",), text))
