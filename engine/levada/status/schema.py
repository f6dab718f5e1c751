"""The JSON schemas of the status document and of the history.

``python -m levada.status.schema`` prints that of the status document. The result is docs/progress.schema.json. With the
argument ``history`` it prints the other one, docs/history.schema.json.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from levada.status.document import adapter
from levada.status.history import HISTORY_VERSION, History
from levada.status.progress import PROGRESS_VERSION, Progress


class _Written(GenerateJsonSchema):
    """The schema of what the engine writes. It writes every field, so defaults mean nothing to a reader."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a document of ``/v1/progress``."""
    return _schema(
        Progress, PROGRESS_VERSION, "The progress of a pipeline, as GET /v1/progress of Levada's engine returns it"
    )


def history_schema() -> dict[str, Any]:
    """Return the JSON schema of a document of ``/v1/history``."""
    return _schema(History, HISTORY_VERSION, "The history of a pipeline's figures, as GET /v1/history returns it")


def _schema(kind: Any, version: int, title: str) -> dict[str, Any]:
    schema = adapter(kind).json_schema(mode="serialization", schema_generator=_Written)
    schema["properties"]["version"]["const"] = version
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": schema["description"],
    }
    return head | {key: schema[key] for key in ("type", "properties", "required", "$defs") if key in schema}


if __name__ == "__main__":
    print(json.dumps(history_schema() if sys.argv[1:] == ["history"] else json_schema(), indent=2))
