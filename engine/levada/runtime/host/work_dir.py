"""The work folder of an engine: its lock, and the address by which other commands find the running engine."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from levada.direct_http import open_directly
from levada.errors import NeedsOperator
from levada.private import private_folder, replace_file
from levada.runtime.watching import repeated
from levada.status import Progress, read_progress

_log = logging.getLogger(__name__)

_FILE: Final = "engine.json"
_LOCK: Final = "engine.lock"
_TIMEOUT_S: Final = 5.0
_RESTORED_S: Final = 2.0
"""Seconds between two looks for the address, which a removal of the folder takes along."""


def default_work_dir(parent: Path, pipeline: str) -> Path:
    """Return the default work folder of a pipeline, in the folder ``parent``."""
    return parent / ".levada" / pipeline


def create_work_dir(work_dir: Path) -> None:
    """Create the work folder. Raise NeedsOperator ``work_dir_unusable`` if that fails."""
    try:
        private_folder(work_dir)
    except OSError as error:
        raise work_dir_unusable(work_dir, f"created: {error.strerror}") from None


@contextmanager
def locked_work_dir(work_dir: Path) -> Iterator[None]:
    """Hold the lock of the work folder during the block.

    The lock ends with the process, even if it is killed. Raise NeedsOperator ``engine_running`` if another process
    holds the lock, and ``work_dir_unusable`` if the folder cannot be written.
    """
    file = work_dir / _LOCK
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise work_dir_unusable(work_dir, f"written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise engine_running(work_dir, os.pread(lock, 20, 0).decode("ascii", "replace").strip()) from None
        except OSError as error:
            _log.warning("%s cannot be locked, so a second engine in it is not detected: %s", file, error.strerror)
        with suppress(OSError):  # on a full disk the message lacks the PID
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def engine_running(work_dir: Path, pid: str) -> NeedsOperator:
    """Return the error of a work folder that another process uses. ``pid`` is empty if it is unknown."""
    return NeedsOperator(
        "engine_running",
        f"another process uses the work folder {work_dir}" + (f": PID {pid}" if pid else ""),
        hint=f"stop it first: kill {pid}" if pid.isdigit() else "stop it first: press Ctrl-C where it runs",
    )


def engine_elsewhere(slot: str, command: str) -> NeedsOperator:
    """Return the error of a slot that an engine streams from which does not use this work folder."""
    return NeedsOperator(
        "engine_elsewhere",
        f"an engine on another machine or in another work folder streams from slot {slot}",
        hint=f"run the command where the engine runs, for example: kubectl exec POD -- levada {command},"
        " or with the --work-dir of that engine",
    )


@contextmanager
def published_address(work_dir: Path, address: str) -> Iterator[None]:
    """Keep the address of this process's port in the work folder during the block.

    It is written again if another hand removes it, or the folder. Raise NeedsOperator ``work_dir_unusable`` if the
    folder cannot be written.
    """
    file = work_dir / _FILE
    content = json.dumps({"pid": os.getpid(), "address": address}).encode()

    def restore(_: threading.Event) -> bool:
        with suppress(OSError):  # a folder that cannot be written now may be later
            if not file.exists():
                private_folder(work_dir)
                replace_file(file, content)
        return True

    try:
        replace_file(file, content)
    except OSError as error:
        raise work_dir_unusable(work_dir, f"written: {error.strerror}") from None
    try:
        with repeated(restore, _RESTORED_S, "levada-address"):
            yield
    finally:
        if _read(work_dir).get("pid") == os.getpid():
            file.unlink(missing_ok=True)


def running_progress(
    work_dir: Path, pipeline: str | None = None, headers: Mapping[str, str] | None = None
) -> Progress | None:
    """Return the progress of the engine that uses the work folder, or None if none answers.

    A killed engine leaves its address behind. Another server there, or the engine of another ``pipeline``, counts as no
    answer. Raise NeedsOperator if an engine of another version answers, as `read_progress` does.
    """
    request = _progress_request(work_dir, headers)
    if request is None:
        return None
    try:
        with open_directly(request, _TIMEOUT_S) as response:
            document = json.load(response)
    except (OSError, HTTPException, ValueError):
        return None
    if not isinstance(document, dict) or "pipeline" not in document or pipeline not in (None, document["pipeline"]):
        return None
    return read_progress(document)


def running_address(work_dir: Path) -> str | None:
    """Return the base URL that an engine left in the work folder, or None. The engine may have ended since."""
    address = _read(work_dir).get("address")
    return None if address is None else str(address)


def running_pid(work_dir: Path) -> str:
    """Return the PID that an engine left in the work folder, or an empty string. The engine may have ended since."""
    return str(_read(work_dir).get("pid", ""))


def engine_process_exists(work_dir: Path) -> bool:
    """Return True if the process that left its PID in the work folder exists, whether or not it answers."""
    pid = running_pid(work_dir)
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def engine_is_starting(work_dir: Path, headers: Mapping[str, str] | None = None) -> bool:
    """Return True if the engine that uses the work folder has no progress yet because it still starts."""
    request = _progress_request(work_dir, headers)
    if request is None:
        return False
    try:
        open_directly(request, _TIMEOUT_S).close()
    except HTTPError as error:
        with error:
            return error.code == HTTPStatus.SERVICE_UNAVAILABLE
    except (OSError, HTTPException, ValueError):
        pass
    return False


def _progress_request(work_dir: Path, headers: Mapping[str, str] | None) -> urllib.request.Request | None:
    address = running_address(work_dir)
    return None if address is None else urllib.request.Request(f"{address}/v1/progress", headers=dict(headers or {}))


def work_dir_unusable(work_dir: Path, why: str) -> NeedsOperator:
    """Return the error of a work folder that cannot be created or written."""
    return NeedsOperator(
        "work_dir_unusable",
        f"the work folder {work_dir} cannot be {why}",
        hint="name another folder with --work-dir DIR",
    )


def _read(work_dir: Path) -> dict[str, Any]:
    try:
        content = json.loads((work_dir / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
