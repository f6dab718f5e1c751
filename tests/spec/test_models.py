"""Every field has its meaning and the class of its change. The settings of a table are found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo
from tests.cluster.fields import CLASSES, PATCHES
from tests.spec.corpus_files import CORPUS

from levada.docstrings import field_docstring
from levada.spec import (
    Change,
    PipelineManifest,
    PipelineSpec,
    TableSyncManifest,
    changed_fields,
    load_manifests,
    structural,
)
from levada.spec.model import CHANGE, Model
from levada.spec.names import default_object_name
from levada.values import QualifiedTable

SMALLEST = (CORPUS / "good" / "smallest.yaml").read_text()
KINDS = (PipelineManifest, TableSyncManifest)


def fields(model: type[Model], path: str = "") -> Iterator[tuple[str, FieldInfo, str | None]]:
    """Walk every field of a model and of those below it, by its path in YAML, with its description."""
    for name, field in model.model_fields.items():
        where = f"{path}.{field.alias or name}".removeprefix(".")
        yield where, field, field.description or field_docstring(model, name)
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Model):
                yield from fields(inner, where)


def test_every_field_is_patched_on_a_cluster() -> None:
    """The tests on a cluster have another value for each field of a Pipeline, and for no other."""
    assert PATCHES.keys() == CLASSES.keys()


FIELDS = [(f"{kind.__name__}:{path}", field, text) for kind in KINDS for path, field, text in fields(kind)]


@pytest.mark.parametrize(("field", "text"), [f[1:] for f in FIELDS], ids=[path for path, *_ in FIELDS])
def test_field_tells_its_meaning_and_change_class(field: FieldInfo, text: str | None) -> None:
    """Every field has a description and a change class. That of a whole number that may be 0 describes 0."""
    assert text
    assert isinstance(field.json_schema_extra, dict)
    assert field.json_schema_extra[CHANGE] in list(Change)
    may_be_zero = any(getattr(m, "ge", None) == 0 for m in field.metadata)
    assert not may_be_zero or "0: " in text or "Change it" in text


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Walk a schema and all those within."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from schemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from schemas(value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_schema_is_structural(kind: type[Model]) -> None:
    """The schema has no reference, no null and no union but a quantity's. Each rule names an existing field."""
    for schema in schemas(structural(kind)):
        assert "$ref" not in schema
        assert "oneOf" not in schema
        assert "default" not in schema or schema["default"] is not None
        if "anyOf" in schema:
            assert schema["x-kubernetes-int-or-string"]
        if CHANGE in schema:
            assert "anyOf" in schema or isinstance(schema["type"], str)
        for validation in schema.get("x-kubernetes-validations", []):
            at = schema
            for field in validation.get("fieldPath", "").split(".")[1:]:
                at = at["properties"][field]


def test_defaults_are_those_of_the_schema() -> None:
    """The smallest manifest has the defaults that are documented."""
    manifest = load_manifests(SMALLEST).pipeline
    assert manifest.slot_name == manifest.publication_name == "levada_shop"
    spec = manifest.spec
    assert spec.batch.max_bytes == 64 * 2**20
    assert spec.store.postgres is not None
    assert (spec.store.postgres.schema_name, spec.store.memory, spec.store.config_map) == ("levada", None, None)
    assert (spec.driver.resources.requests, spec.driver.resources.limits, spec.executor) == ({}, {}, None)


def test_names_are_derived_from_the_pipeline() -> None:
    """A dash, which a slot's name may not have, becomes an underscore. A given name is kept."""
    manifest = load_manifests((CORPUS / "good" / "as_kubernetes_hands_out.yaml").read_text()).pipeline
    assert (manifest.slot_name, manifest.publication_name) == ("levada_data__my_shop", "levada_data__my_shop")
    named = SMALLEST.replace("database: shop}", "database: shop, slot: {name: s}, publication: {name: P p}}")
    assert load_manifests(named).pipeline.slot_name == "s"
    assert load_manifests(named).pipeline.publication_name == "P p"


def test_no_two_pipelines_have_one_default_name() -> None:
    """The namespace is part of it. What would be ambiguous or too long ends with a digest, and is a slot's name."""
    pairs = [
        *[("", "shop"), ("a", "shop"), ("a-b", "c"), ("a", "b-c"), ("", "a--b"), ("a", "b"), ("a", "b--c")],
        *[("a--b", "c"), ("", "a-b-c"), ("n" * 63, "p" * 40), ("n" * 63, "p" * 39 + "q"), ("n" * 62, "p" * 40)],
    ]
    names = [default_object_name(name, namespace) for namespace, name in pairs]
    assert len(set(names)) == len(pairs)
    assert all(re.fullmatch(r"[a-z0-9_]{1,63}", name) for name in names)
    assert names[:3] == ["levada_shop", "levada_a__shop", "levada_a_b__c"]


def test_stores_own_tables_are_never_selected() -> None:
    """The store's writes would be replicated changes, so its schema is left out even if a selector matches it."""
    text = SMALLEST.replace("schema: public", 'schema: "*"')
    assert load_manifests(text).selects(QualifiedTable("public", "progress"))
    assert not load_manifests(text).selects(QualifiedTable("levada", "progress"))
    elsewhere = text + "  store: {postgres: {schema: kept}}\n"
    assert not load_manifests(elsewhere).selects(QualifiedTable("kept", "progress"))
    assert load_manifests(elsewhere).selects(QualifiedTable("levada", "progress"))
    assert load_manifests(text + "  store: {memory: {}}\n").selects(QualifiedTable("levada", "progress"))


def spec(more: str = "") -> PipelineSpec:
    """Return the smallest spec, with more fields."""
    return load_manifests(SMALLEST + more).pipeline.spec


def test_changes_are_named_with_their_class() -> None:
    """Each differing field is found by its path. A choice of objects that comes or goes has a class of its own."""
    assert changed_fields(spec(), spec()) == {}
    assert changed_fields(
        spec("  staging: {uri: /a}\n  store: {memory: {}}\n"),
        spec("  batch: {maxBytes: 1Mi}\n  driver: {sparkConf: {a: b}}\n  staging: {uri: /b}\n"),
    ) == {
        "spec.batch.maxBytes": Change.HOT,
        "spec.driver.sparkConf": Change.RESTART,
        "spec.staging.uri": Change.IMMUTABLE,
        "spec.store.memory": Change.IMMUTABLE,
        "spec.store.postgres": Change.IMMUTABLE,
    }


def test_equal_sizes_are_no_change() -> None:
    """1Gi and 1024Mi are the same size."""
    assert changed_fields(spec("  batch: {maxBytes: 1Gi}\n"), spec("  batch: {maxBytes: 1024Mi}\n")) == {}
