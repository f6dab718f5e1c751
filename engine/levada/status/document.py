"""The form of the status document's JSON: names, times, positions and rounding.

The parts are plain dataclasses, which are cheap to create and are not validated then. Pydantic writes them as JSON, and
validates what is read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from levada.docstrings import field_docstring
from levada.status.names import (
    CatchUpState,
    CutPhase,
    GuardMeasure,
    GuardPolicy,
    PipelineState,
    ResyncStep,
    RetryPolicy,
    TablePhase,
)
from levada.values import CopiedRows, TableMode

_INTEGER_BITS: Final = 63
"""The size of the largest number in the status of a Kubernetes object, without the sign."""
_TIME_SCHEMA: Final = {"type": "string", "format": "date-time"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the document. Its keys are camelCase in JSON.

    A reader ignores keys that it does not know. It takes null for a missing key.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        extra="ignore",
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the part's JSON schema with the docstrings of its fields."""
        out = handler(schema)
        properties = handler.resolve_ref_schema(out)["properties"]
        for field in fields(cls):
            # Excluded fields are not in the schema.
            if (shown := properties.get(to_camel(field.name))) is not None and (
                text := field_docstring(cls, field.name)
            ):
                shown["description"] = text
        return out

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        kind: Any = type(self)
        document: dict[str, Any] = adapter(kind).dump_python(self, mode="json", by_alias=True)
        return document

    def json_text(self) -> bytes:
        """Return the document as JSON in UTF-8. It takes half the time that `to_json` and ``json.dumps`` take."""
        kind: Any = type(self)
        return adapter(kind).dump_json(self, by_alias=True)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Parse plain values of JSON. Raise pydantic's ValidationError if they have another form."""
        kind: Any = cls
        part: Self = adapter(kind).validate_python(document)
        return part

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, document: object) -> object:
        if not isinstance(document, dict):
            return document
        if any(isinstance(value, int) and value.bit_length() > _INTEGER_BITS for value in document.values()):
            raise ValueError(f"a number has more than {_INTEGER_BITS} bits")
        return {key: value for key, value in document.items() if value is not None}


@cache
def adapter(kind: type[Part]) -> TypeAdapter[Any]:
    """Return pydantic's codec of a part. It is built when it is first used."""
    return TypeAdapter(kind)


def utc_text(at: datetime) -> str:
    """Return a time in UTC with milliseconds, in the format of ISO 8601."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time outside of the years 1 to 9999 in UTC") from None


def _rounded(digits: int) -> PlainSerializer:
    return PlainSerializer(partial(round, ndigits=digits), return_type=float)


Time = Annotated[
    AwareDatetime, AfterValidator(_utc), PlainSerializer(utc_text, return_type=str), WithJsonSchema(_TIME_SCHEMA)
]
"""A time, written in UTC with milliseconds."""
Tenths = Annotated[float, _rounded(1)]
Thousandths = Annotated[float, _rounded(3)]

# A newer engine may report a value that this version does not know. It is then kept as text.
_Open = Field(union_mode="left_to_right")
State = Annotated[PipelineState | str, _Open]
Cutting = Annotated[CutPhase | str, _Open]
Phase = Annotated[TablePhase | str, _Open]
Mode = Annotated[TableMode | str, _Open]
Rows = Annotated[CopiedRows | str, _Open]
Step = Annotated[ResyncStep | str, _Open]
Policy = Annotated[RetryPolicy | str, _Open]
Measure = Annotated[GuardMeasure | str, _Open]
Severity = Annotated[GuardPolicy | str, _Open]
Outcome = Annotated[CatchUpState | str, _Open]
