"""The fields of two versions of a manifest whose change copies tables again.

A changed resyncNonce is none of them, because it requests the copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from levada.spec.manifests import Manifests
from levada.spec.model import Change, Model, changed_fields, keep_fields
from levada.spec.table_sync import TableSyncManifest, TableSyncSpec
from levada.values import QualifiedTable

_NONCE: Final = "resync_nonce"
_NONCE_PATH: Final = ".resyncNonce"


def resync_fields(old: Model, new: Model, path: str = "spec") -> list[str]:
    """Return the paths of the fields that differ and copy tables again, sorted."""
    changes = changed_fields(old, new, path).items()
    return sorted(at for at, change in changes if change is Change.RESYNC and not at.endswith(_NONCE_PATH))


def table_settings(
    before: Manifests, after: Manifests
) -> Iterator[tuple[QualifiedTable, TableSyncSpec, TableSyncSpec]]:
    """Yield the former and the new settings of each table that has a TableSync in either version."""
    old, new = ({t.spec.table.qualified: t for t in m.table_syncs} for m in (before, after))
    for table in (*new, *(t for t in old if t not in new)):
        yield table, _settings(old.get(table), new.get(table)), _settings(new.get(table), old.get(table))


def without_resyncs(before: Manifests, after: Manifests, copied: Collection[QualifiedTable]) -> Manifests:
    """Return the new version with the former values of the fields that copy tables again. All other changes are in it.

    The fields of a TableSync whose table is not in ``copied`` are changed too: its first copy is made with them.
    A TableSync that only the former version has is kept for these fields, with its defaults otherwise.
    """
    spec = keep_fields(before.pipeline.spec, after.pipeline.spec, Change.RESYNC)
    written = {t.spec.table.qualified: t for t in (*before.table_syncs, *after.table_syncs)}
    now, kept = {t.spec.table.qualified for t in after.table_syncs}, []
    for table, old, new in table_settings(before, after):
        if table not in copied:
            if table in now:
                kept.append(written[table])
            continue
        fields = keep_fields(old, new, Change.RESYNC).model_copy(update={_NONCE: getattr(new, _NONCE)})
        if table in now or fields != new:
            kept.append(written[table].model_copy(update={"spec": fields}))
    return replace(after, pipeline=after.pipeline.model_copy(update={"spec": spec}), table_syncs=tuple(kept))


def _settings(its: TableSyncManifest | None, other: TableSyncManifest | None) -> TableSyncSpec:
    if its is not None:
        return its.spec
    assert other is not None
    return TableSyncSpec(pipelineRef=other.spec.pipeline_ref, table=other.spec.table)  # type: ignore[call-arg]  # default
