"""The process from which worker processes are forked, with the modules of Levada's tasks already imported.

A worker then starts in milliseconds and shares the memory of these modules. It is a fork of this process and not of the
engine, because a fork of a process with threads can hang.

The server and its workers are a session of their own, so that Ctrl-C in a terminal reaches only the engine. They end
when the engine ends, however it ends. The engine asks for a worker by a message with two sockets. Over the first one
the worker gets its tasks. The second one belongs to the server, which kills the worker once the engine closes its end,
and writes the exit status of a worker that has ended. Only the server knows for how long a PID is that of its worker.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, NoReturn

from levada.copy.worker_process import work

IDLE_S: Final = 60.0
"""Seconds after which a server without workers ends. Its modules take 80 MB."""
_POLL_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


def main(control: int, engine: int, modules: Sequence[str]) -> NoReturn:
    """Run the server. ``control`` is the socket of the process ``engine``. ``modules`` are imported before any fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output may be that of a command with a format, such as JSON.
    os.dup2(2, 1)
    gc.disable()
    for module in modules:
        # A task that needs the module raises the error.
        with suppress(Exception):
            importlib.import_module(module)
    # Keeps the garbage collection of the workers from visiting these modules, which would copy their memory pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        _Server(socket.socket(fileno=control), engine).run()
    finally:
        # The workers too, which are in this process's group.
        os.killpg(0, signal.SIGKILL)
    raise AssertionError


class _Server:
    def __init__(self, control: socket.socket, engine: int) -> None:
        self._control = control
        self._engine = engine
        self._workers: dict[int, socket.socket | None] = {}
        """The engine's socket of each worker by PID, None once the worker was killed."""
        self._sockets = selectors.DefaultSelector()
        self._sockets.register(control, selectors.EVENT_READ)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        # A signal without a handler does not write to the wake-up socket.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._sockets.register(self._woken, selectors.EVENT_READ)
        self._libc = ctypes.CDLL(None)

    def run(self) -> None:
        """Serve until the engine has ended, or until there was no worker for `IDLE_S`."""
        idle_from = time.monotonic()
        while os.getppid() == self._engine:
            for key, _ in self._sockets.select(_POLL_S):
                if key.fileobj is self._control:
                    if not self._handle_request():
                        return
                elif key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    self._kill(key.data)
            self._reap()
            if self._workers:
                idle_from = time.monotonic()
            elif time.monotonic() - idle_from > IDLE_S:
                return

    def _handle_request(self) -> bool:
        """Fork the worker that the engine asks for. Return False if the engine has closed its socket."""
        message, received, _, _ = socket.recv_fds(self._control, 1, 2)
        if not message:
            return False
        tasks, lifeline = received
        # If there can be no more processes, the engine finds both sockets closed.
        with suppress(OSError):
            self._fork(tasks, lifeline)
        os.close(tasks)
        os.close(lifeline)
        return True

    def _fork(self, tasks: int, lifeline: int) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(tasks, lifeline, server)
        held = self._workers[pid] = socket.socket(fileno=os.dup(lifeline))
        self._sockets.register(held, selectors.EVENT_READ, pid)

    def _become_worker(self, tasks: int, lifeline: int, server: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(lifeline)
            self._sockets.close()
            for held in (self._control, self._woken, self._wake, *self._workers.values()):
                if held is not None:
                    held.close()
            if os.getppid() == server:
                work(Connection(tasks))
            status = 0
        except BaseException:
            # Also an exit that a task asks for. The rest of this process is the server's.
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _kill(self, pid: int) -> None:
        """Kill a worker whose socket the engine has closed."""
        self._close(pid)
        self._workers[pid] = None
        os.kill(pid, signal.SIGKILL)

    def _close(self, pid: int) -> None:
        if (lifeline := self._workers[pid]) is not None:
            self._sockets.unregister(lifeline)
            lifeline.close()

    def _reap(self) -> None:
        """Send the exit status of each worker that has ended."""
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if (lifeline := self._workers[pid]) is not None:
                with suppress(OSError):
                    lifeline.send(str(os.waitstatus_to_exitcode(status)).encode())
            self._close(pid)
            del self._workers[pid]
