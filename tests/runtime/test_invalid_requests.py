"""The errors of requests to the engine's port whose bodies are invalid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from levada.errors import NeedsOperator
from levada.runtime.report.cuts_api import CUTS, CutsApi
from levada.runtime.report.verifications import Verifications


def _never(*_: Any) -> Any:
    raise AssertionError("an invalid request reached the pipeline")


def _start_verification(body: bytes) -> str:
    with pytest.raises(NeedsOperator) as raised:
        Verifications(_never).start(body)
    return f"{raised.value.code}: {raised.value.message}"


def _request_cut(body: bytes) -> str:
    response = CutsApi(_never, _never, _never).change("POST", CUTS, body)
    assert response is not None
    error = json.loads(response.body)["error"]
    return f"{error['code']}: {error['message']}"


@pytest.mark.parametrize(
    ("send", "body", "error"),
    [
        (_request_cut, {}, "cut_request_invalid: the request is invalid: name: is required"),
        (_start_verification, {}, "verify_request_invalid: the request is invalid: tables: is required"),
        (
            _start_verification,
            {"tables": ["public.t"], "sample": "s3cret", "repair": 1},
            "verify_request_invalid: the request is invalid: sample: Input should be a valid number;"
            " repair: must be true or false",
        ),
    ],
)
def test_each_invalid_field_is_named(send: Callable[[bytes], str], body: dict[str, Any], error: str) -> None:
    """The message names each invalid field and what it takes, without the value."""
    assert send(json.dumps(body).encode()) == error
