"""The checks before a start of what a pipeline has made at the source: its slot, its history and its owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from levada import codes
from levada.capture.history import KnownSource, plan_session
from levada.errors import LevadaError, SlotLost
from levada.postgres.append_publication import PublicationNames, read_state
from levada.postgres.failures import RESYNC_ALL
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.problems import Problem, Severity
from levada.postgres.read_only import in_recovery, read_only_reason
from levada.postgres.server import read_server, read_start_time
from levada.postgres.slot_waits import expected_wait
from levada.postgres.slots import awaits_primary, inspect_slot, passing_standby
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, store_connection
from levada.runtime.host.pod import TERMINATION_LOG
from levada.runtime.host.problem_parts import problem_of, warning_if
from levada.runtime.host.stored_progress import find_lost_state
from levada.runtime.host.stored_state import StoredState
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import holdings, identify, require_own
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.publication_gaps import has_publication_record, unreadable_slot
from levada.segments.log import SegmentLog
from levada.spec import Manifests
from levada.stores.interface import PipelineStore


def slot_problems(config: PipelineConfig, stored: StoredState) -> Iterator[Problem]:
    """Yield a problem if copied tables depend on a slot that is missing or lost, or if its creation would wait.

    A start handles the requested resyncs first. In a pod it is a warning, because the resync is requested in the
    driver's container, which an error would keep from starting. A start waits for the end of a failover, which meets a
    standby that the stream has not read from.
    """
    try:
        with SESSIONS.session(config.source, "check") as connection:
            slot = inspect_slot(connection, config.slot.name)
            standby = in_recovery(connection) and read_start_time(connection) != stored.server_started
            waits = expected_wait(connection, config.slot.name) if slot is None else None
    except LevadaError:
        # The check of the source reports the error.
        return
    if stored.depends and standby and awaits_primary(slot):
        yield replace(problem_of(passing_standby(config.slot.name)), passes=True)
        return
    if slot is None or slot.lost:
        code, state = codes.SLOT_MISSING, "does not exist"
        if slot is not None:
            code, state = codes.SLOT_LOST, f"has been invalidated ({slot.invalidation_reason or 'wal_removed'})"
        if stored.depends:
            message = f"slot {config.slot.name} {state}, and copied tables need its changes"
            yield _lost_problem(config, code, message, whole=stored.whole)
    if waits is not None:
        yield problem_of(waits, Severity.WARNING)


def history_problems(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> Iterator[Problem]:
    """Yield a problem if the slot is not where the pipeline left it, or cannot be read, or the server is another one.

    Nothing is compared while an engine runs, whose record and slot move between the two looks.
    """
    try:
        with closing(open_store(manifests, config, secrets)) as store:
            known = _known_source(config, store)
            server = read_server(config.source, config.slot.name)
            if known is None or server.slot is None or server.slot.active or known != _known_source(config, store):
                return
            plan_session(known, server, config.slot.name, config.source.database)
            if has_publication_record(store):
                with SESSIONS.session(config.source, "check") as connection:
                    state = read_state(connection, PublicationNames(config.publication.name), ())
                    if (unreadable := unreadable_slot(connection, store, state)) is not None:
                        raise unreadable
    except SlotLost as error:
        yield _lost_problem(config, error.code, f"{error.message}. Copied tables need its changes")
    except LevadaError:
        # The other checks report the error.
        return


def _known_source(config: PipelineConfig, store: PipelineStore) -> KnownSource | None:
    """Return what the store and the staged segments say of the source now, None without a record."""
    store.load_fingerprints()
    record = SourceRecord(store)
    return record.known_source(SegmentLog(open_staging(config.staging), config.name)) if record.known else None


def _lost_problem(config: PipelineConfig, code: str, message: str, *, whole: bool = True) -> Problem:
    again = config.slot.resync_when_lost
    effect = "every table is copied again" if again else "a start ends with this error"
    if config.slot.compare_when_lost:
        effect = "every table is compared with the source, and the rows that differ are written"
    severity = warning_if(again or not whole or TERMINATION_LOG in os.environ)
    return Problem(severity, code, f"{message}: {effect}", "" if again else RESYNC_ALL)


def read_only_problems(
    manifests: Manifests, config: PipelineConfig, secrets: Path | None, stored: StoredState
) -> Iterator[Problem]:
    """Yield a problem for each server that a start writes to and that is read-only for the role.

    A start of a pipeline that has tables waits until that ends. A standby is no problem as a source.
    """
    servers = {}
    if manifests.pipeline.spec.store.postgres is not None:
        servers[codes.STORE_READ_ONLY] = store_connection(manifests, config, secrets)
    if config.publication.managed and config.source not in servers.values():
        servers[codes.SOURCE_READ_ONLY] = config.source
    for code, connection in servers.items():
        try:
            with SESSIONS.session(connection, "check") as conn:
                reason, hint = read_only_reason(conn)
                standby = in_recovery(conn)
        except LevadaError:
            # The checks of the source and of the store report the error.
            continue
        if reason and not (standby and code == codes.SOURCE_READ_ONLY):
            message = f"{connection.where} cannot be written: {reason}"
            yield Problem(warning_if(stored.known), code, message, hint)


def lost_state_problems(config: PipelineConfig, stored: StoredState) -> Iterator[Problem]:
    """Yield a problem if the slot or staged segments exist without a record of the pipeline in its store."""
    # The checks of the source and of the staging area report their errors.
    lost = find_lost_state(config) if stored.empty else None
    if lost is not None:
        # In a pod the driver must start, because only there can a user request the resync.
        yield problem_of(lost, warning_if(config.slot.resync_when_lost or TERMINATION_LOG in os.environ))


def owner_problems(config: PipelineConfig, stored: StoredState | None) -> Iterator[Problem]:
    """Yield a problem if the pipeline's places belong to another Pipeline, or if their owner cannot be read."""
    if stored is None and not config.uid:
        # The UID of an engine outside of Kubernetes is in the store. Without the store there is no UID to compare with.
        return
    record = None if stored is None else stored.owner
    owner = identify(config, record, volatile=stored is not None and stored.volatile)
    try:
        require_own(config, owner, holdings(config, record, open_staging(config.staging)))
    except LevadaError as error:
        # The checks of the source and of the staging area report the other errors.
        if error.code in (codes.NOT_THE_OWNER, codes.OWNER_UNREADABLE):
            yield problem_of(error)
