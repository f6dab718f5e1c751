"""What all models of the manifest share: strictness, the class of a change, rules over several fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

CHANGE: Final = "x-levada-change"
"""The key under which a field's schema tells its change class."""

# What the API server would refuse is refused here too: no "5432" for 5432, no 1 for true.
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]


class Change(StrEnum):
    """What a change of a field costs, from the cheapest to the dearest."""

    HOT = "Hot"
    """Taken up by the running driver, or by the operator alone."""
    RESTART = "Restart"
    """The driver is restarted; nothing is copied again."""
    RESYNC = "Resync"
    """The tables that it concerns are copied again."""
    IMMUTABLE = "Immutable"
    """Refused: make a new Pipeline."""


def setting(change: Change, default: Any = ..., **constraints: Any) -> Any:
    """Declare a field of a manifest; for an object, ``change`` is the class of its coming and going.

    ``constraints`` are pydantic's. The field's docstring is its description.
    """
    return Field(default, json_schema_extra={CHANGE: change.value}, **constraints)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields of a model, for Python and, as CEL, for the API server.

    ``field`` is the path below the model, in the YAML's spelling, that a breach is reported at.
    """

    message: str
    cel: str
    holds: Callable[[Any], bool]
    field: str = ""


class Model(BaseModel):
    """A part of a manifest: camelCase in YAML, unknown keys refused, frozen once read."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = [rule for rule in self.rules if not rule.holds(self)]
        if broken:
            raise PydanticCustomError("rules", "rules are broken", {"broken": [(r.field, r.message) for r in broken]})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules as ``x-kubernetes-validations``."""
        out = handler(schema)
        if cls.rules:
            resolved = handler.resolve_ref_schema(out)
            resolved["x-kubernetes-validations"] = [
                {"rule": r.cel, "message": r.message, **({"fieldPath": f".{r.field}"} if r.field else {})}
                for r in cls.rules
            ]
        return out


def exactly_one(*fields: str, what: str) -> Rule:
    """Make the rule that one, and one only, of these optional objects is given."""
    names = ", ".join(map(to_camel, fields))
    given = ", ".join(f"has(self.{to_camel(f)})" for f in fields)
    return Rule(
        f"exactly one {what} is needed: one of {names}",
        f"[{given}].filter(x, x).size() == 1",
        lambda model: sum(getattr(model, f) is not None for f in fields) == 1,
    )


M = TypeVar("M", bound=Model)


def changed_fields(old: Model, new: Model, path: str = "spec") -> dict[str, Change]:
    """Return the path of every field that differs, with its change class."""
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


def with_hot_fields(old: M, new: M) -> M:
    """Return ``old`` with the fields of ``new`` whose change is Hot."""
    taken: dict[str, Any] = {}
    for name, field in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Model) and isinstance(after, Model):
            taken[name] = with_hot_fields(before, after)
        else:
            assert isinstance(field.json_schema_extra, dict)
            taken[name] = after if field.json_schema_extra[CHANGE] == Change.HOT else before
    return old.model_copy(update=taken)
