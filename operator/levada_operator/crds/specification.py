"""Conversion of the models' JSON schema into a structural schema, with a CEL rule for each immutable field."""

from __future__ import annotations

from typing import Any, Final

from levada.spec import Change
from levada.spec.model import CHANGE

_RULES: Final = "x-kubernetes-validations"
_INT64: Final = 2**53
"""Bound of integers. JSON readers lose digits of larger ones. CEL also needs a bound to estimate costs."""


def specification(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the schema of a kind's ``spec``."""
    return _converted(schema, "spec", kind)


def _converted(schema: dict[str, Any], path: str, kind: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in schema.items():
        match key:
            case "properties":
                out[key] = {name: _converted(field, f"{path}.{name}", kind) for name, field in value.items()}
            case "items":
                out[key] = _converted(value, f"{path}[]", kind)
            case "additionalProperties":
                # Whether unknown fields are refused depends on the request's fieldValidation, not on the schema.
                if isinstance(value, dict):
                    out[key] = _converted(value, f"{path}.*", kind)
            case "description":
                out[key] = " ".join(value.split())
            case "const":
                out["enum"] = [value]
            case "x-levada-change" | "propertyNames":
                # A structural schema has no rule for the names of a map. The operator checks them.
                pass
            case "default":
                out[key] = _filled(value, schema)
            case _:
                out[key] = value
    if rules := [*out.pop(_RULES, []), *_transitions(schema, path, kind)]:
        out[_RULES] = rules
    if "Null" in out.get("enum", ()):
        # Without quotes it is null in YAML. Kubernetes would drop it, and take the default in silence.
        out["nullable"] = True
    if out.get("type") == "integer":
        out.setdefault("format", "int64")
        out.setdefault("maximum", _INT64)
    return out


def _filled(default: Any, schema: dict[str, Any]) -> Any:
    """Return a default with the defaults of its fields. The API server validates a default without filling it."""
    if not isinstance(default, dict) or "properties" not in schema:
        return default
    filled = dict(default)
    for name, field in schema["properties"].items():
        if name in filled or "default" in field:
            filled[name] = _filled(filled.get(name, field.get("default")), field)
    return filled


def _transitions(schema: dict[str, Any], path: str, kind: str) -> list[dict[str, str]]:
    """Return the CEL rules that keep immutable fields as they are, and optional immutable fields set or unset."""
    rules = []
    if schema.get(CHANGE) == Change.IMMUTABLE and "properties" not in schema:
        rules.append({"rule": "self == oldSelf", "message": _immutable(path, kind)})
    for name, field in schema.get("properties", {}).items():
        optional = name not in schema.get("required", ()) and "default" not in field
        if optional and field.get(CHANGE) == Change.IMMUTABLE:
            rules.append(
                {"rule": f"has(self.{name}) == has(oldSelf.{name})", "message": _immutable(f"{path}.{name}", kind)}
            )
    return rules


def _immutable(path: str, kind: str) -> str:
    return f"{path} is Immutable: make a new {kind}"
