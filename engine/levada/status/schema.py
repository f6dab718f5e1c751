"""The JSON schema of the status document.

``python -m levada.status.schema`` prints it. The result is docs/progress.schema.json.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from levada.status.document import adapter
from levada.status.progress import PROGRESS_VERSION, Progress


class _Written(GenerateJsonSchema):
    """The schema of what the engine writes. It writes every field, so defaults mean nothing to a reader."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a document of ``/v1/progress``."""
    schema = adapter(Progress).json_schema(mode="serialization", schema_generator=_Written)
    schema["properties"]["version"]["const"] = PROGRESS_VERSION
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The progress of a pipeline, as GET /v1/progress of Levada's engine returns it",
        "description": schema["description"],
    }
    return head | {key: schema[key] for key in ("type", "properties", "required", "$defs")}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
