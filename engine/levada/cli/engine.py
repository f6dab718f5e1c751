"""A running engine of this machine, found by the file that it leaves in its work folder."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_FILE: Final = "engine.json"
_TIMEOUT_S: Final = 5.0


@contextmanager
def announced(work_dir: Path, address: str) -> Iterator[None]:
    """Leave the address of this process's port in the work folder for as long as the block runs."""
    file = work_dir / _FILE
    partial = work_dir / f".{_FILE}.{os.getpid()}"
    partial.write_text(json.dumps({"pid": os.getpid(), "address": address}))
    partial.replace(file)
    try:
        yield
    finally:
        if _read(work_dir).get("pid") == os.getpid():
            file.unlink(missing_ok=True)


def running_progress(work_dir: Path) -> dict[str, Any] | None:
    """Return the document of ``/v1/progress`` of the engine that uses the work folder, None if none answers."""
    address = _read(work_dir).get("address")
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address}/v1/progress", timeout=_TIMEOUT_S) as response:
            document: dict[str, Any] = json.load(response)
            return document
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
        return None


def _read(work_dir: Path) -> dict[str, Any]:
    try:
        content = json.loads((work_dir / _FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
