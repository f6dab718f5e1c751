"""The error with which the last run of an engine ended by itself, in the engine's work folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from levada.errors import LevadaError, NeedsOperator, rebuild
from levada.postgres.problems import Severity
from levada.private import replace_file
from levada.runtime.host.outcomes import Outcome, Refused
from levada.runtime.tables.retries import as_levada_error
from levada.status.document import utc_text

_log = logging.getLogger(__name__)

_FILE: Final = "last-error.json"


class LastError:
    """Keeps the error of a pipeline's last run. A run that starts or is stopped leaves none."""

    def __init__(self, work_dir: Path, pipeline: str) -> None:
        self._file = work_dir / _FILE
        self._pipeline = pipeline

    @contextmanager
    def kept(self) -> Iterator[LastError]:
        """Remove the error of the run before, and keep the one that the block raises."""
        with suppress(OSError):
            self._file.unlink()
        try:
            yield self
        except Exception as error:
            self._keep(as_levada_error(error))
            raise

    def keep_refusal(self, outcome: Outcome) -> None:
        """Keep the first error of a start that was refused. Do nothing for another outcome."""
        if isinstance(outcome, Refused):
            first = next(p for p in outcome.problems if p.severity is Severity.ERROR)
            self._keep(NeedsOperator(first.code, first.message, hint=first.hint))

    def read(self) -> LevadaError | None:
        """Return the error, with the time of the run's end in its message, or None."""
        try:
            kept = json.loads(self._file.read_text("utf-8"))
            if kept["pipeline"] != self._pipeline:
                return None
            at = utc_text(datetime.fromisoformat(kept["at"]))
            message = f"no engine runs, and the last one ended at {at}: {kept['message']}"
            return rebuild(kept["policy"], kept["code"], message, kept["hint"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _keep(self, error: LevadaError) -> None:
        kept = {
            "pipeline": self._pipeline,
            "at": datetime.now(UTC).isoformat(),
            "policy": type(error).__name__,
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
        }
        try:
            replace_file(self._file, json.dumps(kept).encode())
        except OSError as failed:
            _log.warning("%s cannot be written, so levada status will not show the error: %s", self._file, failed)
