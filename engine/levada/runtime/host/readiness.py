"""The checks of `levada check`: every problem that a start would meet. Nothing is changed.

The order is that of a start: this machine, the source, the store, the staging area, the destination. Each part is
checked even if another one failed, so that one run reports every problem.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from levada import codes
from levada.capture.history import KnownSource, plan_session
from levada.destinations.answers import perform
from levada.destinations.interface import Destination
from levada.errors import InvalidManifest, LevadaError, NeedsOperator, SlotLost, Transient
from levada.postgres.append_publication import PublicationNames, read_state, with_appended
from levada.postgres.catalog import list_tables, read_table_ids
from levada.postgres.failures import RESYNC_ALL
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.problems import Problem, Severity, of_restart
from levada.postgres.publications import CoverageReport, inspect_coverage
from levada.postgres.read_only import in_recovery, read_only_reason
from levada.postgres.server import read_server, read_start_time
from levada.postgres.slot_waits import expected_wait
from levada.postgres.slots import awaits_primary, inspect_slot, passing_standby
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors, plugin_errors
from levada.runtime.host.assembly import make_destination, open_store, pipeline_config, store_connection
from levada.runtime.host.plugins import destination_class, destination_settings
from levada.runtime.host.pod import TERMINATION_LOG
from levada.runtime.host.secret_folder import access_token
from levada.runtime.host.stored_progress import find_lost_state, is_empty
from levada.runtime.resources.bare_jvm import bare_jvm
from levada.runtime.resources.spark import borrowed_session, has_session
from levada.runtime.resources.staging import open_staging, start_makes_room
from levada.runtime.source.destination_place import require_same_place
from levada.runtime.source.mask_comments import comment_problems, with_comments
from levada.runtime.source.ownership import holdings, identify, require_own
from levada.runtime.source.preparation import check_source, covered_tables
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.slips import check_slips
from levada.runtime.source.staging_place import other_folder, require_same_staging
from levada.runtime.tables.cut_rules import check_cuts
from levada.runtime.tables.places import check_sources, place_problems, taken_places
from levada.runtime.tables.publication_gaps import has_publication_record, unreadable_slot
from levada.runtime.tables.requests import CopySettings, TableRequest, last_copy_settings, pending_request
from levada.runtime.tables.rules import continues
from levada.runtime.tables.table_names import table_names
from levada.runtime.tables.verification_record import check_continuous
from levada.segments.log import SegmentLog
from levada.spec import Manifests
from levada.spec.plugins import STORES
from levada.stores.interface import OwnerRecord, PipelineStore, TableAction, TableControls
from levada.stores.phases import DataSync, Init
from levada.stores.readiness import check_postgres_store, postgres_store_exists
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLIPS = frozenset({codes.INCLUDED_TABLE_MISSING, codes.PATTERN_WITHOUT_TABLE})
"""Codes of warnings of entries that match no table. They are errors if replicated tables are left out."""


def start_problems(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> tuple[Problem, ...]:
    """Return every problem that a start would meet, errors before warnings.

    The destination is opened, with a local Spark session if it asks for one and the process has none. A destination
    that does not answer is a warning once tables were copied, because such a pipeline starts and stages changes until
    the destination answers.
    """
    try:
        config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    except LevadaError as error:
        return (_problem(error),)
    with SESSIONS.keeping(config.source):
        return _start_problems(manifests, config, secrets, work_dir)


def _start_problems(
    manifests: Manifests, config: PipelineConfig, secrets: Path | None, work_dir: Path
) -> tuple[Problem, ...]:
    stored, of_store = None, list[Problem]()
    # The check of the source reports its errors.
    with suppress(LevadaError):
        config = with_comments(config)
    try:
        stored = _read_store(manifests, config, secrets)
    except LevadaError as error:
        of_store.append(_problem(error))
    of_source = check_source(config, begun=stored is not None and stored.known)
    of_source += tuple(_problem(error, Severity.WARNING) for error in comment_problems(config))
    problems = [*_suspended(manifests), *_raised(lambda: _check_folder(work_dir)), *of_source]
    problems += [*_raised(lambda: access_token(manifests, secrets)), *of_store]
    if stored is not None and stored.moved is not None:
        problems.append(_problem(stored.moved))
    if stored is not None and stored.elsewhere is not None:
        problems.append(stored.elsewhere)
    if stored is not None and any(p.code in _SLIPS for p in of_source):
        slips = list(_raised(partial(check_slips, config, stored.names)))
        problems = [*(p for p in problems if not (slips and p.code in _SLIPS)), *slips]
    if all(p.code != codes.STANDBY_UNSUPPORTED for p in of_source):
        problems += _read_only_problems(manifests, config, secrets, stored or _Stored())
    of_owner = tuple(_owner_problems(config, stored))
    # The state of another Pipeline says nothing about this one, and its way on is not for this one.
    of_slot = () if of_owner else tuple(_slot_problems(config, stored or _Stored()))
    if not of_owner and not of_slot and stored is not None and stored.depends and stored.whole:
        of_slot = tuple(_history_problems(manifests, config, secrets))
    # The check of the source does not know whether a table needs the slot.
    problems = [*(p for p in problems if p.code not in {its.code for its in of_slot}), *of_slot]
    if not of_owner:
        problems += _lost_state_problems(config, stored or _Stored())
    problems += _staging_problems(config)
    problems += _destination_problems(manifests, secrets, config, stored or _Stored())
    return tuple(sorted([*of_owner, *problems], key=lambda p: p.severity is Severity.WARNING))


def source_problems(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> tuple[Problem, ...]:
    """Return every problem of the source that a start would meet, errors before warnings.

    The store is opened only for an error that a pipeline with tables starts without.
    """
    problems = check_source(config)
    if not any(p.spares_others and p.severity is Severity.ERROR for p in problems):
        return problems
    try:
        begun = _read_store(manifests, config, secrets).known
    except LevadaError:
        # The start reports the error of the store.
        begun = True
    return of_restart(problems) if begun else problems


def copied_before(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> bool:
    """Return True if the store has a copied table of the pipeline, False as well if the store cannot be read."""
    try:
        return _read_store(manifests, config, secrets).begun
    except LevadaError:
        return False


def publication_coverage(manifests: Manifests, *, secrets: Path | None = None) -> CoverageReport:
    """Return which of the selected tables the publication has, and its limitations.

    Tables that cannot be added to a managed publication are left out.
    """
    config = pipeline_config(manifests, secrets=secrets)
    publication = config.publication
    with SESSIONS.session(config.source, "check") as connection:
        required = {table for table in list_tables(connection) if config.is_selected(table)}
        appended = set[QualifiedTable]()
        if publication.managed:
            found = inspect_coverage(connection, publication.name, required, listed=True)
            required.difference_update(found.blocked)
            appended = {table for table in found.unidentified if config.appends(table)}
        report = inspect_coverage(connection, publication.name, required, listed=True)
        return with_appended(connection, report, publication.append, appended)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The part of the store that the checks need.

    ``known`` is set if there are tables, ``begun`` once one was copied, and ``depends`` if a copied table needs the
    slot's changes. ``copied_as`` are the settings of each table's last copy. ``resyncs`` are the tables whose resync
    was requested in the store. ``moved`` is the error of a destination or a staging area that is not the one of the
    state. ``empty`` is True if the store outlives the process and has no record of the pipeline. Otherwise it may be
    ``volatile``. ``server_started`` is the start of the server that the stream has read from, None before. ``whole`` is
    False if only ``known``, ``begun`` and ``depends`` could be read. ``elsewhere`` is the warning of a work folder that
    is not that of the last engine.
    """

    known: bool = False
    begun: bool = False
    depends: bool = False
    owner: OwnerRecord | None = None
    controls: Mapping[TableId, TableControls] = field(default_factory=dict)
    resyncs: frozenset[TableId] = frozenset()
    moved: LevadaError | None = None
    empty: bool = False
    whole: bool = True
    volatile: bool = False
    server_started: str | None = None
    elsewhere: Problem | None = None
    names: frozenset[QualifiedTable] = frozenset()

    @property
    def copied_as(self) -> Mapping[TableId, CopySettings]:
        return {t: before for t, its in self.controls.items() if (before := last_copy_settings(its)) is not None}


def stored_controls(
    manifests: Manifests, config: PipelineConfig, secrets: Path | None
) -> Mapping[TableId, TableControls]:
    """Return the handled requests of each table. Raise the error of a store that cannot be used."""
    return _read_store(manifests, config, secrets).controls


def _suspended(manifests: Manifests) -> Iterator[Problem]:
    if manifests.pipeline.spec.suspend:
        message = "spec.suspend is true, so a run ends at once and replicates nothing"
        yield Problem(Severity.WARNING, "manifest_suspended", message, "set spec.suspend to false")


def requested_resyncs(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> frozenset[TableId]:
    """Return the tables whose resync `levada resync` has requested. Raise the error of a store that cannot be used."""
    return _read_store(manifests, config, secrets).resyncs


def _check_folder(work_dir: Path) -> None:
    """Raise NeedsOperator ``work_dir_unusable`` if the folder is not writable and cannot be created."""
    # Path.exists raises for a folder without the permission to search it.
    existing = next(p for p in (work_dir, *work_dir.parents) if os.path.lexists(p))
    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        raise NeedsOperator(
            "work_dir_unusable",
            f"the work folder {work_dir} cannot be written",
            hint="name another folder with --work-dir DIR",
        )


def _read_store(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> _Stored:
    """Return the state of the pipeline's tables in the store.

    The schema of a PostgreSQL store is not created or migrated. If it would have to be, the result only has whether a
    table was copied. Raise the error of a store that cannot be used.
    """
    spec = manifests.pipeline.spec.store
    if spec.postgres is not None:
        connection = store_connection(manifests, config, secrets)
        found = check_postgres_store(connection, config.name, spec.postgres.schema_name)
        if not found.current:
            # Opening the store would create or migrate its schema.
            empty = not postgres_store_exists(connection, spec.postgres.schema_name)
            return _Stored(found.has_copies, found.has_copies, found.has_copies, empty=empty, whole=False)
    with closing(open_store(manifests, config, secrets)) as store, plugin_errors(type(store), STORES, "a read"):
        store.load_table_replication_states()
        store.load_table_controls()
        states = store.get_table_replication_states()
        begun = any(not isinstance(p, Init | DataSync) for p in states.values())
        controls = {t: its for t in states if (its := store.get_table_controls(t)) is not None}
        resyncs = frozenset(t for t, action in store.get_table_actions().items() if action is TableAction.RESYNC)
        depends = any(
            continues(phase) and t not in resyncs and not _copied_again(config, controls.get(t))
            for t, phase in states.items()
        )
        store.load_fingerprints()
        store.load_table_schemas()
        moved: LevadaError | None = None
        try:
            require_same_place(config, store)
            require_same_staging(config, store)
        except InvalidManifest as error:
            moved = error
        server = SourceRecord(store).state.identity
        return _Stored(
            bool(states), begun, depends, store.get_owner_record(), controls, resyncs, moved, is_empty(store),
            volatile=store.volatile, server_started=None if server is None else server.started_at,
            elsewhere=other_folder(config, store), names=frozenset(table_names(store).values()),
        )  # fmt: skip


def _copied_again(config: PipelineConfig, controls: TableControls | None) -> bool:
    """Return True if a start copies the table again because the manifest requests it, or leaves it out."""
    before = last_copy_settings(controls)
    if controls is None or before is None:
        return False
    wanted = CopySettings.of(config, before.table, before)
    request = pending_request(controls, before, config.table(before.table), wanted)
    return request is TableRequest.RESYNC or not config.is_selected(before.table)


def _slot_problems(config: PipelineConfig, stored: _Stored) -> Iterator[Problem]:
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
        yield replace(_problem(passing_standby(config.slot.name)), passes=True)
        return
    if slot is None or slot.lost:
        code, state = codes.SLOT_MISSING, "does not exist"
        if slot is not None:
            code, state = codes.SLOT_LOST, f"has been invalidated ({slot.invalidation_reason or 'wal_removed'})"
        if stored.depends:
            message = f"slot {config.slot.name} {state}, and copied tables need its changes"
            yield _lost_problem(config, code, message, whole=stored.whole)
    if waits is not None:
        yield _problem(waits, Severity.WARNING)


def _history_problems(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> Iterator[Problem]:
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
    severity = _warning_if(again or not whole or TERMINATION_LOG in os.environ)
    return Problem(severity, code, f"{message}: {effect}", "" if again else RESYNC_ALL)


def _read_only_problems(
    manifests: Manifests, config: PipelineConfig, secrets: Path | None, stored: _Stored
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
            yield Problem(_warning_if(stored.known), code, message, hint)


def _lost_state_problems(config: PipelineConfig, stored: _Stored) -> Iterator[Problem]:
    """Yield a problem if the slot or staged segments exist without a record of the pipeline in its store."""
    # The checks of the source and of the staging area report their errors.
    lost = find_lost_state(config) if stored.empty else None
    if lost is not None:
        # In a pod the driver must start, because only there can a user request the resync.
        yield _problem(lost, _warning_if(config.slot.resync_when_lost or TERMINATION_LOG in os.environ))


def _staging_problems(config: PipelineConfig) -> Iterator[Problem]:
    try:
        staging = open_staging(config.staging)
        try:
            staging.probe()
        except Transient as error:
            yield _problem(error, _warning_if(start_makes_room(error, staging, config.name)))
    except LevadaError as error:
        yield _problem(error)


def _owner_problems(config: PipelineConfig, stored: _Stored | None) -> Iterator[Problem]:
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
            yield _problem(error)


def _destination_problems(
    manifests: Manifests, secrets: Path | None, config: PipelineConfig, stored: _Stored
) -> Iterator[Problem]:
    begun = stored.begun
    try:
        with _opened(manifests, secrets, config) as destination:
            yield from _raised(lambda: check_cuts(config, destination))
            yield from _raised(lambda: check_continuous(config, destination))
            for error, refused in _place_problems(config, destination, stored):
                unknown = begun and not stored.copied_as
                yield _problem(error, _warning_if(unknown or not refused))
            try:
                with destination_errors(type(destination), "startup"):
                    perform(destination.startup)
            except LevadaError as error:
                yield _problem(error, _warning_if(begun and error.retried))
                return
            # A start checks no more than `startup` does. Once tables are copied, each is parked for its own errors.
            with destination_errors(type(destination), "check"):
                yield from _raised(lambda: perform(destination.check), _warning_if(begun))
            known = _known(config, stored)
            yield from _raised(lambda: check_sources(config, destination, known), _warning_if(begun))
            new = [name for name, before in known.values() if before is None]
            # A run parks these tables alone.
            alone = _warning_if(stored.known or TERMINATION_LOG in os.environ)
            yield from (_problem(taken, alone) for taken in taken_places(config, destination, new))
    except LevadaError as error:
        yield _problem(error, _warning_if(begun and error.retried))


def _warning_if(harmless: bool) -> Severity:
    return Severity.WARNING if harmless else Severity.ERROR


def _place_problems(
    config: PipelineConfig, destination: Destination, stored: _Stored
) -> tuple[tuple[NeedsOperator, bool], ...]:
    return tuple(place_problems(config, destination.target_name, _known(config, stored)))


def _known(config: PipelineConfig, stored: _Stored) -> Mapping[TableId, tuple[QualifiedTable, CopySettings | None]]:
    """Return the name of each covered table, and the settings of its last copy. The check of the source reports errors.

    There is no table if the source does not answer.
    """
    try:
        with SESSIONS.session(config.source, "check") as connection:
            ids = read_table_ids(connection, covered_tables(config, connection))
    except LevadaError:
        return {}
    return {id_: (name, stored.copied_as.get(id_)) for name, id_ in ids.items()}


@contextmanager
def _opened(manifests: Manifests, secrets: Path | None, config: PipelineConfig) -> Iterator[Destination]:
    kind, session, jvm = destination_class(manifests), _no_session(), None
    conf, jars = manifests.pipeline.spec.driver.spark_conf, kind.jars() if kind.capabilities.spark else ()
    defaults = kind.spark_conf(destination_settings(manifests)) if kind.capabilities.spark else {}
    if kind.capabilities.checks_without_spark and not has_session():
        jvm = bare_jvm(conf=conf, defaults=defaults, jars=jars)
    if kind.capabilities.spark and jvm is None:
        session = borrowed_session(f"levada check {config.name}", conf=conf, defaults=defaults, jars=jars)
    with tempfile.TemporaryDirectory(prefix="levada-check-") as scratch, session as spark:
        destination = make_destination(manifests, config, secrets, spark, Path(scratch), only_checks=True, jvm=jvm)
        try:
            yield destination
        finally:
            with destination_errors(type(destination), "shutdown"):
                destination.shutdown()


def _no_session() -> AbstractContextManager[SparkSession | None]:
    return nullcontext()


def _raised(check: Callable[[], object], severity: Severity = Severity.ERROR) -> Iterator[Problem]:
    try:
        check()
    except LevadaError as error:
        yield _problem(error, severity)


def _problem(error: LevadaError, severity: Severity = Severity.ERROR) -> Problem:
    return Problem(severity, error.code, error.message, error.hint)
