"""A running engine of this machine, found by the file that it leaves in its work folder."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from levada.errors import NeedsOperator

_FILE: Final = "engine.json"
_TIMEOUT_S: Final = 5.0


@contextmanager
def announced(work_dir: Path, address: str) -> Iterator[None]:
    """Leave the address of this process's port in the work folder for as long as the block runs.

    Raise NeedsOperator ``work_dir_unusable`` if the folder cannot be written.
    """
    file = work_dir / _FILE
    partial = work_dir / f".{_FILE}.{os.getpid()}"
    try:
        partial.write_text(json.dumps({"pid": os.getpid(), "address": address}))
        partial.replace(file)
    except OSError as error:
        raise work_dir_unusable(work_dir, f"written: {error.strerror}") from None
    try:
        yield
    finally:
        if _read(work_dir).get("pid") == os.getpid():
            file.unlink(missing_ok=True)


def running_progress(work_dir: Path, pipeline: str | None = None) -> dict[str, Any] | None:
    """Return the document of ``/v1/progress`` of the engine that uses the work folder, None if none answers.

    An engine that was killed leaves its address. Whatever else answers there, also another ``pipeline``, is no answer.
    """
    address = _read(work_dir).get("address")
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address}/v1/progress", timeout=_TIMEOUT_S) as response:
            document = json.load(response)
    except (OSError, HTTPException, ValueError):
        return None
    if not isinstance(document, dict) or "pipeline" not in document or pipeline not in (None, document["pipeline"]):
        return None
    return document


def work_dir_unusable(work_dir: Path, why: str) -> NeedsOperator:
    """Return the error of a work folder that cannot be made or written."""
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
