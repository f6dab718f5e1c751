"""The process that carries out a project's migrations, one at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Step:
    """One migration that was carried out, or the ``error`` for which it was rolled back."""

    name: str
    statements: tuple[str, ...]
    atomic: bool = True
    error: str = ""


class Steps:
    """The migrations of a project. ``names`` has those that are not carried out yet."""

    def __init__(self, requests: IO[str], answers: IO[str], log: Path) -> None:
        self._requests, self._answers, self._log = requests, answers, log
        self.names: list[str] = self._read()

    def next(self) -> Step:
        """Carry out the first of the migrations that are left. After an error it is still the first one."""
        self._requests.write("next\n")
        self._requests.flush()
        answer = self._read()
        step = Step(self.names[0], tuple(answer["statements"]), answer.get("atomic", True), answer.get("error", ""))
        if not step.error:
            self.names.pop(0)
        return step

    def _read(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the process of the migrations has ended\n{self._log.read_text()[-4000:]}")
        return json.loads(line)


@contextmanager
def steps(command: Sequence[str], folder: Path) -> Iterator[Steps]:
    """Run the process in a folder until the end of the block."""
    folder.mkdir()
    with (
        (folder / "steps.log").open("ab") as log,
        subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            cwd=folder,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Steps(process.stdin, process.stdout, Path(log.name))
        finally:
            process.stdin.close()
            process.kill()
