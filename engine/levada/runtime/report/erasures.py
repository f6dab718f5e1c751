"""The erasures that users request over HTTP. Each runs in a thread of its own, one at a time.

The client may go away. An erasure that has begun goes on, because half of one is of no use.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levada import codes
from levada.errors import LevadaError, NeedsOperator
from levada.runtime.erasures.eraser import ErasureOptions
from levada.runtime.erasures.report import ErasureReport
from levada.runtime.report.responses import Response, describe_invalid, error_response, json_response
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

ERASURES: Final = "/v1/erasures"
_KEPT: Final = 20
"""The number of the last erasures whose results are kept."""


class Erases(Protocol):
    """Erases keys from a table. See `levada.runtime.erasures.eraser.Eraser.run`."""

    def erase(self, table: QualifiedTable, options: ErasureOptions, cancelled: threading.Event) -> ErasureReport:
        """Erase the keys and return the result."""
        ...


class EraseRequest(BaseModel):
    """The body of a request to erase keys of a table. A key is a text, or a text for each key column by its name."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    table: str
    keys: list[str | dict[str, str]] = Field(min_length=1)
    dryRun: bool = False  # noqa: N815 - the field's name in JSON
    cuts: bool = False
    anyway: bool = False


@dataclass(slots=True)
class _Erasing:
    """One erasure. Its thread sets ``outcome`` at the end."""

    id: int
    table: QualifiedTable
    options: ErasureOptions = field(repr=False)
    cancelled: threading.Event = field(default_factory=threading.Event)
    outcome: Mapping[str, Any] | None = None
    step: str = ""

    def tell(self, step: str) -> None:
        self.step = step

    def to_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {"id": self.id, "finished": outcome is not None, "step": self.step, **(outcome or {})}


class ErasuresApi:
    """Runs requested erasures. Thread-safe."""

    def __init__(self, eraser: Erases) -> None:
        self._eraser = eraser
        # Not from 1, so that a client does not take an erasure of the next engine for its own.
        self._numbers = itertools.count(1 + secrets.randbelow(1 << 31))
        self._known: dict[int, _Erasing] = {}
        self._lock = threading.Lock()

    def state(self, path: str) -> Response | None:
        """Return the response to a GET of ``/v1/erasures/N``, None for any other path."""
        number = _number(path)
        return None if number is None else _known_response(self._known.get(number))

    def change(self, method: str, path: str, body: bytes) -> Response | None:
        """Return the response to a POST of ``/v1/erasures`` or a DELETE of one below it, None for anything else."""
        try:
            if method == "POST" and path == ERASURES:
                return json_response(self._start(body), HTTPStatus.ACCEPTED)
        except NeedsOperator as error:
            status = HTTPStatus.CONFLICT if error.code == codes.ERASE_RUNNING else HTTPStatus.BAD_REQUEST
            return error_response(status, error)
        if method != "DELETE" or (number := _number(path)) is None:
            return None
        found = self._known.get(number)
        if found is not None:
            found.cancelled.set()
        return _known_response(found)

    def _start(self, body: bytes) -> dict[str, Any]:
        try:
            wanted = EraseRequest.model_validate_json(body)
            table = QualifiedTable.parse(wanted.table)
        except (ValidationError, ValueError) as error:
            raise NeedsOperator(
                "erase_request_invalid",
                describe_invalid(error, EraseRequest),
                hint="use the same version of Levada for the command and for the engine",
            ) from None
        options = ErasureOptions(wanted.keys, wanted.dryRun, wanted.cuts, wanted.anyway)
        with self._lock:
            if any(e.outcome is None for e in self._known.values()):
                raise NeedsOperator(
                    "erase_running",
                    "another erasure runs in this engine",
                    hint="wait until it has ended, then run the command again",
                )
            made = _Erasing(next(self._numbers), table, options)
            made.options = replace(options, told=made.tell)
            self._known[made.id] = made
            for number in sorted(self._known)[:-_KEPT]:
                del self._known[number]
        threading.Thread(target=self._run, args=(made,), name="levada-erase", daemon=True).start()
        return made.to_json()

    def _run(self, erasing: _Erasing) -> None:
        outcome: Mapping[str, Any] = _failed("internal_error", "the erasure ended", "see the log of the engine")
        try:
            outcome = {"result": self._eraser.erase(erasing.table, erasing.options, erasing.cancelled).to_json()}
        except LevadaError as error:
            hint = error.hint.replace("MANIFEST TABLE", f"MANIFEST {erasing.table.argument}")
            outcome = _failed(error.code, error.message, hint)
        except BaseException as error:
            # No traceback, because the message of an unexpected error may have a value.
            _log.error("the erasure of keys of %s failed: %s", erasing.table, type(error).__name__)
            outcome = _failed("internal_error", f"unexpected {type(error).__name__}", "see the log of the engine")
        finally:
            # The keys are needed no longer.
            erasing.options = replace(erasing.options, keys=())
            erasing.outcome = outcome


def _failed(code: str, message: str, hint: str) -> Mapping[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


def _known_response(erasing: _Erasing | None) -> Response:
    if erasing is not None:
        return json_response(erasing.to_json())
    unknown = NeedsOperator(
        "erase_unknown",
        "the engine has no such erasure, because it was started again since",
        hint="run the command again. It removes what is left",
    )
    return error_response(HTTPStatus.NOT_FOUND, unknown)


def _number(path: str) -> int | None:
    folder, _, number = path.rpartition("/")
    return int(number) if folder == ERASURES and number.isascii() and number.isdigit() else None
