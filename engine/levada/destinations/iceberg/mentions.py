"""The files that each snapshot of a table mentions: its manifests, and the data files of these.

A manifest has the bounds of each file's values, also for a file that its commit removed. So the bounds of a file may
outlive it. Iceberg's Java API returns no entries of removed files, and PyIceberg does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levada.destinations.data_files.live_files import READERS
from levada.destinations.data_files.storage import storage_errors
from levada.destinations.iceberg.storage import IcebergStorage

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile

    from levada.destinations.iceberg.table import IcebergTable


@dataclass(frozen=True, slots=True)
class Mention:
    """A file in a manifest: of rows or of deletes. ``live``: the snapshots with the manifest have the file.

    ``low`` and ``high`` are the bytes of its bounds by field ID. ``partition`` identifies its partition, and is empty
    without one.
    """

    path: str
    live: bool
    is_parquet: bool
    partition: str
    low: Mapping[int, bytes]
    high: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Mentions:
    """The manifests by snapshot, and the data files and delete files by manifest. Each manifest has one of both."""

    manifests: Mapping[int, frozenset[str]]
    files: Mapping[str, tuple[Mention, ...]]
    deletes: Mapping[str, tuple[Mention, ...]]

    @classmethod
    def of(cls, table: IcebergTable) -> Mentions:
        """Read the manifests of all snapshots of a table, each once."""
        from pyiceberg.manifest import ManifestContent

        storage, lists = table.storage(), table.manifest_lists()
        with storage_errors(f"read the manifests of {table.name}"), ThreadPoolExecutor(READERS) as pool:
            found = dict(zip(lists, pool.map(lambda path: _listed(storage, path), lists.values()), strict=True))
            known = {m.manifest_path: m for ms in found.values() for m in ms}
            entries = dict(zip(known, pool.map(lambda m: _entries(storage, m), known.values()), strict=True))
        data = {path for path, m in known.items() if m.content is ManifestContent.DATA}
        return cls(
            {id_: frozenset(m.manifest_path for m in ms) for id_, ms in found.items()},
            {path: files for path, files in entries.items() if path in data},
            {path: files for path, files in entries.items() if path not in data},
        )

    def manifests_with(self, paths: frozenset[str], current: int | None) -> frozenset[str]:
        """Return the manifests that mention one of the data files, or its partition if no other current file has it."""
        all_files = [f for files in self.files.values() for f in files]
        mine = self.manifests.get(current, frozenset()) if current is not None else frozenset()
        living = {
            f.partition for m in mine & self.files.keys() for f in self.files[m] if f.live and f.path not in paths
        }
        lost = {f.partition for f in all_files if f.path in paths} - living - {""}
        found = {m for m, files in self.files.items() if any(f.path in paths for f in files)}
        found |= {m for m, files in self.deletes.items() if any(f.partition in lost for f in files)}
        return frozenset(found)

    def snapshots_with(self, manifests: frozenset[str]) -> frozenset[int]:
        """Return the snapshots that have one of the manifests."""
        return frozenset(id_ for id_, mine in self.manifests.items() if mine & manifests)


def _listed(storage: IcebergStorage, path: str) -> Sequence[ManifestFile]:
    from pyiceberg.manifest import read_manifest_list

    return list(read_manifest_list(storage.io().new_input(path)))


def _entries(storage: IcebergStorage, manifest: ManifestFile) -> tuple[Mention, ...]:
    from pyiceberg.manifest import FileFormat, ManifestEntryStatus

    return tuple(
        Mention(
            entry.data_file.file_path,
            entry.status is not ManifestEntryStatus.DELETED,
            entry.data_file.file_format is FileFormat.PARQUET,
            f"{manifest.partition_spec_id} {entry.data_file.partition}" if len(entry.data_file.partition) else "",
            entry.data_file.lower_bounds or {},
            entry.data_file.upper_bounds or {},
        )
        for entry in manifest.fetch_manifest_entry(storage.io(), discard_deleted=False)
    )
