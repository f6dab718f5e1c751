"""The problems of a manifest, each with the path of its field and a description of valid values.

Values of the manifest are not repeated: a free-form setting may hold a secret in spite of the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from math import inf
from typing import Annotated, Any, Final, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from levada.errors import InvalidManifest
from levada.spec.names import FORMS

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One problem of a manifest. ``line`` counts from 1, and 0 means that the line is unknown."""

    location: Location
    text: str
    line: int = 0

    @property
    def path(self) -> str:
        """The field's path, as in ``spec.tables.include[0].name``."""
        path = ""
        for step in self.location:
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
        return path.removeprefix(".")


def invalid(problems: Iterable[SpecProblem], source: str) -> InvalidManifest:
    """Return the error that lists all problems, ordered by line."""
    ordered = sorted(problems, key=lambda p: p.line)
    lines = []
    for problem in ordered:
        where = f"{source}:{problem.line}" if problem.line else source
        lines.append(f"{where}: {problem.path}: {problem.text}" if problem.path else f"{where}: {problem.text}")
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return InvalidManifest("invalid_manifest", "\n  ".join([f"{source} has {count}:", *lines]))


def explain(error: ValidationError, model: type[BaseModel]) -> list[SpecProblem]:
    """Return pydantic's errors as problems."""
    problems = []
    details = error.errors(include_url=False)
    for detail in details:
        location = tuple(step for step in detail["loc"] if step != "[key]")
        if detail["type"] == "rules":
            for field, message in detail["ctx"]["broken"]:
                below = tuple(field.split(".")) if field else ()
                problems.append(SpecProblem((*location, *below), message))
        elif detail["type"] != "too_short" or not _wrong_below(location, details):
            problems.append(SpecProblem(location, _describe(detail, model)))
    return problems


def value_problem(model: type[BaseModel], field: str, value: object) -> str:
    """Return what a value of a model's field must be, an empty string if it is that."""
    try:
        _adapter(model, field).validate_python(value)
    except ValidationError as error:
        return _describe(error.errors(include_url=False)[0], model)
    return ""


def bounds(model: type[BaseModel], field: str) -> tuple[float, float]:
    """Return the lowest and the highest value of a model's number. Infinity stands for no limit."""
    limits = model.model_fields[field].metadata
    low = [limit.ge for limit in limits if isinstance(limit, Ge)]
    high = [limit.le for limit in limits if isinstance(limit, Le)]
    return (
        float(low[0]) if low else -inf,  # type: ignore[arg-type]  # annotated_types allows more than numbers
        float(high[0]) if high else inf,  # type: ignore[arg-type]  # likewise
    )


@cache
def _adapter(model: type[BaseModel], field: str) -> TypeAdapter[Any]:
    info = model.model_fields[field]
    return TypeAdapter(Annotated[(info.annotation, *info.metadata)])  # type: ignore[arg-type]  # made at run time


def suggest(word: object, known: Iterable[str]) -> str:
    """Suggest the most similar of the known words, or list all of them if none is similar."""
    spelled = {name.casefold(): name for name in known}
    plain = str(word).replace("_", "").replace("-", "").casefold()
    close = get_close_matches(plain, spelled, n=1, cutoff=0.6)
    if close:
        return f"did you mean {spelled[close[0]]}?"
    return "known words: " + ", ".join(sorted(spelled.values())) if spelled else "no word is known here"


_TYPES: Mapping[str, str] = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "missing": "is required",
    "model_attributes_type": "must be a mapping",
    "model_type": "must be a mapping",
    "string_type": "must be a string: put it in quotes",
    "tuple_type": "must be a list",
}
_MAPPINGS: Final = ("dict_type", "model_attributes_type", "model_type")


def _describe(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _TYPES:
        if kind in _MAPPINGS and detail["input"] is None:
            return "must be a mapping, and is null: YAML reads Null without quotes as nothing"
        quoted = kind == "int_type" and isinstance(detail["input"], str)
        return _TYPES[kind] + (", without quotes" if quoted else "")
    match kind:
        case "extra_forbidden":
            *above, key = detail["loc"]
            if outer := _outer_path(model, above, str(key)):
                return f"unknown key: did you mean {outer}?"
            return f"unknown key: {suggest(key, _keys(model, above))}"
        case "enum" | "literal_error":
            choices = _choices(model, detail["loc"]) or [c.strip("' ") for c in context["expected"].split(" or ")]
            if detail["input"] is None and "Null" in choices:
                return f"must be {' or '.join(choices)}: put Null in quotes, because YAML reads it as nothing"
            nearest = suggest(detail["input"], choices) if len(choices) > 1 else ""
            guess = f", {nearest}" if nearest.startswith("did") else ""
            return f"must be {' or '.join(choices)}{guess}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "string_pattern_mismatch":
            return FORMS.get(context["pattern"], f"must match {context['pattern']}")
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "too_short":
            return f"needs at least {context['min_length']}"
        case "too_long":
            return f"may have at most {context['max_length']}"
    return detail["msg"].removeprefix("Value error, ")


def _wrong_below(location: Location, details: Iterable[ErrorDetails]) -> bool:
    """Return True if an entry of a list is invalid. Pydantic does not count such entries towards the list's length."""
    return any(d["loc"][: len(location)] == location and len(d["loc"]) > len(location) for d in details)


def _model_at(model: type[BaseModel], location: Iterable[str | int]) -> tuple[type[BaseModel] | None, Any]:
    """Return the model and the annotation at a location below a model, or None for each if there is none."""
    at: type[BaseModel] | None = model
    annotation: Any = model
    for step in location:
        if isinstance(step, int):
            continue
        if get_origin(annotation) is dict:
            # The step is a key of the manifest's author, whose value has the model.
            annotation = get_args(annotation)[1]
            continue
        field = (
            None if at is None else next((f for name, f in at.model_fields.items() if (f.alias or name) == step), None)
        )
        if field is None:
            return None, None
        annotation = field.annotation
        at = next(iter(_classes(annotation, BaseModel)), None)
    return at, annotation


def _keys(model: type[BaseModel], location: Iterable[str | int]) -> list[str]:
    at, _ = _model_at(model, location)
    return [] if at is None else [field.alias or name for name, field in at.model_fields.items()]


def _outer_path(model: type[BaseModel], location: Sequence[str | int], key: str) -> str:
    """Return the path of the key of that name in a mapping around the location, or an empty string."""
    for depth in reversed(range(1, len(location))):
        if key in _keys(model, location[:depth]):
            return SpecProblem((*location[:depth], key), "").path
    return ""


def _choices(model: type[BaseModel], location: Iterable[str | int]) -> list[str]:
    _, annotation = _model_at(model, location)
    return [str(member.value) for enum in _classes(annotation, Enum) for member in enum]


def _classes(annotation: Any, wanted: type) -> list[Any]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, wanted) else []
    return [found for inner in get_args(annotation) for found in _classes(inner, wanted)]
