"""The checks of `levada check`: every problem that a start would meet. Nothing is changed.

The order is that of a start: this machine, the source, the store, the staging area, the destination. Each part is
checked even if another one failed, so that one run reports every problem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.append_publication import with_appended
from levada.postgres.catalog import list_tables
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.problems import Problem, Severity, of_restart
from levada.postgres.publications import CoverageReport, inspect_coverage
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.destination_check import destination_problems
from levada.runtime.host.problem_parts import problem_of, raised, warning_if
from levada.runtime.host.secret_folder import access_token
from levada.runtime.host.slot_checks import (
    history_problems,
    lost_state_problems,
    owner_problems,
    read_only_problems,
    slot_problems,
)
from levada.runtime.host.stored_state import StoredState, read_stored_state
from levada.runtime.resources.staging import open_staging, start_makes_room
from levada.runtime.source.mask_comments import comment_problems, with_comments
from levada.runtime.source.preparation import check_source
from levada.runtime.source.slips import check_slips
from levada.spec import Manifests
from levada.values import QualifiedTable

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
        return (problem_of(error),)
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
        stored = read_stored_state(manifests, config, secrets)
    except LevadaError as error:
        of_store.append(problem_of(error))
    of_source = check_source(config, begun=stored is not None and stored.known)
    of_source += tuple(problem_of(error, Severity.WARNING) for error in comment_problems(config))
    problems = [*_suspended(manifests), *raised(lambda: _check_folder(work_dir)), *of_source]
    problems += [*raised(lambda: access_token(manifests, secrets)), *of_store]
    if stored is not None and stored.moved is not None:
        problems.append(problem_of(stored.moved))
    if stored is not None and stored.elsewhere is not None:
        problems.append(stored.elsewhere)
    if stored is not None and any(p.code in _SLIPS for p in of_source):
        slips = list(raised(partial(check_slips, config, stored.names)))
        problems = [*(p for p in problems if not (slips and p.code in _SLIPS)), *slips]
    if all(p.code != codes.STANDBY_UNSUPPORTED for p in of_source):
        problems += read_only_problems(manifests, config, secrets, stored or StoredState())
    of_owner = tuple(owner_problems(config, stored))
    # The state of another Pipeline says nothing about this one, and its way on is not for this one.
    of_slot = () if of_owner else tuple(slot_problems(config, stored or StoredState()))
    if not of_owner and not of_slot and stored is not None and stored.depends and stored.whole:
        of_slot = tuple(history_problems(manifests, config, secrets))
    # The check of the source does not know whether a table needs the slot.
    problems = [*(p for p in problems if p.code not in {its.code for its in of_slot}), *of_slot]
    if not of_owner:
        problems += lost_state_problems(config, stored or StoredState())
    problems += _staging_problems(config)
    problems += destination_problems(manifests, secrets, config, stored or StoredState())
    return tuple(sorted([*of_owner, *problems], key=lambda p: p.severity is Severity.WARNING))


def source_problems(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> tuple[Problem, ...]:
    """Return every problem of the source that a start would meet, errors before warnings.

    The store is opened only for an error that a pipeline with tables starts without.
    """
    problems = check_source(config)
    if not any(p.spares_others and p.severity is Severity.ERROR for p in problems):
        return problems
    try:
        begun = read_stored_state(manifests, config, secrets).known
    except LevadaError:
        # The start reports the error of the store.
        begun = True
    return of_restart(problems) if begun else problems


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


def _suspended(manifests: Manifests) -> Iterator[Problem]:
    if manifests.pipeline.spec.suspend:
        message = "spec.suspend is true, so a run ends at once and replicates nothing"
        yield Problem(Severity.WARNING, "manifest_suspended", message, "set spec.suspend to false")


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


def _staging_problems(config: PipelineConfig) -> Iterator[Problem]:
    try:
        staging = open_staging(config.staging)
        try:
            staging.probe()
        except Transient as error:
            yield problem_of(error, warning_if(start_makes_room(error, staging, config.name)))
    except LevadaError as error:
        yield problem_of(error)
