"""The reference page, generated from the schema: ``python -m levada.spec.reference > docs/reference.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from levada.spec.model import CHANGE, Change, Model
from levada.spec.pipeline import PipelineManifest
from levada.spec.schema import structural
from levada.spec.table_sync import TableSyncManifest

_HEAD: Final = """\
# Reference of the manifests

<!-- Written by `python -m levada.spec.reference`. A test compares it with the models. -->

A manifest is one Pipeline and any number of its TableSyncs, as YAML documents. Unknown keys are rejected. The column
*Change* describes the effect of changing a field:

| Change | Effect |
|---|---|
| Hot | The running driver or the operator applies the change. Nothing restarts. |
| Restart | The driver restarts. Nothing is copied again. |
| Resync | The affected tables are copied again. |
| Immutable | The change is rejected. Create a new Pipeline instead. |

A quantity is a number and a unit: Ki, Mi, Gi, Ti, Pi (powers of 1024), k, M, G, T, P (powers of 1000), or none.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    kinds: tuple[tuple[str, type[Model]], ...] = (("Pipeline", PipelineManifest), ("TableSync", TableSyncManifest))
    for name, kind in kinds:
        spec = structural(kind)["properties"]["spec"]
        parts.append(f"## {name}\n\n{_line(kind.__doc__ or '')}\n")
        parts += _sections("spec", spec)
    return "\n".join(parts)


def _sections(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield the table of an object's own fields, then the sections of the objects below it."""
    fields = schema["properties"]
    lines = [f"### `{path}`", "", _line(schema["description"]), ""]
    if fields:
        lines += ["| Field | Type | Default | Change | Meaning |", "|---|---|---|---|---|"]
    for name, field in fields.items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        change = Change(field[CHANGE]).value
        lines.append(f"| `{name}` | {_type(field)} | {default} | {change} | {_line(field['description'])} |")
    lines += ["", *(f"- {_at(rule)}{rule['message']}" for rule in schema.get("x-kubernetes-validations", ()))]
    yield "\n".join(lines).rstrip() + "\n"
    for name, field in fields.items():
        if "properties" in field:
            yield from _sections(f"{path}.{name}", field)
        elif "properties" in field.get("items", {}):
            yield from _sections(f"{path}.{name}[]", field["items"])


def _type(field: dict[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in field:
        return "quantity"
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"] if choice)
    if field["type"] == "array":
        return f"list of {_type(field['items'])}s"
    if field["type"] == "object" and isinstance(values := field.get("additionalProperties"), dict):
        return f"map of {_type(values)}s"
    if field["type"] == "integer":
        return f"integer, {field['minimum']} to {field['maximum']}" if "maximum" in field else "integer"
    return str(field["type"])


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "none"
    default = field["default"]
    return '""' if default == "" else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _at(rule: dict[str, str]) -> str:
    return f"`{rule['fieldPath'].removeprefix('.')}`: " if "fieldPath" in rule else ""


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
