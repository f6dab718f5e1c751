"""JSON whose numbers keep all their digits, from an answer of OpenSearch to the next request.

A jsonb value may have numbers that no double holds. While they are Python objects, numbers with a fraction or an
exponent are strings with a mark. The mark is random, so that no value of a row has it by accident or on purpose.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any, Final

from opensearchpy.serializer import JSONSerializer

_MARK: Final = f"levada-number-{secrets.token_hex(16)}:"
_MARKED: Final = re.compile(rf'"{_MARK}([^"]*)"')


class ExactSerializer(JSONSerializer):
    """Reads answers with marked numbers, and writes requests with the numbers that were read."""

    def loads(self, s: str) -> Any:
        """Parse an answer."""
        return exact_loads(s)

    def dumps(self, data: Any) -> Any:
        """Return the body of a request."""
        return data if isinstance(data, (str, bytes)) else exact_dumps(data)


def exact_loads(text: str) -> Any:
    """Parse JSON whose numbers `exact_dumps` writes again as they are."""
    # Python limits the digits of an int, so long ones are marked too.
    return json.loads(text, parse_float=_marked, parse_int=_integer)


def exact_dumps(value: Any) -> str:
    """Return the JSON of a value that `exact_loads` has parsed."""
    return _MARKED.sub(r"\1", json.dumps(value, ensure_ascii=False))


def _marked(digits: str) -> str:
    return _MARK + digits


def _integer(digits: str) -> int | str:
    # OpenSearch's own numbers, such as versions, have up to 19 digits.
    return int(digits) if len(digits) <= 20 else _marked(digits)
