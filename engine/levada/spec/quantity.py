"""Kubernetes quantities, such as 64Mi, 20Gi and 500m."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

_SUFFIXES: Final = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
}
PATTERN: Final = r"^[0-9]{1,19}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_QUANTITY: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)(m|[kMGTP]|[KMGTP]i)?")


def parse_quantity(text: str | int) -> Decimal:
    """Parse a quantity. Raise ValueError, whose message describes valid quantities, for anything else."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        raise ValueError("must be a quantity: a number and a unit, such as 512Ki, 64Mi or 20Gi")
    return Decimal(match[1]) * _SUFFIXES[match[2] or ""]


def parse_bytes(text: str | int) -> int:
    """Parse a quantity as a whole number of bytes, rounded up. Raise ValueError if it is below one byte."""
    amount = parse_quantity(text)
    if amount < 1:
        raise ValueError("must be at least 1 byte: the unit m means a thousandth, Mi a mebibyte")
    return int(amount.to_integral_value(rounding="ROUND_CEILING"))


def format_bytes(amount: int) -> str:
    """Return bytes as an exact quantity with the largest binary unit that needs no fraction."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        whole, rest = divmod(amount, int(_SUFFIXES[unit]))
        if whole and not rest:
            return f"{whole}{unit}"
    return str(amount)


def _text(value: Any) -> str:
    parse_quantity(_given(value))
    return str(value)


def _bytes(value: Any) -> int:
    return parse_bytes(_given(value))


def _given(value: Any) -> str | int:
    # A float has lost digits already.
    return value if isinstance(value, str | int) else "nothing of the kind"


_SCHEMA: Final = WithJsonSchema(
    {"anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": PATTERN, "x-kubernetes-int-or-string": True}
)
Bytes = Annotated[int, BeforeValidator(_bytes), _SCHEMA]
"""A size, in bytes."""
Amount = Annotated[str, BeforeValidator(_text), _SCHEMA]
"""A quantity of a container's resource, spelled as in a pod."""
