"""The log of a pipeline's segments: what is there, in order, and what may go."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from levada.errors import NeedsOperator
from levada.locations import lies_below
from levada.segments.manifest import Manifest
from levada.segments.staging import Staging
from levada.segments.writer import SegmentWriter
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)

_MANIFEST: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-\d{8,}\.json")
_READERS: Final = 8
"""Manifests are small, and an object store takes tens of milliseconds for each: ask for several at once."""


class SegmentLog:
    """The segments of one pipeline, in a folder of its own on the staging area. Usable from any thread."""

    def __init__(self, staging: Staging, pipeline: str) -> None:
        self.staging = staging
        self.pipeline = pipeline

    def list(self) -> tuple[Manifest, ...]:
        """Return the manifests in WAL order.

        Raise NeedsOperator ``manifest_unreadable`` for one that cannot be read, ``segments_overlap`` for two that cover
        the same WAL: a driver that was replaced has written on.
        """
        names = [n for n in self.staging.list(self.pipeline) if _MANIFEST.fullmatch(n)]
        with ThreadPoolExecutor(_READERS) as pool:
            manifests = sorted(pool.map(self._load, names), key=lambda m: (m.start_lsn, m.end_lsn, m.epoch))
        for one, other in pairwise(manifests):
            if other.start_lsn < one.end_lsn:
                self._refuse(one, other)
        return tuple(manifests)

    def end(self) -> Lsn:
        """Return the highest end of a segment, 0/0 without one; reads names only."""
        names = [n for n in self.staging.list(self.pipeline) if _MANIFEST.fullmatch(n)]
        return max((Lsn(int(name.split("-")[1], 16)) for name in names), default=Lsn(0))

    def collect_garbage(self) -> int:
        """Remove the files that no manifest names, and return how many; only while nobody writes: at the start."""
        named = {f.path for m in self.list() for f in m.files}
        garbage = [
            path
            for name in self.staging.list(self.pipeline)
            if not _MANIFEST.fullmatch(name) and (path := f"{self.pipeline}/{name}") not in named
        ]
        for path in garbage:
            self.staging.remove(path)
        if garbage:
            _log.info("removed %d staged files that belong to no segment", len(garbage))
        return len(garbage)

    def remove(self, manifest: Manifest, tables: Collection[TableId] | None = None) -> None:
        """Remove a segment, or of it only the files of ``tables``, which nobody may ask for again.

        The manifest goes first: what a crash leaves behind is garbage, never a segment that lacks a file.
        """
        if tables is None:
            self.staging.remove(f"{self.pipeline}/{manifest.name}.json")
        for file in manifest.files:
            if tables is None or file.table in tables:
                self.staging.remove(file.path)

    def writer(self, epoch: int, start_lsn: Lsn) -> SegmentWriter:
        """Begin a segment after ``start_lsn``."""
        return SegmentWriter(self.staging, self.pipeline, epoch, start_lsn)

    def _load(self, name: str) -> Manifest:
        path = f"{self.pipeline}/{name}"
        content = self.staging.read(path)
        try:
            manifest = Manifest.loads(content)
            if not all(lies_below(f"staging:///{f.path}", f"staging:///{self.pipeline}") for f in manifest.files):
                raise ValueError("it names a file outside of the pipeline's folder")
            return manifest
        except (ValueError, KeyError, TypeError) as error:
            raise NeedsOperator("manifest_unreadable", f"staging: {path} is not a manifest: {error!r}") from error

    def _refuse(self, one: Manifest, other: Manifest) -> None:
        stale = min(one, other, key=lambda m: m.epoch)
        raise NeedsOperator(
            "segments_overlap",
            f"staging: segments {one.name} and {other.name} cover the same WAL; epoch {stale.epoch} had been replaced",
            hint=f"if no table has applied it, remove {self.pipeline}/{stale.name}.json from {self.staging.uri} "
            "and start again; else copy the affected tables again",
        )
