"""Trees that are not on the disk, for the tests of rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from tests.lint.tree import ROOT, Module, Tree


class EditedTree(Tree):
    """Another tree with files of other texts and with more files."""

    def __init__(self, tree: Tree, texts: Mapping[str, str]) -> None:
        super().__init__(tree.root)
        self._tree = tree
        self._texts = texts

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of all files."""
        return tuple(sorted({*self._tree.files, *self._texts}))

    def module(self, path: str) -> Module:
        """Return a parsed file. One that is not edited is parsed once for all edits."""
        return super().module(path) if path in self._texts else self._tree.module(path)

    def _read(self, path: str) -> bytes:
        return self._texts[path].encode() if path in self._texts else self._tree.data(path)


class FewFiles(Tree):
    """A tree of these files alone. Any other file is empty."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(ROOT)
        self._texts = texts

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of all files."""
        return tuple(sorted(self._texts))

    def below(self, *folders: str, suffix: str | tuple[str, ...] = ".py") -> list[str]:
        """Return the files in these folders with this suffix, or none."""
        try:
            return super().below(*folders, suffix=suffix)
        except LookupError:
            return []

    def _read(self, path: str) -> bytes:
        return self._texts.get(path, "").encode()
