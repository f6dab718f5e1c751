"""The log of a pipeline's segments: listing, removal and clean-up."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from levada import codes
from levada.errors import NeedsOperator
from levada.locations import lies_below
from levada.segments.checksums import DamageError, VersionError
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.segments.owner_file import owner_file
from levada.segments.staging import Staging
from levada.segments.writer import MAX_BUFFERED_BYTES, SegmentWriter
from levada.values import Lsn

_log = logging.getLogger(__name__)

_MANIFEST: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-\d{8,}\.json")
_READERS: Final = 8
"""Threads that read manifests. An object store takes tens of milliseconds for each of these small files."""


class SegmentLog:
    """The segments of one pipeline, in its own folder of the staging area. Thread-safe.

    ``ledger`` has the end of each table's newest segment. Only the thread that writes segments changes it.
    """

    def __init__(self, staging: Staging, pipeline: str, ledger: Ledger | None = None) -> None:
        self.staging = staging
        self.pipeline = pipeline
        self.ledger = ledger or Ledger()

    def list(self) -> tuple[Manifest, ...]:
        """Return the manifests in WAL order.

        Damaged manifests are skipped and logged. `Manifest.newest` makes the gap detectable. Raise NeedsOperator
        ``manifest_unreadable`` for a manifest of another format version, and ``manifest_foreign`` for a manifest of
        another pipeline. Raise ``segments_overlap`` if two segments cover the same WAL, because a driver kept writing
        after another one had replaced it.
        """
        with ThreadPoolExecutor(_READERS) as pool:
            loaded = [m for m in pool.map(self._load, self._names()) if m is not None]
        manifests = sorted(loaded, key=lambda m: (m.start_lsn, m.end_lsn, m.epoch))
        for one, other in pairwise(manifests):
            if other.start_lsn < one.end_lsn:
                self._refuse(one, other)
        return tuple(manifests)

    def end(self) -> Lsn:
        """Return the end of the newest segment, or 0/0 if there is none."""
        newest = self.newest()
        return Lsn(0) if newest is None else newest.end_lsn

    def newest(self) -> Manifest | None:
        """Return the manifest with the highest end, or None if there is none. Only the newest readable one is read."""
        names = sorted(self._names(), key=_end, reverse=True)
        return next((m for m in map(self._load, names) if m is not None), None)

    def collect_garbage(self, check: Callable[[], None] = lambda: None) -> int:
        """Remove the files that no manifest names, and return their number. Call it only before a writer starts.

        A damaged manifest is removed with its files, after `list` has logged it. ``check`` is called after the files
        were listed. It raises if another process has taken over the pipeline, because the new driver's manifests may be
        missing from the list.
        """
        listed = self.staging.list(self.pipeline)
        manifests = self.list()
        named = {p for m in manifests for p in m.paths} | {f"{self.pipeline}/{m.name}.json" for m in manifests}
        named.add(owner_file(self.pipeline))
        garbage = [path for n in listed if (path := f"{self.pipeline}/{n}") not in named]
        check()
        for path in garbage:
            self.staging.remove(path)
        if garbage:
            _log.info("removed %d staged files that do not belong to any segment", len(garbage))
        return len(garbage)

    def remove(self, manifest: Manifest) -> None:
        """Remove a segment.

        The manifest is removed first. So a crash leaves unreferenced files, and never a segment with a missing file.
        """
        self.staging.remove(f"{self.pipeline}/{manifest.name}.json")
        for path in manifest.paths:
            self.staging.remove(path)

    def writer(
        self, epoch: int, start_lsn: Lsn, *, max_buffered_bytes: int = MAX_BUFFERED_BYTES, name: str | None = None
    ) -> SegmentWriter:
        """Return a writer for a new segment that begins after ``start_lsn``. ``name`` is that of `SegmentWriter`."""
        return SegmentWriter(
            self.staging,
            self.pipeline,
            epoch,
            start_lsn,
            ledger=self.ledger,
            name=name,
            row_group_bytes=min(self.staging.limits.row_group_bytes, max_buffered_bytes),
            max_buffered_bytes=max_buffered_bytes,
        )

    def _names(self) -> tuple[str, ...]:
        return tuple(n for n in self.staging.list(self.pipeline) if _MANIFEST.fullmatch(n))

    def _load(self, name: str) -> Manifest | None:
        """Return the manifest, or None if it is damaged or was removed after the listing."""
        path = f"{self.pipeline}/{name}"
        try:
            manifest = Manifest.loads(self.staging.read(path))
        except DamageError as error:
            _log.error("staging: %s is damaged, so its segment is treated as lost: %s", path, error)
            return None
        except (VersionError, ValueError, KeyError, TypeError) as error:
            raise NeedsOperator(
                "manifest_unreadable",
                f"staging: {path} is not a manifest of this release: {error}",
                hint="run the release of Levada that wrote the file",
            ) from error
        except NeedsOperator as error:
            if error.code != codes.STAGING_FILE_MISSING:
                raise
            return None
        if manifest.pipeline != self.pipeline or f"{manifest.name}.json" != name:
            raise NeedsOperator(
                "manifest_foreign",
                f"staging: {path} is the manifest {manifest.name} of pipeline {manifest.pipeline}",
                hint=f"remove {path} from {self.staging.uri}. It is a copy from another folder",
            )
        if not all(lies_below(f"staging:///{path}", f"staging:///{self.pipeline}") for path in manifest.paths):
            raise NeedsOperator(
                "manifest_unreadable",
                f"staging: {path} refers to a file outside of the pipeline's folder",
                hint=f"remove {path} from {self.staging.uri}, then copy the tables again: levada resync MANIFEST --all",
            )
        return manifest

    def _refuse(self, one: Manifest, other: Manifest) -> None:
        stale = min(one, other, key=lambda m: m.epoch)
        raise NeedsOperator(
            "segments_overlap",
            f"staging: segments {one.name} and {other.name} cover the same WAL: a driver of epoch"
            f" {stale.epoch} kept writing after it was replaced",
            hint=f"if no table has applied {stale.name}, remove {self.pipeline}/{stale.name}.json from"
            f" {self.staging.uri} and restart the pipeline. Otherwise copy the affected tables again:"
            " levada resync MANIFEST TABLE",
        )


def _end(name: str) -> Lsn:
    return Lsn(int(name.split("-")[1], 16))
