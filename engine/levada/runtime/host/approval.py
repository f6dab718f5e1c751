"""The approval of copies that a changed manifest of `levada run` makes again. In a cluster the operator asks for it."""

from __future__ import annotations

import os
from pathlib import Path

from levada.errors import NeedsOperator
from levada.runtime.host.assembly import PIPELINE_UID, pipeline_config
from levada.runtime.host.readiness import copied_as
from levada.runtime.tables.requests import CopySettings, settings_changed
from levada.spec import Manifests
from levada.spec.running import Approval


def needs_approval(manifests: Manifests) -> bool:
    """Return True if changes that copy tables again wait for an approval, and no operator asks for it."""
    return manifests.pipeline.spec.approval is Approval.MANUAL and not os.environ.get(PIPELINE_UID)


def require_approval(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> None:
    """Raise NeedsOperator ``approval_required`` if the manifest would copy tables again. Raise the store's error."""
    if not needs_approval(manifests):
        return
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    changed = sorted(
        before.table
        for before in copied_as(manifests, config, secrets).values()
        if config.selects(before.table) and settings_changed(before, CopySettings.of(config, before.table, before))
    )
    if changed:
        raise NeedsOperator(
            "approval_required",
            f"the changed manifest copies {len(changed)} tables again: {', '.join(map(str, changed[:10]))}"
            f"{' and others' if len(changed) > 10 else ''}. spec.approval is Manual",
            hint="levada run MANIFEST --approve, or set the fields back",
        )
