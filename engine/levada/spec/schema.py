"""The JSON Schema of the manifests, in the form that a CustomResourceDefinition requires.

That form is called structural. It has no references, no null, and no union except that of a quantity.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from levada.spec.model import Model
from levada.spec.pipeline import PipelineManifest
from levada.spec.table_sync import TableSyncManifest


class _Structural(GenerateJsonSchema):
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def structural(model: type[Model]) -> dict[str, Any]:
    """Return the schema of a part of a manifest, with every reference resolved."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Structural)
    definitions = schema.pop("$defs", {})
    resolved: dict[str, Any] = _resolve(schema, definitions)
    return resolved


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one document of a manifest, for editors."""
    kinds: tuple[type[Model], ...] = (PipelineManifest, TableSyncManifest)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Levada's manifests",
        "oneOf": [structural(kind) for kind in kinds],
    }


def _resolve(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolve(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    own = {k: _resolve(v, definitions) for k, v in schema.items() if not _dropped(k, v)}
    if not isinstance(reference := schema.get("$ref"), str):
        return own
    prefix = DEFAULT_REF_TEMPLATE.format(model="")
    return {**_resolve(definitions[reference.removeprefix(prefix)], definitions), **own}


def _dropped(key: str, value: Any) -> bool:
    # Keywords of JSON Schema only. A property may have the same name.
    return (key in ("$ref", "title") and isinstance(value, str)) or (key == "default" and value is None)
