"""The takeover of everything that a former owner of a pipeline has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from levada.runtime.host.assembly import open_store, pipeline_config
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import Takeover, take_over
from levada.spec import Manifests


def take_over_pipeline(
    manifests: Manifests, former: str, *, secrets: Path | None = None, work_dir: Path | None = None
) -> Takeover:
    """Make this pipeline the owner of what the owner with the UID ``former`` has. Repeatable.

    A running engine of the former owner ends. If that owns nothing, nothing changes. Raise the errors of `take_over`.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    with closing(open_store(manifests, config, secrets)) as store:
        return take_over(config, store, open_staging(config.staging), former)
