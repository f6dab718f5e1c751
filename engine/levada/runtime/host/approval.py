"""The approval of copies that a changed manifest of `levada run` makes again. In a cluster the operator asks for it.

The operator reads no Secret. So in a cluster the engine asks for the approval of another key of masks, and finds the
answer in a file next to the manifest.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from levada import codes
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.estimates import estimate_tables
from levada.postgres.kept_sessions import SESSIONS
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import PIPELINE_UID, pipeline_config
from levada.runtime.host.secret_folder import NAMESPACE
from levada.runtime.host.stored_state import stored_controls
from levada.runtime.source.mask_comments import with_comments
from levada.runtime.tables.requests import CopySettings, last_copy_settings, settings_changed
from levada.spec import Manifests, format_bytes
from levada.spec.resyncs import resync_fields, table_settings
from levada.spec.running import Approval
from levada.status import PipelineState, Progress, TablePhase
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

APPROVED: Final = "approved"
"""The file next to a pod's manifest with the approval that the Pipeline has. The operator writes it."""


def needs_approval(manifests: Manifests) -> bool:
    """Return True if changes that copy tables again wait for an approval, and no operator asks for it."""
    return manifests.pipeline.spec.approval is Approval.MANUAL and not os.environ.get(PIPELINE_UID)


def size_waits(manifests: Manifests, size: int | None) -> bool:
    """Return True if changes that copy tables of ``size`` bytes again wait for an approval. None: it is unknown."""
    limit = manifests.pipeline.spec.approval_above
    return needs_approval(manifests) and (limit is None or size is None or size > limit)


def tables_with_changed_settings(
    manifests: Manifests, *, secrets: Path | None, work_dir: Path
) -> tuple[QualifiedTable, ...]:
    """Return the tables that a start copies again, because their last copies have other settings. Sorted.

    Raise the error of the store or of the source.
    """
    config = with_comments(pipeline_config(manifests, secrets=secrets, work_dir=work_dir))
    copies = [last_copy_settings(its) for its in stored_controls(manifests, config, secrets).values()]
    return tuple(
        sorted(
            before.table
            for before in copies
            if before is not None
            and config.is_selected(before.table)
            and settings_changed(before, CopySettings.of(config, before.table, before))
        )
    )


def require_approval(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> None:
    """Raise NeedsOperator ``approval_required`` if the manifest would copy tables again, above ``approvalAbove``.

    Raise the error of the store or of the source.
    """
    if not needs_approval(manifests):
        return
    if not (changed := tables_with_changed_settings(manifests, secrets=secrets, work_dir=work_dir)):
        return
    size = _size(pipeline_config(manifests, secrets=secrets, work_dir=work_dir), changed)
    if not size_waits(manifests, size):
        _log.info("copied again without an approval, as they are small: %s", _listed(changed))
        return
    raise NeedsOperator(
        codes.APPROVAL_REQUIRED,
        f"the changed manifest copies {counted(len(changed), 'table')} again: {_listed(changed)}, {_size_text(size)}."
        f" spec.approval is Manual{_limit_text(manifests)}",
        hint="levada run MANIFEST --approve, or set the fields back",
    )


def approved_value(manifest: Path | None) -> str:
    """Return the approval that the operator has put next to the manifest, empty without one."""
    try:
        return "" if manifest is None else (manifest.parent / APPROVED).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def require_key_approval(manifests: Manifests, *, secrets: Path | None, work_dir: Path, approved: str) -> None:
    """In a cluster, raise NeedsOperator ``approval_required`` if another key of masks would copy tables again.

    ``approved`` is the value of `approved_value`. Raise the error of the store or of the source.
    """
    spec = manifests.pipeline.spec
    if not os.environ.get(PIPELINE_UID) or spec.approval is not Approval.MANUAL:
        return
    if spec.tables.mask_key_secret_ref is None:
        return
    config = with_comments(pipeline_config(manifests, secrets=secrets, work_dir=work_dir))
    copies = [last_copy_settings(its) for its in stored_controls(manifests, config, secrets).values()]
    former = {c.table: keys for c in copies if c is not None and (keys := frozenset(_former_keys(config, c)))}
    if not former:
        return
    # Of both keys: the identifier of one of them would let those who read the status try keys that they guess.
    text = "\n".join([config.mask_keys.newest, *sorted(frozenset().union(*former.values()))])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if approved == digest:
        return
    size = None if spec.approval_above is None else _size(config, former)
    if spec.approval_above is not None and size is not None and size <= spec.approval_above:
        _log.info("copied again with another key of masks without an approval, as they are small: %s", _listed(former))
        return
    name = manifests.pipeline.metadata.name
    namespace = os.environ.get(NAMESPACE, "")
    raise NeedsOperator(
        codes.APPROVAL_REQUIRED,
        f"another key of masks in Secret {spec.tables.mask_key_secret_ref.name} copies"
        f" {counted(len(former), 'table')} again: {_listed(former)}. spec.approval is Manual{_limit_text(manifests)}",
        hint=f"kubectl annotate pipeline {name} -n {namespace} --overwrite levada.dev/approve={digest}",
    )


def _former_keys(config: PipelineConfig, before: CopySettings) -> Iterator[str]:
    """Yield the identifiers of the keys of a table's last copy, which the next copy would replace by another one."""
    newest = config.mask_keys.newest
    wanted = CopySettings.of(config, before.table, before) if config.is_selected(before.table) else None
    if wanted is not None and any(mask.key_id == newest for _, mask in wanted.masks.entries if mask.key_id):
        yield from (mask.key_id for _, mask in before.masks.entries if mask.key_id not in ("", newest))


def copied_tables(progress: Progress | None) -> frozenset[QualifiedTable] | None:
    """Return the tables with a copy that is complete or under way, because beginning it again has a cost.

    Return None as long as a starting pipeline does not know its tables.
    """
    if progress is None or progress.state is not PipelineState.RUNNING or not progress.tables:
        return None
    return frozenset(t.table for t in progress.tables if t.phase != TablePhase.INIT or (t.copy and t.copy.rows))


def waiting_tables(
    running: Manifests, new: Manifests, copied: Collection[QualifiedTable] | None, *, secrets: Path | None
) -> frozenset[QualifiedTable]:
    """Return the tables whose changed TableSyncs wait for an approval, because they copy the tables again.

    ``copied`` are the tables that have a copy, or None if they are not known. Then all count. If the source does not
    return the sizes of tables, they all wait.
    """
    if not needs_approval(new):
        return frozenset()
    changed = frozenset(
        table
        for table, old, now in table_settings(running, new)
        if (copied is None or table in copied) and resync_fields(old, now)
    )
    if not changed or new.pipeline.spec.approval_above is None:
        return changed
    try:
        size = _size(pipeline_config(running, secrets=secrets), changed)
    except LevadaError as error:
        _log.warning("the sizes of tables are not known, so that their changes wait for an approval: %s", error)
        return changed
    return changed if size_waits(new, size) else frozenset()


def _size(config: PipelineConfig, tables: Collection[QualifiedTable]) -> int | None:
    """Return the estimated bytes of the tables at the source, or None if one does not exist or is locked."""
    with SESSIONS.session(config.source, "approval") as connection:
        found = estimate_tables(connection, tables)
    known = len(found) == len(set(tables)) and all(its.current for its in found.values())
    return sum(its.bytes for its in found.values()) if known else None


def _size_text(size: int | None) -> str:
    return "of unknown size" if size is None else f"about {size / 2**20:,.1f} MiB"


def _limit_text(manifests: Manifests) -> str:
    limit = manifests.pipeline.spec.approval_above
    return "" if limit is None else f", and spec.approvalAbove {format_bytes(limit)}"


def _listed(tables: Collection[QualifiedTable]) -> str:
    names = ", ".join(map(str, sorted(tables)[:10]))
    return f"{names}{' and others' if len(tables) > 10 else ''}"
