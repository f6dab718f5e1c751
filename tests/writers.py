"""Threads that write to the source while a test does something else."""

from __future__ import annotations

import threading
from typing import Any

from tests.rigs.database import Database


class Writers:
    """Writes to the database until the end of a ``with`` block, which raises the error of a writer."""

    def __init__(self, db: Database, threads: int = 1) -> None:
        self._db = db
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        self._failure: BaseException | None = None
        self.stopped = threading.Event()
        self.count = 0
        """The number of writes."""

    def write(self, connection: Any, seed: int) -> None:
        """Write once. ``seed`` is the number of the thread."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, seed: int) -> None:
        try:
            with self._db.connect() as connection:
                while not self.stopped.is_set():
                    self.write(connection, seed)
                    self.count += 1
        except BaseException as error:
            self._failure = error
