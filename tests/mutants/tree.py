"""A copy of the working tree with an environment of its own, in which faults are seeded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.mutants.faults import ROOT, Fault

_CHECK: Final = "import levada, levada_operator; print(levada.__file__, levada_operator.__file__)"


class TreeCopy:
    """The files of the working tree that git does not ignore, below another folder.

    Its ``.venv`` has the installed packages of this one, and imports Levada from the copy. It has no packages itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self._written = 0

    @classmethod
    def make(cls, folder: Path) -> TreeCopy:
        """Copy the tree, and check that every process of its environment imports the copy."""
        copy = cls(folder)
        copy._copy_files()
        copy._make_environment()
        copy._check_imports()
        return copy

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """Seed the fault within the block."""
        file = self.folder / fault.file
        before = file.read_text()
        self._write(file, fault.apply(before))
        try:
            yield
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        """Write a file. Its time differs from each earlier one, because Python recognizes compiled code by it."""
        file.write_text(text)
        self._written += 1
        moment = file.stat().st_mtime + 2 * self._written
        os.utime(file, (moment, moment))

    def _copy_files(self) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.folder / name)

    def _make_environment(self) -> None:
        made = [sys.executable, "-m", "venv", "--without-pip", self.folder / ".venv"]
        subprocess.run(made, check=True)
        packages = Path(sysconfig.get_path("purelib"))
        own = self.folder / ".venv" / packages.relative_to(sys.prefix)
        # The paths precede those of the installed packages, whose link to this working tree is not followed.
        paths = (self.folder / "engine", self.folder / "operator", packages)
        (own / "levada.pth").write_text("".join(f"{path}\n" for path in paths))
        for script in Path(sys.executable).parent.iterdir():
            target = self.python.parent / script.name
            if not target.exists() and script.is_file():
                content = script.read_bytes()
                target.write_bytes(content.replace(sys.prefix.encode(), str(self.folder / ".venv").encode()))
                target.chmod(script.stat().st_mode)

    def _check_imports(self) -> None:
        # Isolated too, as some programs start Python: without PYTHONPATH and the working directory.
        for flags in ([], ["-I"]):
            done = subprocess.run([self.python, *flags, "-c", _CHECK], capture_output=True, text=True, check=True)
            if not all(file.startswith(str(self.folder)) for file in done.stdout.split()):
                raise RuntimeError(f"the copy's Python imports {done.stdout.strip()}")
