"""The CustomResourceDefinitions are the models', structural, small, and every status that is written fits them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from levada_operator.crds import build_crds, render
from levada_operator.crds.definition import MAX_BYTES

FOLDER = Path(__file__).parents[2] / "crds"
CRDS = build_crds()
KEYWORDS = {
    "type", "description", "default", "enum", "nullable", "format", "pattern", "properties", "required", "items",
    "additionalProperties", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "oneOf", "anyOf", "allOf",
    "not", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
    "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
}  # fmt: skip
"""The keywords of a schema that Kubernetes knows."""


def schemas(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a CRD's only version."""
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema in a schema, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], f"{path}.{key}")


@pytest.mark.parametrize("name", CRDS)
def test_file_is_up_to_date(name: str) -> None:
    """The CRD in the repository is that of the models. If not: make crds."""
    assert (FOLDER / f"{name}.yaml").read_text() == render(CRDS[name])


@pytest.mark.parametrize("name", CRDS)
def test_is_small_enough_for_kubectl_apply(name: str) -> None:
    """A client-side apply keeps the whole in an annotation, of at most 256 KiB."""
    assert len(render(CRDS[name]).encode()) < MAX_BYTES
    assert len(json.dumps(CRDS[name])) < MAX_BYTES


@pytest.mark.parametrize("name", CRDS)
def test_is_structural(name: str) -> None:
    """Each field has a type or is a quantity, and the schema has no key that Kubernetes does not know."""
    for path, schema in walk(schemas(CRDS[name])):
        assert "type" in schema or "x-kubernetes-int-or-string" in schema, path
        assert schema.keys() <= KEYWORDS, (path, schema.keys() - KEYWORDS)
        assert schema.get("additionalProperties") not in (True, False), path


@pytest.mark.parametrize("name", CRDS)
def test_every_field_is_described(name: str) -> None:
    """kubectl explain has a word on every field of the spec and the status."""
    properties = schemas(CRDS[name])["properties"]
    for part in ("spec", "status"):
        for path, schema in walk(properties[part], part):
            if not path.endswith((".items", ".additionalProperties")):
                assert schema.get("description"), path


def test_names_and_columns() -> None:
    """Short names, category and columns are those of the design."""
    pipelines, table_syncs = (CRDS[f"{plural}.levada.dev"]["spec"] for plural in ("pipelines", "tablesyncs"))
    assert (pipelines["names"]["shortNames"], table_syncs["names"]["shortNames"]) == (["pl"], ["tsync"])
    assert pipelines["names"]["categories"] == table_syncs["names"]["categories"] == ["levada"]
    normal = [
        [c["name"] for c in s["versions"][0]["additionalPrinterColumns"] if not c.get("priority")]
        for s in (pipelines, table_syncs)
    ]
    assert normal == [
        ["Ready", "Phase", "Tables", "Lag", "Age"],
        ["Pipeline", "Table", "Phase", "Copied", "Rows copied", "Lag", "Age"],
    ]


def test_immutable_fields_have_a_rule() -> None:
    """Each field that the models call Immutable is held by the API server."""
    rules = [
        rule["message"]
        for crd in CRDS.values()
        for _, schema in walk(schemas(crd)["properties"]["spec"])
        for rule in schema.get("x-kubernetes-validations", ())
        if "oldSelf" in rule["rule"] and " is Immutable" in rule["message"]
    ]
    assert {r.split(" is Immutable")[0] for r in rules} == {
        "spec.source.database",
        "spec.source.slot.name",
        "spec.destination.bigquery",
        "spec.destination.bigquery.location",
        "spec.destination.bigquery.metadataDataset",
        "spec.destination.bigquery.project",
        "spec.destination.ducklake",
        "spec.destination.ducklake.catalog.database",
        "spec.destination.ducklake.catalog.schema",
        "spec.destination.ducklake.dataPath",
        "spec.destination.iceberg",
        "spec.destination.opensearch",
        "spec.destination.postgres",
        "spec.destination.postgres.database",
        "spec.destination.postgres.stateSchema",
        "spec.destination.custom",
        "spec.destination.iceberg.catalog.type",
        "spec.destination.iceberg.catalog.warehouse",
        "spec.destination.custom.type",
        "spec.staging.uri",
        "spec.staging.volumeClaim.storageClassName",
        "spec.store.postgres",
        "spec.store.postgres.schema",
        "spec.store.configMap",
        "spec.store.memory",
        "spec.store.postgres.connection",
        "spec.store.postgres.connection.database",
        "spec.store.custom",
        "spec.store.custom.type",
        "spec.pipelineRef.name",
        "spec.table.schema",
        "spec.table.name",
    }
