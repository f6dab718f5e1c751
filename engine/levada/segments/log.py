"""The log of a pipeline's segments: what is there, in order, and what may go."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from levada.errors import NeedsOperator
from levada.locations import lies_below
from levada.segments.checksums import DamageError, VersionError
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.segments.owner_file import owner_file
from levada.segments.staging import Staging
from levada.segments.writer import SegmentWriter
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)

_MANIFEST: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-\d{8,}\.json")
_READERS: Final = 8
"""Manifests are small, and an object store takes tens of milliseconds for each: ask for several at once."""


class SegmentLog:
    """The segments of one pipeline, in a folder of its own on the staging area. Usable from any thread.

    ``ledger`` has the ends of the tables' newest segments. It belongs to whoever writes.
    """

    def __init__(self, staging: Staging, pipeline: str, ledger: Ledger | None = None) -> None:
        self.staging = staging
        self.pipeline = pipeline
        self.ledger = ledger or Ledger()

    def list(self) -> tuple[Manifest, ...]:
        """Return the manifests in WAL order, without those that are damaged: see `Manifest` for what notices the gap.

        Raise NeedsOperator ``manifest_unreadable`` for one of another version, ``manifest_foreign`` for one of another
        pipeline, ``segments_overlap`` for two that cover the same WAL: a driver that was replaced has written on.
        """
        with ThreadPoolExecutor(_READERS) as pool:
            loaded = [m for m in pool.map(self._load, self._names()) if m is not None]
        manifests = sorted(loaded, key=lambda m: (m.start_lsn, m.end_lsn, m.epoch))
        for one, other in pairwise(manifests):
            if other.start_lsn < one.end_lsn:
                self._refuse(one, other)
        return tuple(manifests)

    def end(self) -> Lsn:
        """Return the highest end of a segment, 0/0 without one. The newest manifest alone is read."""
        for name in sorted(self._names(), key=_end, reverse=True):
            if self._load(name) is not None:
                return _end(name)
        return Lsn(0)

    def collect_garbage(self, check: Callable[[], None] = lambda: None) -> int:
        """Remove the files that no manifest names, and return how many; only while nobody writes: at the start.

        A damaged manifest is removed with its files: `list` has reported it, and nothing can be read from it. ``check``
        is called after the files are listed. It raises if another process has taken the pipeline over, whose files are
        not in the list then.
        """
        listed = self.staging.list(self.pipeline)
        manifests = self.list()
        named = {f.path for m in manifests for f in m.files} | {f"{self.pipeline}/{m.name}.json" for m in manifests}
        named.add(owner_file(self.pipeline))
        garbage = [path for n in listed if (path := f"{self.pipeline}/{n}") not in named]
        check()
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
        return SegmentWriter(self.staging, self.pipeline, epoch, start_lsn, ledger=self.ledger)

    def _names(self) -> tuple[str, ...]:
        return tuple(n for n in self.staging.list(self.pipeline) if _MANIFEST.fullmatch(n))

    def _load(self, name: str) -> Manifest | None:
        """Return the manifest, None if it is damaged or was removed since it was listed."""
        path = f"{self.pipeline}/{name}"
        try:
            manifest = Manifest.loads(self.staging.read(path))
        except DamageError as error:
            _log.error("staging: %s is damaged, its segment counts as lost: %s", path, error)
            return None
        except (VersionError, ValueError, KeyError, TypeError) as error:
            raise NeedsOperator(
                "manifest_unreadable",
                f"staging: {path} is not a manifest of this release: {error}",
                hint="run the release of Levada that wrote it",
            ) from error
        except NeedsOperator as error:
            if error.code != "staging_file_missing":
                raise
            return None
        if manifest.pipeline != self.pipeline or f"{manifest.name}.json" != name:
            raise NeedsOperator(
                "manifest_foreign",
                f"staging: {path} is the manifest {manifest.name} of pipeline {manifest.pipeline}",
                hint=f"remove {path} from {self.staging.uri}: it was copied there",
            )
        if not all(lies_below(f"staging:///{f.path}", f"staging:///{self.pipeline}") for f in manifest.files):
            raise NeedsOperator("manifest_unreadable", f"staging: {path} names a file outside of the pipeline's folder")
        return manifest

    def _refuse(self, one: Manifest, other: Manifest) -> None:
        stale = min(one, other, key=lambda m: m.epoch)
        raise NeedsOperator(
            "segments_overlap",
            f"staging: segments {one.name} and {other.name} cover the same WAL; epoch {stale.epoch} had been replaced",
            hint=f"if no table has applied it, remove {self.pipeline}/{stale.name}.json from {self.staging.uri} "
            "and start again; else copy the affected tables again",
        )


def _end(name: str) -> Lsn:
    return Lsn(int(name.split("-")[1], 16))
