"""Erases keys from an Iceberg table: from its rows, its files, its snapshots and its manifests.

The data files of the current snapshot that have the rows are written again without them, also where position deletes
hide them. Then the manifests that mention such files are written again, because they have bounds of their values.
Afterwards every snapshot that has such a file or manifest expires, which removes the files. Each step can be repeated,
so the same erasure after a crash does what was left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.key_search import KeySearch, LeftFiles
from levada.destinations.data_files.layout import cast_columns, field_id
from levada.destinations.data_files.live_files import LiveFile, Positions
from levada.destinations.data_files.storage import WrittenFile, remove_files
from levada.destinations.erasure import Erased, Erasure, Remaining, kept_by_cuts
from levada.destinations.iceberg.arranging import FilePartitions
from levada.destinations.iceberg.java import CommitConflict, each, java_errors
from levada.destinations.iceberg.listed_files import bound_of
from levada.destinations.iceberg.maintenance import remove_left_tags
from levada.destinations.iceberg.mentions import Mention, Mentions
from levada.destinations.iceberg.metadata import CUT, TableMetadata
from levada.destinations.iceberg.retention import tag_name
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.schema import ReplicatedTableSchema

_log = logging.getLogger(__name__)

_NONE: Final = np.empty(0, np.int64)
_REMOVED: Final = "maintenance removes them, from an age of three days on"


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The parts of a table that have the rows. ``found`` has the positions of the rows by data file, of all snapshots.

    ``files`` are these data files, and those that may have had the rows and are gone. ``manifests`` mention one of
    them. ``snapshots`` have one of the manifests.
    """

    found: Mapping[str, Positions]
    files: frozenset[str]
    manifests: frozenset[str]
    snapshots: frozenset[int]
    current: frozenset[str]
    """The manifests of the current snapshot among ``manifests``."""
    mentions: Mentions

    @classmethod
    def of(
        cls, table: IcebergTable, search: KeySearch, live: Set[str], known: Mapping[str, Positions] | None = None
    ) -> Survey:
        """Look for the rows. ``known`` has the positions in files that were searched before.

        ``live`` are the data files of the current snapshot at the begin of the erasure.
        """
        known = known or {}
        mentions, storage = Mentions.of(table), table.storage()
        paths = {f.path: f for files in mentions.files.values() for f in files}
        gone = {p for p, f in paths.items() if p not in known and not f.live and not storage.exists(p)}
        # Another writer's former files of other formats are not read.
        strange = {p for p, f in paths.items() if not f.is_parquet} - gone
        unread = [p for p in paths if p not in known and p not in gone | strange]
        result = search.files(storage, unread)
        searched = {p: result.positions.get(p, _NONE) for p in unread}
        found = {p: at for p, at in (*known.items(), *searched.items()) if len(at)}
        # A former file whose key column was another one may have anything. A current one has no key there.
        doubtful = {p for p in gone if _may_show(paths[p], search)} | (result.lacking - live)
        doubtful |= {p for p in strange if _may_have(paths[p], search)}
        files = frozenset(found.keys() & paths.keys()) | doubtful
        current = table.metadata.snapshot_id
        manifests = mentions.manifests_with(files, current)
        mine = frozenset() if current is None else mentions.manifests[current] & manifests
        return cls({**known, **searched}, files, manifests, mentions.snapshots_with(manifests), mine, mentions)

    @property
    def held(self) -> dict[str, Positions]:
        """The positions of the rows by data file, without files that have none."""
        return {path: at for path, at in self.found.items() if len(at)}


def erase(state: IcebergState, table: IcebergTable, schema: ReplicatedTableSchema, wanted: Erasure) -> Erased:
    """Erase the keys. Raise CommitConflict if another writer changed the table meanwhile."""
    if table.metadata.snapshot_id is None:
        return Erased()
    if not wanted.dry_run:
        remove_left_tags(table, state.tags)
    elif table.plan() is None:
        return Erased(remaining=(Remaining("files that are not Parquet", "an erasure without --dry-run"),))
    files = live_files(table)
    search = KeySearch.of(schema, table.metadata.layout.files, wanted.keys)
    live = {f.path for f in files}
    survey = Survey.of(table, search, live)
    lost = [f for f in files if f.path in survey.held]
    rows = sum(len(np.setdiff1d(survey.found[f.path], f.deleted)) for f in lost)
    cuts = tuple(sorted(n for n in table.metadata.cuts if table.metadata.refs[n].snapshot in survey.snapshots))
    left_files = _left_files(table, search, survey)
    erased = Erased(rows, len(lost), len(survey.snapshots - {table.metadata.snapshot_id}), cuts, len(left_files.found))
    if wanted.dry_run:
        return erased.also([*_held_by_others(table.metadata, survey.snapshots), *left_files.remaining(_REMOVED)])
    if cuts and not wanted.cuts:
        raise kept_by_cuts(schema.name, cuts)
    if survey.snapshots:
        # The index has keys too, so it is built again without them.
        state.index.forget()
        state.vectors, state.partitions = None, FilePartitions()
        erased = replace(erased, states=_remove(state, table, search, survey, files, cuts))
    for path in left_files.found:
        table.storage().delete(path)
    _log.info("%s: erased %d rows from %d data files, and %d snapshots", table.name, rows, len(lost), erased.states)
    left = Survey.of(table, search, live, survey.found)
    return erased.also([*_held_by_others(table.metadata, left.snapshots), *left_files.remaining(_REMOVED)])


def _remove(
    state: IcebergState,
    table: IcebergTable,
    search: KeySearch,
    survey: Survey,
    files: Sequence[LiveFile],
    cuts: Sequence[str],
) -> int:
    """Commit the table without the rows, and expire the snapshots that have them. Return their number."""
    live, lost = {f.path for f in files}, [f for f in files if f.path in survey.held]
    if lost:
        _rewrite(state, table, lost, survey.found)
    later = Survey.of(table, search, live, survey.found)
    if later.current:
        table.rewrite_manifests(sorted(later.current))
        later = Survey.of(table, search, live, later.found)
    table.record_current()
    return _expire(table, later.snapshots - {table.metadata.snapshot_id}, cuts)


def _rewrite(
    state: IcebergState, table: IcebergTable, lost: Sequence[LiveFile], found: Mapping[str, Positions]
) -> None:
    """Write each of the files again without its rows, in its partition and its order, and replace all in one commit."""
    storage, layout = table.storage(), table.metadata.layout.files
    partitions = state.partitions.of(table, [f.path for f in lost], ())
    written: list[WrittenFile] = []
    try:
        for file, partition in zip(lost, partitions, strict=True):
            left = LiveFile(file.path, np.union1d(file.deleted, found[file.path]))
            with DataWriter(storage, layout.arrow, partition=partition) as writer:
                for rows, _ in left.read(storage, list(layout.arrow)):
                    writer.write(cast_columns(rows.columns, layout.arrow, str(table.name)))
            written += writer.files
        paths = {f.path for f in lost}
        table.rewrite_without([*sorted(paths), *_deletes_of(table, paths)], written)
    except CommitConflict:
        remove_files(storage, written)
        raise


def _deletes_of(table: IcebergTable, paths: Set[str]) -> list[str]:
    """Return the position-delete files that apply to no other data file. Deletion vectors go with their files."""
    planned = table.plan() or {}
    mine = {delete for path, deletes in planned.items() if path in paths for delete in deletes.files}
    others = {delete for path, deletes in planned.items() if path not in paths for delete in deletes.files}
    return sorted(mine - others)


def _expire(table: IcebergTable, snapshots: frozenset[int | None] | frozenset[int], cuts: Sequence[str]) -> int:
    """Remove the tags that keep the snapshots, but those of other writers, and expire them. Return their number."""
    metadata = table.metadata
    refs = {n: r for n, r in metadata.refs.items() if r.snapshot in snapshots}
    ours = [n for n, r in refs.items() if n == tag_name(metadata.snapshots[r.snapshot]) and not r.branch]
    if ours or cuts:
        known = [n for n in cuts if n in refs]
        table.set_tags({}, [*ours, *known], {CUT + name: None for name in cuts})
    if not table.metadata.may_remove_files:
        return 0
    kept = {r.snapshot for r in table.metadata.refs.values()}
    expired = sorted(s for s in snapshots if s is not None and s in table.metadata.snapshots and s not in kept)
    if expired:
        with java_errors(f"expire snapshots of {table.name}"):
            update = table.java.expireSnapshots().expireOlderThan(0)
            for snapshot in expired:
                update = update.expireSnapshotId(snapshot)
            update.commit()
        table.refresh()
    return len(expired)


def _left_files(table: IcebergTable, search: KeySearch, survey: Survey) -> LeftFiles:
    """Look into the files in the table's own folder that no snapshot mentions.

    A process that was killed before its commit leaves such files. Another writer's commit of one with the rows would
    not succeed any more, because the rows that it read are gone.
    """
    folder, mentions = table.own_folder, survey.mentions
    if folder is None or not table.metadata.may_remove_files:
        return LeftFiles()
    listed = (*mentions.files.values(), *mentions.deletes.values())
    known = {f.path.rpartition("/")[2] for files in listed for f in files}
    with java_errors(f"list the files of {table.name}"):
        stored = [str(file.location()) for file in each(table.java.io().listPrefix(folder))]
    unknown = [p for p in stored if p.endswith(".parquet") and p.rpartition("/")[2] not in known]
    return search.left_files(table.storage(), unknown)


def _may_show(gone: Mention, search: KeySearch) -> bool:
    """Return True if the bounds of a removed file may be values of the rows."""
    return bool(gone.low or gone.high) and _may_have(gone, search)


def _may_have(file: Mention, search: KeySearch) -> bool:
    """Return False if the bounds of a file exclude that it has or had one of the rows."""
    number, kind = field_id(search.reader.fields[0]), search.first.type
    low, high = (None if number is None else bounds.get(number) for bounds in (file.low, file.high))
    if low is None or high is None or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        return True
    stored = search.reader.fields[0].type
    if pa.types.is_string(stored):
        # A bound is cut after 16 characters. The upper one is then above all values.
        return search.may_be_between(pa.array([low, high], pa.binary()).cast(pa.string(), safe=False))
    ends = (bound_of(stored, b) for b in (low, high))
    return not pa.types.is_integer(stored) or search.may_be_between(pa.array(ends, kind))


def _held_by_others(metadata: TableMetadata, snapshots: frozenset[int]) -> list[Remaining]:
    """Return what keeps snapshots with the rows: branches and tags of other writers, or a property of the table."""
    found = []
    for name, ref in sorted(metadata.refs.items()):
        ours = name in metadata.cuts or name == "main" or name == tag_name(metadata.snapshots[ref.snapshot])
        if ref.snapshot in snapshots and not ours:
            kind = "branch" if ref.branch else "tag"
            found.append(Remaining(f"the {kind} {name} of another writer", f"the {kind} is dropped"))
    if snapshots and not metadata.may_remove_files:
        found.append(Remaining("former snapshots, as the table has gc.enabled=false", "their files are removed"))
    return found
