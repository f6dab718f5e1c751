"""The numbers that a key index assigns to data files, stored in an append-only log.

A line of the log is ``[number, path]`` for an added file and ``[number]`` for a removed file. So the cost of saving
depends on the number of changes, and not on the number of files. When most lines are obsolete, the log is rewritten
under the next name.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np

from levada.destinations.keys import Mask
from levada.private import private_file
from levada.segments.checksums import DamageError


class FileNumbers:
    """A mapping of data files to numbers. Numbers are never reused.

    The log is rewritten if it has more lines than three times the number of files plus ``obsolete_lines``.
    """

    def __init__(self, obsolete_lines: int) -> None:
        self._obsolete_lines = obsolete_lines
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
        """The state of the last `save`, which `load` needs."""
        return {"log": self._log, "bytes": self._bytes, "next": self._next, "crc32": self._checksum}

    @property
    def log_name(self) -> str:
        """The file name of the log."""
        return f"files-{self._log}.log"

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(self._numbers)

    def path(self, number: int) -> str:
        """Return the path of the file. Raise KeyError for an unknown number."""
        return self._paths[number]

    def add(self, path: str) -> int:
        """Return the file's number. Assign a new one if the file is unknown."""
        number = self._numbers.get(path)
        if number is None:
            number = self._next
            self._enter(number, path)
            self._unsaved.append(json.dumps([number, path]))
        return number

    def remove(self, path: str) -> None:
        """Remove the file. An unknown file is ignored."""
        number = self._numbers.pop(path, None)
        if number is not None:
            del self._paths[number]
            self._present = None
            self._unsaved.append(json.dumps([number]))

    def clear(self) -> None:
        """Remove all files."""
        for path in list(self._numbers):
            self.remove(path)

    def present(self) -> Mask:
        """Return a mask of the numbers that have a file, plus a last False, to which the index -1 refers."""
        if self._present is None:
            self._present = np.zeros(self._next + 1, np.bool_)
            self._present[np.fromiter(self._paths, np.int64, len(self._paths))] = True
        return self._present

    def save(self, folder: Path, *, durable: bool) -> None:
        """Append the changes since the last save to the log. The previous state in `saved` stays readable.

        With ``durable`` they survive a crash of the machine.
        """
        lines, self._unsaved = self._unsaved, []
        if self._lines + len(lines) > 3 * len(self._paths) + self._obsolete_lines:
            self._log += 1
            self._lines = self._bytes = self._checksum = 0
            lines = [json.dumps([n, p]) for n, p in self._paths.items()]
        if not lines:
            return
        data = "".join(f"{line}\n" for line in lines).encode()
        with private_file(folder / self.log_name, "r+b" if self._bytes else "wb") as f:
            # Overwrite the lines of a save that was never committed.
            f.seek(self._bytes)
            f.write(data)
            if durable:
                f.flush()
                os.fsync(f.fileno())
        self._lines += len(lines)
        self._bytes += len(data)
        self._checksum = zlib.crc32(data, self._checksum)

    @classmethod
    def load(cls, folder: Path, saved: dict[str, int], obsolete_lines: int) -> FileNumbers:
        """Read the state of a `save`. Raise OSError or ValueError if the log is missing or damaged."""
        files = cls(obsolete_lines)
        files._log, files._bytes, files._next = saved["log"], saved["bytes"], saved["next"]
        files._checksum = saved["crc32"]
        if not files._bytes:
            return files
        with (folder / files.log_name).open("rb") as f:
            data = f.read(files._bytes)
        if len(data) != files._bytes:
            raise ValueError(f"{files.log_name} has {len(data)} bytes, but {files._bytes} were written")
        if zlib.crc32(data) != files._checksum:
            raise DamageError(f"the checksum of {files.log_name} does not match")
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
