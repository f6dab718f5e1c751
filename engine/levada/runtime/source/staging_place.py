"""The place of staged changes, which a manifest does not change while changes wait there."""

from __future__ import annotations

from typing import Final

from levada.errors import InvalidManifest
from levada.printable import counted
from levada.runtime.config import PipelineConfig, StagingConfig
from levada.runtime.resources.staging import open_staging
from levada.runtime.tables.rules import continues
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore, StateStore, TableAction
from levada.values import TableId

_SUBJECT: Final = "staging_uri"
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


def save_staging(config: PipelineConfig, store: StateStore) -> None:
    """Save the place that the manifest names, empty for the work folder. Scratch staging keeps nothing in its place."""
    if config.staging.durable is False:
        store.delete_fingerprint(_SUBJECT)
    elif store.get_fingerprint(_SUBJECT) != config.staging.named:
        store.store_fingerprint(_SUBJECT, config.staging.named)


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
