"""The cuts that users request over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, ValidationError

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.runtime.report.responses import Response, describe_invalid, error_response, json_response
from levada.status import CutProgress

CUTS: Final = "/v1/cuts"
_CONFLICTS: Final = frozenset({codes.CUT_EXISTS, codes.CUT_NOT_READY})


class CutRequest(BaseModel):
    """The body of a request for a cut."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class CutsApi:
    """Lists, requests and drops cuts by functions of the running pipeline. Thread-safe, as they are.

    ``request`` gets the name, and True if tables may be left out.
    """

    cuts: Callable[[], Sequence[CutProgress]]
    request: Callable[[str, bool], None]
    drop: Callable[[str], None]

    def list(self) -> Response:
        """Return all cuts, the newest last."""
        try:
            return json_response({"cuts": [cut.to_json() for cut in self.cuts()]})
        except LevadaError as error:
            return error_response(_status(error), error)

    def change(self, method: str, path: str, body: bytes) -> Response | None:
        """Return the response to a POST of ``/v1/cuts`` or a DELETE of a cut below it, None for anything else."""
        folder, _, name = path.rpartition("/")
        try:
            if method == "POST" and path == CUTS:
                wanted = _parsed(body)
                self.request(wanted.name, wanted.partial)
                return json_response({"name": wanted.name}, HTTPStatus.ACCEPTED)
            if method == "DELETE" and folder == CUTS:
                self.drop(unquote(name))
                return json_response({"name": unquote(name)}, HTTPStatus.ACCEPTED)
        except LevadaError as error:
            return error_response(_status(error), error)
        return None


def _parsed(body: bytes) -> CutRequest:
    try:
        return CutRequest.model_validate_json(body)
    except ValidationError as error:
        raise NeedsOperator("cut_request_invalid", describe_invalid(error, CutRequest)) from None


def _status(error: LevadaError) -> HTTPStatus:
    if isinstance(error, Transient):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.CONFLICT if error.code in _CONFLICTS else HTTPStatus.BAD_REQUEST
