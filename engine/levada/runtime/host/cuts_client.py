"""The cuts of a pipeline: those of the running engine over its HTTP API, or those in the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from levada import codes
from levada.errors import NeedsOperator
from levada.runtime.host.assembly import open_store, pipeline_config, store_connection
from levada.runtime.host.engine_api import EngineApi
from levada.runtime.stages.lake_cuts import cut_progress
from levada.spec import Manifests
from levada.status import CutProgress
from levada.stores.readiness import postgres_store_exists

_CUTS: Final = "/v1/cuts"


@dataclass(frozen=True, slots=True)
class CutsClient:
    """The cuts of an engine. Each method raises NeedsOperator with the engine's answer if it refuses."""

    api: EngineApi

    def request(self, name: str, *, partial: bool) -> None:
        """Request a cut of all tables."""
        self.api.ask("POST", _CUTS, {"name": name, "partial": partial})

    def drop(self, name: str) -> None:
        """Request that a cut is removed from all tables."""
        self.api.ask("DELETE", f"{_CUTS}/{quote(name, safe='')}", {})

    def cuts(self) -> tuple[CutProgress, ...] | None:
        """Return all cuts, the newest last, or None while the engine starts its pipeline."""
        try:
            found: list[Any] = self.api.ask("GET", _CUTS)["cuts"]
        except NeedsOperator as error:
            if error.code != codes.ENGINE_NOT_RUNNING:
                raise
            return None
        return tuple(CutProgress.from_json(cut) for cut in found)


def stored_cuts(manifests: Manifests, secrets: Path | None) -> tuple[CutProgress, ...]:
    """Return the cuts in the store, the newest last, of a pipeline that does not run here."""
    config = pipeline_config(manifests, secrets=secrets)
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is not None:
        connection = store_connection(manifests, config, secrets)
        if not postgres_store_exists(connection, postgres.schema_name):
            return ()
    store = open_store(manifests, config, secrets)
    try:
        store.load_cuts()
        cuts = sorted(store.get_cuts().values(), key=lambda c: (c.at, c.name))
        return tuple(cut_progress(cut, len(cut.tables) - len(cut.left_out)) for cut in cuts)
    finally:
        store.close()
