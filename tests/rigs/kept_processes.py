"""Worker processes of the pipelines that run in pytest's process."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from typing import ClassVar

from levada.copy.process_tasks import ProcessTasks, Worker, _ForkServer


class KeptProcessTasks(ProcessTasks):
    """Forks workers from a process that stays for the next pipeline: its imports cost a CPU second.

    A pipeline in another environment or with a destination of another module gets another process.
    """

    _kept: ClassVar[dict[Hashable, _ForkServer]] = {}

    def __init__(self, modules: Sequence[str] = (), limit: int | None = None) -> None:
        super().__init__(modules, limit)
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self._key = (tuple(modules), tuple(sys.path), frozenset(environment.items()), os.getcwd())
        self._server = self._kept.pop(self._key, None)
        self._forked: set[Worker] = set()

    def worker(self) -> Worker:
        """Return an idle worker, or a new one."""
        worker = super().worker()
        self._forked.add(worker)
        return worker

    def close(self) -> None:
        """End all workers, and keep the process from which they were forked."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
            idle, self._idle = self._idle, []
        for worker in self._forked:
            worker.kill()
        for _, worker in idle:
            worker.close()
        if server is not None:
            former = self._kept.pop(self._key, None)
            self._kept[self._key] = server
            if former is not None:
                former.end()

    @classmethod
    def end_all(cls) -> None:
        """End the processes that are kept."""
        while cls._kept:
            cls._kept.popitem()[1].end()
