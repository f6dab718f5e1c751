"""The place of staged changes, which a manifest does not change while changes wait there."""

from __future__ import annotations

import shlex
from typing import Final

from levada.errors import InvalidManifest
from levada.postgres.problems import Problem, Severity
from levada.printable import counted
from levada.runtime.config import PipelineConfig, StagingConfig
from levada.runtime.resources.staging import open_staging
from levada.runtime.tables.rules import continues
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore, StateStore, TableAction
from levada.values import TableId

_SUBJECT: Final = "staging_uri"
_FOLDER: Final = "staging_folder"
_DEFAULT: Final = "the work folder"


def require_same_staging(config: PipelineConfig, store: PipelineStore) -> None:
    """Raise InvalidManifest ``immutable_field_changed`` if changes wait in another place than the manifest's.

    The work folder may move, and only the place that the manifest names is compared. Changes of tables that are copied
    again are not needed. Call it before the store has an epoch of this process.
    """
    store.load_fingerprints()
    kept = store.get_fingerprint(_SUBJECT)
    if kept is None or _same(kept, config.staging.named):
        return
    store.load_table_replication_states()
    if waiting := _waiting(_former(config, kept), config.name, _continuing(store)):
        before, now = (_shown(uri) for uri in (kept, config.staging.named))
        raise InvalidManifest(
            "immutable_field_changed",
            f"spec.staging.uri cannot be changed from {before} to {now}: staged changes of"
            f" {counted(len(waiting), 'table')} wait in the former place",
            hint="set the field back until they are applied, or copy the tables again: levada resync MANIFEST --all",
        )


def other_folder(config: PipelineConfig, store: StateStore) -> Problem | None:
    """Return a warning if the last engine of the pipeline staged changes in another work folder, None if not.

    The same manifest in another folder has another work folder by default. ``store`` has loaded its fingerprints.
    """
    kept, now = store.get_fingerprint(_FOLDER), _folder(config)
    if kept is None or not now or kept == now:
        return None
    return Problem(
        Severity.WARNING,
        "work_folder_changed",
        f"the last engine of pipeline {config.name} had the work folder {kept}, and this one has {now}: tables with"
        " changes that were staged there and are not applied yet are copied again, unless the folder was moved",
        f"to go on there: levada run MANIFEST --work-dir {shlex.quote(kept)}",
    )


def save_staging(config: PipelineConfig, store: StateStore) -> None:
    """Save the place that the manifest names, empty for the work folder, and that folder.

    Scratch staging keeps nothing in its place.
    """
    if not (folder := _folder(config)):
        store.delete_fingerprint(_FOLDER)
    elif store.get_fingerprint(_FOLDER) != folder:
        store.store_fingerprint(_FOLDER, folder)
    if config.staging.durable is False:
        store.delete_fingerprint(_SUBJECT)
    elif store.get_fingerprint(_SUBJECT) != config.staging.named:
        store.store_fingerprint(_SUBJECT, config.staging.named)


def _folder(config: PipelineConfig) -> str:
    """Return the work folder if changes are staged in it for longer than a process lives, else an empty text."""
    is_used = not config.staging.named and config.staging.durable is not False
    return str(config.work_dir.absolute()) if is_used else ""


def _continuing(store: PipelineStore) -> frozenset[TableId]:
    """Return the tables that need staged changes: a start does not copy them."""
    phases, actions = store.get_table_replication_states(), store.get_table_actions()
    return frozenset(t for t, p in phases.items() if continues(p) and actions.get(t) is not TableAction.RESYNC)


def _waiting(staging: StagingConfig, pipeline: str, tables: frozenset[TableId]) -> frozenset[TableId]:
    """Return those of the tables that have segments in the place. Without tables it is not read."""
    if not tables:
        return tables
    manifests = SegmentLog(open_staging(staging), pipeline).list()
    return tables & frozenset(t for manifest in manifests for t in manifest.tables)


def _former(config: PipelineConfig, kept: str) -> StagingConfig:
    return StagingConfig(kept or str(config.work_dir / "staging"), object_store=config.staging.object_store)


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _shown(uri: str) -> str:
    """Return the place as messages name it. A query has settings of the object store."""
    return uri.partition("?")[0] or _DEFAULT
