"""The files of the repository, each read and parsed once for all rules."""

from __future__ import annotations

import ast
import os
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).parents[2]
Body = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule, and what to do about it. Line 0 is the file as a whole."""

    path: str
    line: int
    text: str


class Module:
    """A parsed module, with its nodes by their kind."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._nodes: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in _walk(tree):
            self._nodes[type(node)].append(node)

    @property
    def bodies(self) -> list[Body]:
        """The nodes that may begin with a docstring."""
        return self.nodes(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

    def nodes(self, *kinds: type[_Node]) -> list[_Node]:
        """Return the nodes of these classes, in no order."""
        return [node for kind in kinds for node in self._nodes[kind]]  # type: ignore[misc] # keyed by the class


class Tree:
    """The files of a folder by their paths, such as ``docs/errors.md``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._data: dict[str, bytes] = {}
        self._modules: dict[str, Module] = {}

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of all files, except for those that git ignores."""
        return tuple(sorted(_listed(self.root)))

    def below(self, *folders: str, suffix: str | tuple[str, ...] = ".py") -> list[str]:
        """Return the files in these folders with this suffix, or one of these. Raise LookupError if there are none."""
        prefixes = tuple(f"{folder}/" for folder in folders)
        found = [path for path in self.files if path.startswith(prefixes) and path.endswith(suffix)]
        if not found:
            raise LookupError(f"no {suffix} in {', '.join(folders)}")
        return found

    def has(self, path: str) -> bool:
        """Return True for the path of a file or of a folder."""
        return path in self._places

    def data(self, path: str) -> bytes:
        """Return a file's bytes."""
        if path not in self._data:
            self._data[path] = self._read(path)
        return self._data[path]

    def text(self, path: str) -> str:
        """Return a file's text."""
        return self.data(path).decode()

    def module(self, path: str) -> Module:
        """Return a parsed file of Python."""
        if path not in self._modules:
            self._modules[path] = Module(ast.parse(self.text(path), path))
        return self._modules[path]

    def _read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    @cached_property
    def _places(self) -> frozenset[str]:
        folders = {parent.as_posix() for path in self.files for parent in Path(path).parents}
        return frozenset(folders.union(self.files))


def line_of(text: str, part: str) -> int:
    """Return the number of the first line that a part of a text is on, or 0."""
    before, found, _ = text.partition(part)
    return before.count("\n") + 1 if found else 0


def _listed(root: Path) -> set[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return {path for path in listed.stdout.split("\0") if path and (root / path).is_file()}
    found = set()
    for folder, folders, files in os.walk(root):  # an archive of the sources, without git
        folders[:] = [name for name in folders if name not in ("__pycache__", ".venv", "build", "dist")]
        found |= {Path(folder, name).relative_to(root).as_posix() for name in files}
    return found


def _walk(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes. It takes half the time of `ast.walk`."""
    found = [tree]
    for node in found:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found.extend([item for item in value if isinstance(item, ast.AST)])
    return found
