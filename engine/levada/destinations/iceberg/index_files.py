"""The numbers that a key index gives to data files, kept in a log that only grows.

A line of the log is ``[number, path]`` for a file added and ``[number]`` for one removed, so that saving costs what
changed and not how many files there are. The log is written anew, under the next name, when most of it is past.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from levada.destinations.keys import Mask
from levada.private import private_file
from levada.segments.checksums import DamageError

_PAST_LINES: Final = 1000
"""How many lines about removed files a log may have beside twice those of files that are there."""


class FileNumbers:
    """Which file has which number; numbers are never used twice."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._present: Mask | None = None
        self._unsaved: list[str] = []
        self._lines = 0
        self._log = 0
        self._bytes = 0
        self._checksum = 0

    @property
    def saved(self) -> dict[str, int]:
        """What `load` needs to know of the last `save`."""
        return {"log": self._log, "bytes": self._bytes, "next": self._next, "crc32": self._checksum}

    @property
    def log_name(self) -> str:
        """The name of the log's file."""
        return f"files-{self._log}.log"

    def path(self, number: int) -> str:
        """Return the path of the file; raise KeyError if there is none of this number."""
        return self._paths[number]

    def add(self, path: str) -> int:
        """Return the file's number, a new one if it has none."""
        number = self._numbers.get(path)
        if number is None:
            number = self._next
            self._enter(number, path)
            self._unsaved.append(json.dumps([number, path]))
        return number

    def remove(self, path: str) -> None:
        """Take the file's number away; a file without one is left alone."""
        number = self._numbers.pop(path, None)
        if number is not None:
            del self._paths[number]
            self._present = None
            self._unsaved.append(json.dumps([number]))

    def clear(self) -> None:
        """Take every file's number away."""
        for path in list(self._numbers):
            self.remove(path)

    def present(self) -> Mask:
        """Tell for each number whether it has a file; one more False at the end, where -1 points."""
        if self._present is None:
            self._present = np.zeros(self._next + 1, np.bool_)
            self._present[np.fromiter(self._paths, np.int64, len(self._paths))] = True
        return self._present

    def save(self, folder: Path) -> None:
        """Write durably what changed since the last time; what `saved` told before stays readable."""
        lines, self._unsaved = self._unsaved, []
        if self._lines + len(lines) > 3 * len(self._paths) + _PAST_LINES:
            self._log += 1
            self._lines = self._bytes = self._checksum = 0
            lines = [json.dumps([n, p]) for n, p in self._paths.items()]
        if not lines:
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        with private_file(folder / self.log_name, "r+b" if self._bytes else "wb") as f:
            # Over what a save that was never committed may have left there.
            f.seek(self._bytes)
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        self._lines += len(lines)
        self._bytes += len(data)
        self._checksum = zlib.crc32(data, self._checksum)

    @classmethod
    def load(cls, folder: Path, saved: dict[str, int]) -> FileNumbers:
        """Read what `save` wrote; raise OSError or ValueError if it is not there."""
        files = cls()
        files._log, files._bytes, files._next = saved["log"], saved["bytes"], saved["next"]
        files._checksum = saved["crc32"]
        if not files._bytes:
            return files
        with (folder / files.log_name).open("rb") as f:
            data = f.read(files._bytes)
        if len(data) != files._bytes:
            raise ValueError(f"{files.log_name} has {len(data)} bytes, not {files._bytes}")
        if zlib.crc32(data) != files._checksum:
            raise DamageError(f"{files.log_name} is not what was written")
        for line in data.splitlines():
            number, *path = json.loads(line)
            if path:
                files._enter(number, path[0])
            else:
                del files._numbers[files._paths.pop(number)]
            files._lines += 1
        return files

    def _enter(self, number: int, path: str) -> None:
        self._paths[number] = path
        self._numbers[path] = number
        self._next = max(self._next, number + 1)
        self._present = None
