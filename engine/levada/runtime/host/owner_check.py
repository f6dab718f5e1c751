"""The check that a command's manifest is that of the owner, before the command changes anything."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from levada import codes
from levada.errors import LevadaError, NeedsOperator
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, store_connection
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import (
    Holding,
    identify,
    require_own,
    source_holdings,
    staging_holdings,
    store_holdings,
)
from levada.spec import Manifests
from levada.stores import MemoryStore, PipelineStore
from levada.stores.readiness import postgres_store_exists
from levada.values import PipelineOwner


def require_ownership(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> PipelineOwner:
    """Return the manifest's Pipeline. Raise NeedsOperator ``not_the_owner`` if any place belongs to another one.

    Nothing is changed. The former owner in ``config.take_over_from`` stays the owner of the store's state until that is
    taken over.
    """
    with closing(open_existing_store(manifests, config, secrets)) as store:
        return require_places(manifests, config, store)


def require_places(manifests: Manifests, config: PipelineConfig, store: PipelineStore) -> PipelineOwner:
    """Return the manifest's Pipeline, with the checks of `require_ownership`, for a store that is open."""
    held = list(_source_and_staging(config))
    # Read last: a start that claims everything meanwhile claims the store first.
    record = store.get_owner_record()
    # An empty store in memory stands for one in PostgreSQL that does not exist.
    owner = identify(config, record, volatile=store.volatile and manifests.pipeline.spec.store.postgres is None)
    try:
        require_own(replace(config, take_over_from=""), owner, store_holdings(config, record))
        require_own(config, owner, held)
    except NeedsOperator as error:
        raise _with_pod(error, owner, [*store_holdings(config, record), *held]) from None
    return owner


def open_existing_store(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> PipelineStore:
    """Open the pipeline's store. If its schema does not exist, return an empty store in memory and create nothing."""
    postgres = manifests.pipeline.spec.store.postgres
    connection = store_connection(manifests, config, secrets)
    if postgres is None or postgres_store_exists(connection, postgres.schema_name):
        return open_store(manifests, config, secrets)
    return MemoryStore(config.name)


def _source_and_staging(config: PipelineConfig) -> list[Holding]:
    with config.source.connect(application="owner") as connection:
        held = list(source_holdings(config, connection))
    try:
        held += staging_holdings(config, open_staging(config.staging))
    except LevadaError as error:
        # An unreachable staging area must not keep a slot from being dropped. Its owner is read again before use.
        if error.code in (codes.NOT_THE_OWNER, codes.OWNER_UNREADABLE):
            raise
    return held


def _with_pod(error: NeedsOperator, owner: PipelineOwner, held: list[Holding]) -> NeedsOperator:
    """Return the error. Outside of Kubernetes, if a Pipeline in it is the owner, its hint begins with the pod.

    A command there has the UID of its Pipeline.
    """
    theirs = next((h.owner for h in held if h.owner.uid != owner.uid), owner)
    namespace, _, name = theirs.name.rpartition("/")
    if not owner.local or theirs.local or not namespace:
        return error
    there = (
        f"to act for that Pipeline, run the command in its pod: kubectl -n {namespace} exec {name}-driver-0 -- levada"
    )
    return NeedsOperator(error.code, error.message, hint=f"{there}. Otherwise {error.hint}")
