"""The verifications that users request over HTTP. Each runs in a thread of its own, one at a time."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levada.errors import LevadaError, NeedsOperator
from levada.runtime.report.responses import describe_invalid
from levada.values import QualifiedTable
from levada.verify.report import NotRepaired, TableReport
from levada.verify.table import VerifyOptions

_log = logging.getLogger(__name__)

_KEPT: Final = 20
"""The number of the last verifications whose results are kept."""
_TICK_S: Final = 1.0

Verify = Callable[[QualifiedTable, VerifyOptions, threading.Event], TableReport]


class VerifyRequest(BaseModel):
    """The body of a request to verify tables."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tables: list[str] = Field(min_length=1)
    sample: float = Field(default=1.0, gt=0, le=1)
    examples: int = Field(default=100, ge=0, le=10_000)
    repair: bool = False
    showValues: bool = False  # noqa: N815 - the field's name in JSON
    leaseSeconds: float = Field(default=0, ge=0)  # noqa: N815 - the field's name in JSON
    """Seconds without a request for its state, after which a verification is ended. 0: it goes on without a client."""


@dataclass(slots=True)
class _Verification:
    """One verification. Its thread appends to ``results``. ``unwatched_s`` is the time since its client asked."""

    id: int
    tables: Sequence[QualifiedTable]
    options: VerifyOptions
    lease_s: float
    unwatched_s: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)
    results: list[Mapping[str, Any]] = field(default_factory=list)
    ended: bool = False
    step: str = ""
    """The step that runs, in words."""

    def tell(self, table: QualifiedTable, step: str) -> None:
        self.step = f"{table}: {step}"

    def to_json(self) -> dict[str, Any]:
        results = list(self.results)
        counts = {"finished": self.ended, "requested": len(self.tables)}
        return {"id": self.id, **counts, "step": self.step, "tables": results}


class Verifications:
    """Runs requested verifications. ``verify`` compares one table. Thread-safe.

    A client's requests are looked at every ``tick_s`` seconds. The looks are counted, so that a pause of this process
    counts as one.
    """

    def __init__(self, verify: Verify, tick_s: float = _TICK_S) -> None:
        self._verify = verify
        self._tick_s = tick_s
        # Not from 1, so that a client does not take a verification of the next engine for its own.
        self._numbers = itertools.count(1 + secrets.randbelow(1 << 31))
        self._known: dict[int, _Verification] = {}
        self._lock = threading.Lock()

    def start(self, body: bytes) -> dict[str, Any]:
        """Start what the request asks for, and return its state.

        Raise NeedsOperator ``verify_request_invalid``, and ``verify_running`` while another verification runs.
        """
        try:
            wanted = VerifyRequest.model_validate_json(body)
            tables = [QualifiedTable.parse(name) for name in wanted.tables]
        except (ValidationError, ValueError) as error:
            raise NeedsOperator("verify_request_invalid", describe_invalid(error, VerifyRequest)) from None
        options = VerifyOptions(wanted.sample, wanted.examples, wanted.repair, wanted.showValues)
        with self._lock:
            # One that is cancelled may read for a while. The next one waits for it.
            if any(not (v.ended or v.cancelled.is_set()) for v in self._known.values()):
                raise NeedsOperator(
                    "verify_running",
                    "another verification runs in this engine",
                    hint="wait until it has ended. Pressing Ctrl-C where it was started ends it",
                )
            made = _Verification(next(self._numbers), tables, options, wanted.leaseSeconds)
            self._known[made.id] = made
            for number in sorted(self._known)[:-_KEPT]:
                del self._known[number]
        threading.Thread(target=self._run, args=(made,), name="levada-verify", daemon=True).start()
        if made.lease_s:
            threading.Thread(target=_watch, args=(made, self._tick_s), name="levada-verify-lease", daemon=True).start()
        return made.to_json()

    def state(self, number: int) -> dict[str, Any] | None:
        """Return the state of a verification with the results so far, None if it is not known."""
        found = self._known.get(number)
        if found is None:
            return None
        found.unwatched_s = 0.0
        return found.to_json()

    def cancel(self, number: int) -> dict[str, Any] | None:
        """End a verification soon, and return its state, None if it is not known."""
        found = self._known.get(number)
        if found is not None:
            found.cancelled.set()
        return None if found is None else found.to_json()

    def _run(self, verification: _Verification) -> None:
        try:
            for table in verification.tables:
                verification.results.append(self._result(table, verification))
        finally:
            verification.ended = True

    def _result(self, table: QualifiedTable, verification: _Verification) -> Mapping[str, Any]:
        try:
            options = replace(verification.options, told=partial(verification.tell, table))
            report = self._verify(table, options, verification.cancelled)
        except NotRepaired as error:
            return {**error.report.to_json(), "repairError": _described(table, error.code, error.message, error.hint)}
        except LevadaError as error:
            return _failed(table, error.code, error.message, error.hint)
        except BaseException as error:
            _log.exception("the verification of %s failed", table)
            return _failed(table, "internal_error", f"unexpected {type(error).__name__}", "see the log of the engine")
        if not report.equal:
            _log.warning("table %s differs from the source at %s: %d keys", table, report.lsn, report.differences)
        return report.to_json()


def _watch(verification: _Verification, tick_s: float) -> None:
    """End a verification whose client is gone, so that it does not keep others from theirs."""
    while not (verification.ended or verification.cancelled.wait(tick_s)):
        verification.unwatched_s += tick_s
        if verification.unwatched_s > verification.lease_s and not verification.ended:
            _log.warning("a verification is cancelled: its client has not asked for it for %g s", verification.lease_s)
            verification.cancelled.set()


def _failed(table: QualifiedTable, code: str, message: str, hint: str) -> Mapping[str, Any]:
    return {"table": str(table), "error": _described(table, code, message, hint)}


def _described(table: QualifiedTable, code: str, message: str, hint: str) -> Mapping[str, str]:
    """Return the error, with the table in the commands of its hint."""
    return {"code": code, "message": message, "hint": hint.replace("MANIFEST TABLE", f"MANIFEST {table.argument}")}
