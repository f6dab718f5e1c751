"""Tasks that run in worker processes of this machine, for destinations that do not ask for Spark.

Python's own pools of processes do not fit. They import the user's script again, a worker that is killed ends all tasks
of its pool, and a running task cannot be stopped.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final, Protocol

from levada.copy.places import Places
from levada.copy.tasks import Submit
from levada.copy.worker_process import LOG_RECORD, Setup
from levada.errors import Transient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVER_MODULES: Final = ("levada.copy.snapshot",)
_IDLE_S: Final = 5.0
"""Seconds for which a worker without a task is kept for the next one."""
_STATUS_S: Final = 5.0
"""Seconds to wait for the exit status of a worker that has closed its connection."""


class ProcessTasks:
    """The `levada.copy.tasks.TaskRunner` of worker processes. They are forked from a process that starts when needed.

    ``modules`` are the modules that tasks need. They are imported once, before workers are forked. ``limit`` is the
    number of workers from which a group gets no more than one. None: there is no limit. A worker that is idle for
    ``idle_s`` seconds is ended by `check`.
    """

    def __init__(self, modules: Sequence[str] = (), limit: int | None = None, idle_s: float = _IDLE_S) -> None:
        self._modules = (*_SERVER_MODULES, *modules)
        self._lock = threading.Lock()
        self._server: _ForkServer | None = None
        self._closed = False
        self._places = Places(limit)
        self._idle_s = idle_s
        self._idle: list[tuple[float, Worker]] = []
        """The workers without a task, and since when."""

    @property
    def spark(self) -> SparkSession | None:
        """None, because the tasks run without Spark."""
        return None

    def group(self, description: str) -> WorkerGroup:
        """Return a new group of workers."""
        return WorkerGroup(self, description)

    def check(self) -> None:
        """End the workers that are idle for too long. Processes that have ended are started again when needed."""
        before = time.monotonic() - self._idle_s
        with self._lock:
            ended = [worker for since, worker in self._idle if since <= before]
            self._idle = [(since, worker) for since, worker in self._idle if since > before]
        for worker in ended:
            worker.close()

    def close(self) -> None:
        """End all worker processes. Later tasks raise Transient."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._server is not None:
                self._server.end()
        for _, worker in idle:
            worker.close()

    @property
    def free_places(self) -> int | None:
        """The number of workers that may be added, or None without a limit."""
        return self._places.free

    def place(self, needed: Callable[[], bool], *, first: bool) -> AbstractContextManager[bool]:
        """Yield True in the place of one worker, or False if it is not ``needed`` any more. ``first`` does not wait."""
        return self._places.place(needed, waits=not first)

    def worker(self) -> Worker:
        """Return an idle worker, or a new one.

        Raise OSError if there can be no more processes, and ConnectionError after `close`.
        """
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the worker processes were ended")
            while self._idle:
                _, worker = self._idle.pop()
                if not worker.has_ended:
                    return worker
                worker.close()
            if self._server is None or self._server.has_ended:
                self._server = _ForkServer(self._modules)
            return self._server.fork()

    def put_back(self, worker: Worker) -> None:
        """Keep a worker whose last task has ended for the next one."""
        with self._lock:
            if not self._closed and self._idle_s:
                self._idle.append((time.monotonic(), worker))
                return
        worker.close()


class _ForkServer:
    """The process of `levada.copy.fork_server`."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [entry for entry in sys.path if isinstance(entry, str)]
        program = (
            f"import sys; sys.path[:] = {path!r}; from levada.copy.fork_server import main;"
            f" main({theirs.fileno()}, {os.getpid()}, {modules!r})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def fork(self) -> Worker:
        """Return a new worker. Raise OSError if the process does not take the request."""
        tasks, their_tasks = multiprocessing.Pipe()
        lifeline, their_lifeline = socket.socketpair()
        with their_tasks, their_lifeline:
            socket.send_fds(self._control, [b"f"], [their_tasks.fileno(), their_lifeline.fileno()])
        return Worker(tasks, lifeline)

    def end(self) -> None:
        """Kill the process and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._control.close()


class Worker:
    """The engine's side of a worker process. One thread uses it, and any thread may kill it."""

    def __init__(self, tasks: Connection, lifeline: socket.socket) -> None:
        self._tasks = tasks
        self._lifeline = lifeline
        level = min(logging.getLogger(name).getEffectiveLevel() for name in ("", "levada"))
        self._setup: bytes | None = pickle.dumps(Setup(sys.path, level))

    def submit(self, task: bytes) -> bytes:
        """Run a task and return its outcome. Raise EOFError or ConnectionError if the process ends before."""
        if self._setup is not None:
            self._tasks.send_bytes(self._setup)
            self._setup = None
        self._tasks.send_bytes(task)
        while True:
            message = self._tasks.recv_bytes()
            if not message.startswith(LOG_RECORD):
                return message[1:]
            record: logging.LogRecord = pickle.loads(message[1:])
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)

    @property
    def has_ended(self) -> bool:
        """True if the process has ended. False for a moment after its end."""
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        return bool(poll.poll(0))

    def exit_status(self) -> int | None:
        """Return the exit status of a process that has ended, negative for a signal, or None if it is unknown."""
        self._lifeline.settimeout(_STATUS_S)
        try:
            status = self._lifeline.recv(16)
        except OSError:
            return None
        return int(status) if status else None

    def kill(self) -> None:
        """Kill the process. It may have ended. From any thread."""
        # The descriptor stays open, because another thread may be using it.
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Kill the process and close the connections."""
        self.kill()
        self._lifeline.close()
        self._tasks.close()


class Workers(Protocol):
    """The source of the workers of a group."""

    def place(self, needed: Callable[[], bool], *, first: bool) -> AbstractContextManager[bool]:
        """Yield True in the place of one worker, or False if it is not ``needed`` any more."""

    def worker(self) -> Worker:
        """Return a worker without a task."""

    def put_back(self, worker: Worker) -> None:
        """Take a worker whose last task has ended."""


class WorkerGroup:
    """The `levada.copy.tasks.TaskGroup` of worker processes."""

    def __init__(self, runner: Workers, description: str) -> None:
        self._runner = runner
        self._description = description
        self._workers: set[Worker] = set()
        self._begun = False
        self._cancelled = False
        self._lock = threading.Lock()

    @contextmanager
    def submitter(self, needed: Callable[[], bool]) -> Iterator[Submit | None]:
        """Yield a function that runs tasks in one worker process, and in a new one after that has ended."""
        with self._lock:
            first, self._begun = not self._begun, True
        with self._runner.place(needed, first=first) as has_place:
            if not has_place:
                yield None
                return
            with self._worker() as submit:
                yield submit

    @contextmanager
    def _worker(self) -> Iterator[Submit]:
        worker: Worker | None = None
        busy = False

        def submit(task: bytes) -> bytes:
            nonlocal worker, busy
            busy = True
            try:
                if worker is None:
                    worker = self._runner.worker()
                    with self._lock:
                        self._workers.add(worker)
                outcome = worker.submit(task)
            except (EOFError, OSError) as error:
                ended, worker = worker, None
                raise self._lost(ended, error) from error
            busy = False
            return outcome

        try:
            yield submit
        finally:
            if worker is not None:
                self._return(worker, busy=busy)

    def cancel(self) -> None:
        """Kill the workers."""
        with self._lock:
            self._cancelled = True
            for worker in self._workers:
                worker.kill()

    def _return(self, worker: Worker, *, busy: bool) -> None:
        """Give the worker to the next group, unless its task has not ended, whose outcome that group would get."""
        with self._lock:
            self._workers.discard(worker)
            useless = busy or self._cancelled
        if useless:
            worker.close()
        else:
            self._runner.put_back(worker)

    def _lost(self, worker: Worker | None, error: Exception) -> Transient:
        if worker is None:
            return Transient(
                "worker_process_ended", f"{self._description}: cannot start a worker process: {error}", hint=_NO_WORKER
            )
        status = worker.exit_status()
        self._close(worker)
        how = "" if status is None else f", with exit code {status}"
        return Transient(
            "worker_process_ended",
            f"{self._description}: its worker process ended before the task{how}",
            hint="-9 means that it was killed, often for lack of memory. For other codes see the log",
        )

    def _close(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.close()


_NO_WORKER: Final = "check the limits of processes and open files: ulimit -u -n"
