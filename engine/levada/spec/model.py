"""The base of all models of the manifest: strict validation, change classes, and rules over several fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from levada.docstrings import field_docstring

CHANGE: Final = "x-levada-change"
"""The key of a field's JSON schema that holds its change class."""

# As strict as the API server: the string "5432" is no integer, and 1 is no boolean.
StrictInt = Annotated[int, Strict()]
StrictBool = Annotated[bool, Strict()]


class Change(StrEnum):
    """The effect of changing a field, from the cheapest to the most expensive."""

    HOT = "Hot"
    """Applied by the running driver or by the operator, without a restart."""
    RESTART = "Restart"
    """The driver restarts. Nothing is copied again."""
    RESYNC = "Resync"
    """The affected tables are copied again."""
    IMMUTABLE = "Immutable"
    """The change is rejected. Create a new Pipeline instead."""


def setting(change: Change, default: Any = ..., **constraints: Any) -> Any:
    """Declare a field of a manifest.

    For an optional object, ``change`` is the class of adding or removing it. ``constraints`` are pydantic's. The
    field's docstring becomes its description in the CRD and in the reference.
    """
    return Field(default, json_schema_extra={CHANGE: change.value}, **constraints)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields of a model, as a Python function and as a CEL expression for the API server.

    ``field`` is the path, relative to the model and in camelCase, at which a violation is reported.
    """

    message: str
    cel: str
    holds: Callable[[Any], bool]
    field: str = ""


class Model(BaseModel):
    """A part of a manifest. Its keys are camelCase in YAML, unknown keys are rejected, and instances are immutable."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, validate_default=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError("rules", "rules are broken", {"broken": [(r.field, r.message) for r in broken]})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the model's JSON schema with the fields' docstrings, and its rules as ``x-kubernetes-validations``."""
        out = handler(schema)
        resolved = handler.resolve_ref_schema(out)
        for name, field in cls.model_fields.items():
            if text := field.description or field_docstring(cls, name):
                resolved["properties"][field.alias or name]["description"] = text
        if cls.rules:
            resolved["x-kubernetes-validations"] = [
                {"rule": r.cel, "message": r.message, **({"fieldPath": f".{r.field}"} if r.field else {})}
                for r in cls.rules
            ]
        return out


def exactly_one(*fields: str, what: str) -> Rule:
    """Return the rule that exactly one of these optional objects is set. ``what`` names them in its message."""
    names = ", ".join(map(to_camel, fields))
    given = ", ".join(f"has(self.{to_camel(f)})" for f in fields)
    return Rule(
        f"exactly one {what} is required: one of {names}",
        f"[{given}].filter(x, x).size() == 1",
        lambda model: sum(getattr(model, f) is not None for f in fields) == 1,
    )


def at_most_one(*fields: str, what: str) -> Rule:
    """Return the rule that at most one of these optional objects is set. ``what`` names them in its message."""
    given = ", ".join(f"has(self.{to_camel(f)})" for f in fields)
    return Rule(
        f"only one {what} may be set: one of {', '.join(map(to_camel, fields))}",
        f"[{given}].filter(x, x).size() <= 1",
        lambda model: sum(getattr(model, f) is not None for f in fields) <= 1,
    )


M = TypeVar("M", bound=Model)


def changed_fields(old: Model, new: Model, path: str = "spec") -> dict[str, Change]:
    """Return the path and change class of every field that differs between two versions."""
    changes: dict[str, Change] = {}
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        where = f"{path}.{field.alias or name}"
        if isinstance(before, Model) and isinstance(after, Model):
            changes |= changed_fields(before, after, where)
        elif before != after:
            assert isinstance(field.json_schema_extra, dict)
            changes[where] = Change(str(field.json_schema_extra[CHANGE]))
    return changes


def keep_fields(
    old: M, new: M, change: Change, only: Callable[[str], bool] = lambda path: True, path: str = "spec"
) -> M:
    """Return ``new`` with the values of ``old`` for the fields of this change class.

    ``only`` returns True for the paths of the fields that count. The result is not validated.
    """
    taken: dict[str, Any] = {}
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        where = f"{path}.{field.alias or name}"
        if isinstance(before, Model) and isinstance(after, Model):
            taken[name] = keep_fields(before, after, change, only, where)
        else:
            assert isinstance(field.json_schema_extra, dict)
            kept = field.json_schema_extra[CHANGE] == change and only(where)
            taken[name] = before if kept else after
    return new.model_copy(update=taken)


def with_hot_fields(old: M, new: M) -> M:
    """Return ``old`` with the values of ``new`` for the fields whose change class is Hot."""
    taken: dict[str, Any] = {}
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Model) and isinstance(after, Model):
            taken[name] = with_hot_fields(before, after)
        else:
            assert isinstance(field.json_schema_extra, dict)
            taken[name] = after if field.json_schema_extra[CHANGE] == Change.HOT else before
    return old.model_copy(update=taken)
