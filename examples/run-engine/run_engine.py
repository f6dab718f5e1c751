"""The engine in a Python program: runs a manifest until it has caught up, and reports each phase that a table reaches.

    python examples/run-engine/run_engine.py pipeline.yaml secrets

SIGINT and SIGTERM stop it cleanly. The exit code is 0 once every table has caught up.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from levada import CaughtUp, Engine, EngineObserver, Progress, Refused, TablesErrored, caught_up


class Phases(EngineObserver):
    """Prints each table's phase when it changes."""

    def __init__(self) -> None:
        self._phases: dict[str, str] = {}

    def progress(self, progress: Progress) -> None:
        for table in progress.tables:
            if self._phases.get(str(table.table)) != table.phase:
                self._phases[str(table.table)] = table.phase
                print(f"{table.table}: {table.phase}")


def run(manifest: Path, secrets: Path | None) -> int:
    with Engine(manifest, secrets=secrets, observer=Phases()) as engine:
        before = [signal.signal(number, lambda *_: engine.stop()) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            outcome = engine.run(until=caught_up)
        finally:
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
                signal.signal(number, handler)
    match outcome:
        case CaughtUp(progress):
            print(f"{progress.pipeline}: {len(progress.tables)} tables have caught up")
            return 0
        case TablesErrored():
            for table in outcome.tables:
                print(f"{table.table}: {table.error.reason if table.error else ''}", file=sys.stderr)
        case Refused(problems):
            for problem in problems:
                print(f"{problem.message} [{problem.code}]\n  {problem.hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
