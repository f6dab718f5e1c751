"""The clean-up of a pipeline by its manifest, whose deletionPolicy says what is removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from levada.destinations import Destination
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import assemble, pipeline_config
from levada.runtime.host.owner_check import open_existing_store, require_places
from levada.runtime.host.plugins import destination_class
from levada.runtime.host.secret_folder import request_headers
from levada.runtime.host.work_dir import engine_running, locked_work_dir, running_pid, running_progress
from levada.runtime.source.cleanup import Cleanup, prepare_cleanup
from levada.runtime.source.cleanup_tables import CleanupTables
from levada.spec import Manifests


@contextmanager
def open_cleanup(
    manifests: Manifests, *, secrets: Path | None = None, work_dir: Path | None = None
) -> Iterator[Cleanup]:
    """Yield the removal steps of a pipeline whose engine has ended. Nothing is removed before `Cleanup.run`.

    ``work_dir`` is the work folder of the engine, which is locked during the block. Raise NeedsOperator
    ``engine_running`` if an engine uses it, and ``not_the_owner`` if any object belongs to another Pipeline. Raise
    InvalidManifest ``immutable_field_changed`` if the manifest names another destination than that of the state.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    work_dir = config.work_dir
    if running_progress(work_dir, config.name, request_headers(manifests, secrets)) is not None:
        raise engine_running(work_dir, running_pid(work_dir))
    # An engine that is still starting reports no progress, but holds the lock of its work folder.
    with (
        locked_work_dir(work_dir) if work_dir.is_dir() else nullcontext(),
        closing(open_existing_store(manifests, config, secrets)) as store,
    ):
        # The former owner stays the owner until something is taken over.
        owner = require_places(manifests, replace(config, take_over_from=""), store)
        tables = CleanupTables(config, store, _OfManifest(manifests, config, secrets))
        yield prepare_cleanup(config, manifests.pipeline.spec.deletion_policy, owner, store, tables)


@dataclass(frozen=True, slots=True)
class _OfManifest:
    """The destination of a manifest, which takes Spark for some of them."""

    manifests: Manifests
    config: PipelineConfig
    secrets: Path | None

    @property
    def guards(self) -> bool:
        return destination_class(self.manifests).capabilities.guards

    @contextmanager
    def open(self) -> Iterator[Destination]:
        work_dir = self.config.work_dir
        with assemble(self.manifests, secrets=self.secrets, work_dir=work_dir, outwaits=False) as parts:
            parts.store.load_fingerprints()
            yield parts.destination
