"""The manifests' schema, as JSON Schema of the form that a CustomResourceDefinition takes.

Structural: no references, no null, no union but that of a quantity.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest, TableSyncManifest


class _Structural(GenerateJsonSchema):
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def structural(model: type[Model]) -> dict[str, Any]:
    """Return the schema of a part of a manifest, with every reference written out."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Structural)
    definitions = schema.pop("$defs", {})
    written: dict[str, Any] = _written_out(schema, definitions)
    return written


def json_schema() -> dict[str, Any]:
    """Return the schema of one document of a manifest, for editors."""
    kinds: tuple[type[Model], ...] = (PipelineManifest, TableSyncManifest)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Levada's manifests",
        "oneOf": [structural(kind) for kind in kinds],
    }


def _written_out(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_written_out(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    beside = {k: _written_out(v, definitions) for k, v in schema.items() if not _left_out(k, v)}
    if not isinstance(reference := schema.get("$ref"), str):
        return beside
    prefix = DEFAULT_REF_TEMPLATE.format(model="")
    return {**_written_out(definitions[reference.removeprefix(prefix)], definitions), **beside}


def _left_out(key: str, value: Any) -> bool:
    # Only what is a word of JSON Schema, not a property that is called so.
    return (key in ("$ref", "title") and isinstance(value, str)) or (key == "default" and value is None)
