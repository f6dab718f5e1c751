"""A Pipeline of several of one name, and its commands and starts, over a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import levada, manifest_of
from tests.rigs.database import Database
from typer.testing import Result

from levada.cli.manifests import folder
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import claim
from levada.runtime.source.preparation import prepare_source
from levada.runtime.source.record import SourceRecord
from levada.segments.log import SegmentLog
from levada.spec import load_manifests
from levada.stores import PipelineStore
from levada.values import Lsn


class Side:
    """A Pipeline called ``shop`` in a namespace, whose object has a UID. ``source`` changes that part of its spec."""

    def __init__(
        self,
        db: Database,
        folder: Path,
        namespace: str,
        uid: str,
        *,
        source: Any = None,
        **spec: Any,
    ) -> None:
        self.db, self.namespace, self.uid = db, namespace, uid
        self.path = folder / f"{namespace or 'laptop'}{uid}" / "pipeline.yaml"
        secret = self.path.parent / "secrets" / "shop-cdc"
        secret.mkdir(parents=True)
        (secret / "username").write_text("postgres")
        (secret / "password").write_text("")
        body = manifest_of(db, **spec)
        body["metadata"] = {"name": "shop", **({"namespace": namespace} if namespace else {})}
        body["spec"]["source"] |= source or {}
        self.path.write_text(yaml.safe_dump(body))

    def on(self, patch: pytest.MonkeyPatch, command: str, *arguments: str, former: str = "") -> Result:
        """Run a command as the pods of this Pipeline do."""
        for name, value in (("LEVADA_PIPELINE_UID", self.uid), ("LEVADA_TAKE_OVER_FROM", former)):
            patch.setenv(name, value) if value else patch.delenv(name, raising=False)
        return levada(command, self.path, "--secrets", self.path.parent / "secrets", *arguments)

    @contextmanager
    def opened(self, former: str = "") -> Iterator[tuple[PipelineConfig, PipelineStore]]:
        """Open the store as the engine does."""
        manifests = load_manifests(self.path.read_text())
        work_dir = folder(self.path, manifests, None)
        config = pipeline_config(manifests, secrets=self.path.parent / "secrets", work_dir=work_dir)
        config = replace(config, uid=self.uid, take_over_from=former)
        store = open_store(manifests, config, self.path.parent / "secrets")
        try:
            yield config, store
        finally:
            store.close()

    def begin(self, former: str = "", staged: int = 0) -> None:
        """Begin as the engine does, up to the slot and a staged segment."""
        with self.opened(former) as (config, store):
            staging = open_staging(config.staging)
            owned = claim(config, store, staging)
            store.next_epoch()
            store.load_table_replication_states()
            store.load_fingerprints()
            log = SegmentLog(staging, "shop")
            try:
                prepare_source(config, store, SourceRecord(store), log, owner=owned.owner)
            except BaseException:
                owned.undo(config)
                raise
            if staged:
                log.writer(1, Lsn(staged)).commit(Lsn(staged + 1))


def slots(db: Database) -> list[str]:
    """Return the names of the database's slots."""
    found = db.query("SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1", db.name)
    return [name for (name,) in found]
